#include "kernels/tool/moe_cases.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <stdexcept>
#include <utility>

#include "kernels/tool/arguments.h"
#include "sim/cost/moe_stragglers.h"
#include "sim/units/nearest.h"

namespace orrery::tool {
namespace {

// Layers of nobody's model, routed as one routes: small ones, of which a check is soon done, that
// of the FlashDMoE paper (arXiv 2506.04667, its experts gated here), and what one and two of 16
// ranks have of DeepSeek-V3's, with as many rows for an expert.
struct OwnModel {
  std::string_view name;
  std::string_view of;
  std::int64_t experts;
  std::int64_t topk;
  std::int64_t shared;  // columns of the shared experts together
  std::int64_t n_group = 1;
  std::int64_t topk_group = 1;
  std::int64_t hidden = 256;
  std::int64_t columns = 128;  // of an expert
};
constexpr auto kOwnModels = std::to_array<OwnModel>({
    {"tiny_qwen3", "qwen3_30b", 16, 8, 0},
    {"tiny_llama4", "scout", 16, 1, 128},
    {"tiny_deepseek", "deepseek_v3", 32, 4, 256, 4, 2},
    {"flash_8", "qwen3_30b", 8, 2, 0, 1, 1, 2048, 2048},
    {"flash_16", "qwen3_30b", 16, 2, 0, 1, 1, 2048, 2048},
    {"flash_32", "qwen3_30b", 32, 2, 0, 1, 1, 2048, 2048},
    {"flash_64", "qwen3_30b", 64, 2, 0, 1, 1, 2048, 2048},
    {"flash_128", "qwen3_30b", 128, 2, 0, 1, 1, 2048, 2048},
    {"deepseek_v3_16", "deepseek_v3", 16, 8, 2048, 1, 1, 7168, 2048},
    {"deepseek_v3_32", "deepseek_v3", 32, 8, 2048, 1, 1, 7168, 2048},
});

// With an eighth of the columns of each expert, as a rank of eight has them.
constexpr std::string_view kRankOfEight = "_tp8";

template <typename Table>
std::string nearest_of(std::string_view name, const Table& table) {
  std::vector<std::string_view> names;
  names.reserve(std::size(table));
  for (const auto& entry : table) names.push_back(entry.name);
  return nearest(name, names);
}

// The exponent of "zipf:S"; 0 for "uniform", and for "router", which needs none.
double zipf_exponent(std::string_view load) {
  constexpr std::string_view kZipf = "zipf:";
  if (load == "router" || load == "uniform") return 0;
  double exponent = -1;
  if (load.starts_with(kZipf)) {
    const std::string_view text = load.substr(kZipf.size());
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), exponent);
    if (error != std::errc() || stop != text.data() + text.size()) exponent = -1;
  }
  if (exponent >= 0) return exponent;
  throw std::invalid_argument("load is '" + std::string(load) +
                              "', expected router, uniform or zipf:S with S from 0");
}

ExpertComm parse_comm(std::string_view text) {
  const auto* const found = std::ranges::find(kExpertCommNames, text);
  if (found != kExpertCommNames.end()) {
    const auto comm = static_cast<ExpertComm>(found - kExpertCommNames.begin());
    if (comm != ExpertComm::kTokens) return comm;
    throw std::invalid_argument(
        "comm is 'tokens', which is not executed; expected eager, copies, graph, dedup or "
        "dedup_graph");
  }
  throw std::invalid_argument("comm is '" + std::string(text) + "', nearest is '" +
                              nearest(text, kExpertCommNames) + "'");
}

bool one_of(const Value& value, std::string_view no, std::string_view yes) {
  if (value.text != no && value.text != yes) {
    throw std::invalid_argument(std::string(value.name) + " is '" + std::string(value.text) +
                                "', expected " + std::string(no) + " or " + std::string(yes));
  }
  return value.text == yes;
}

constexpr std::int64_t kMostLate = 1000000;  // us

struct Key {
  std::string_view name;
  void (*read)(MoeCase& one, const Value& value);
};
constexpr auto kKeys = std::to_array<Key>({
    {"design", [](MoeCase& one, const Value& value) { one.design = parse_moe_design(value.text); }},
    {"dtype", [](MoeCase& one, const Value& value) { one.dtype = parse_dtype(value.text); }},
    {"tokens", [](MoeCase& one, const Value& value) { one.tokens = value.whole(1); }},
    {"tp", [](MoeCase& one, const Value& value) { one.mesh.tp = value.small(1); }},
    {"dp", [](MoeCase& one, const Value& value) { one.mesh.dp = value.small(1); }},
    {"ep", [](MoeCase& one, const Value& value) { one.mesh.ep = value.small(1); }},
    {"comm",
     [](MoeCase& one, const Value& value) {
       one.mesh.expert_comm = parse_comm(value.text);
       one.comm = value.text;
     }},
    {"chunks", [](MoeCase& one, const Value& value) { one.mesh.moe_chunks = value.small(1); }},
    {"streams", [](MoeCase& one, const Value& value) { one.streams = value.small(1); }},
    {"shared", [](MoeCase& one,
                  const Value& value) { one.shared_inside = one_of(value, "beside", "inside"); }},
    {"split", [](MoeCase& one, const Value& value) { one.mesh.split_shared_expert = one_of(value, "0", "1"); }},
    {"capacity", [](MoeCase& one, const Value& value) { one.capacity_percent = value.whole(1); }},
    {"fuse", [](MoeCase& one, const Value& value) { one.fuses_scatter = one_of(value, "0", "1"); }},
    {"gather",
     [](MoeCase& one, const Value& value) { one.fuses_gather = one_of(value, "0", "1"); }},
    {"mode",
     [](MoeCase& one, const Value& value) {
       one.mode = one_of(value, "eager", "graph") ? LaunchMode::kGraph : LaunchMode::kEager;
     }},
    {"load",
     [](MoeCase& one, const Value& value) {
       static_cast<void>(zipf_exponent(value.text));
       one.load = value.text;
     }},
    {"impose",
     [](MoeCase& one, const Value& value) {
       one.imposes_bias = one_of(value, "scores", "bias");
     }},
    {"late",
     [](MoeCase& one, const Value& value) {
       const std::size_t colon = value.text.find(':');
       const auto microseconds = [&](std::string_view text) {
         const Value part{.name = value.name, .text = text};
         return Seconds(static_cast<double>(part.whole(0, kMostLate)) * 1e-6);
       };
       one.late = microseconds(value.text.substr(0, colon));
       if (colon == std::string_view::npos) return;
       one.late_results = microseconds(value.text.substr(colon + 1));
     }},
    {"who", [](MoeCase& one,
               const Value& value) { one.are_all_late = one_of(value, "last", "all"); }},
    {"jitter",
     [](MoeCase& one, const Value& value) {
       if (value.text != kNoJitter) static_cast<void>(published_jitter(value.text));
       one.jitter = value.text;
     }},
    {"seed", [](MoeCase& one,
                const Value& value) { one.seed = static_cast<std::uint64_t>(value.whole(0)); }},
});

// The share of each expert.
std::vector<double> shares_of(const MoeCase& one, std::int64_t experts) {
  const double exponent = zipf_exponent(one.load);
  std::vector<double> shares(static_cast<std::size_t>(experts));
  for (std::size_t i = 0; i < shares.size(); ++i) {
    shares[i] = std::pow(static_cast<double>(i + 1), -exponent);
  }
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  for (double& share : shares) share /= sum;
  std::mt19937_64 random(one.seed);
  for (std::size_t i = shares.size(); i > 1; --i) std::swap(shares[i - 1], shares[random() % i]);
  return shares;
}

// In (0, 1).
double uniform(std::mt19937_64& random) {
  return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53;
}

}  // namespace

MoeCase parse_moe_case(std::string_view line) {
  const std::vector<std::string_view> fields = split(line, ' ');
  if (fields.empty()) throw std::invalid_argument("an empty case, expected a model");
  MoeCase one{.text = std::string(fields[0]), .model = std::string(fields[0])};
  static_cast<void>(moe_model(one.model));
  for (const std::string_view field : std::span(fields).subspan(1)) {
    const std::string_view name = field.substr(0, field.find('='));
    const auto* const key = std::ranges::find(kKeys, name, &Key::name);
    if (key == kKeys.end() || name.size() == field.size()) {
      throw std::invalid_argument("unknown field '" + std::string(field) +
                                  "', expected key=value; the nearest key is " +
                                  nearest_of(name, kKeys));
    }
    key->read(one, {.name = name, .text = field.substr(name.size() + 1)});
    one.text.append(" ").append(field);
  }
  check_moe_chunks(one.mesh, one.design);
  if (one.imposes_bias && one.load == "router") {
    throw std::invalid_argument("impose without a load; expected load=uniform or load=zipf:S");
  }
  const bool is_late = one.late > Seconds(0) || one.late_results > Seconds(0);
  if (is_late && num_ranks(one.mesh) == 1) {
    throw std::invalid_argument("late with one rank, which waits for nobody; expected dp above 1");
  }
  if (one.jitter != kNoJitter && !is_late) {
    throw std::invalid_argument(
        "jitter without late, the time of an exchange of which it is a multiple");
  }
  if (zipf_exponent(one.load) > 0) {
    one.mesh.expert_load.shares = shares_of(one, moe_model(one.model).num_experts);
  }
  return one;
}

std::vector<MoeCase> read_moe_cases(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw std::invalid_argument(file.string() + ": cannot be read; expected cases");
  std::vector<MoeCase> cases;
  std::string line;
  for (int number = 1; std::getline(stream, line); ++number) {
    if (split(line, ' ').empty() || line.starts_with('#')) continue;
    try {
      cases.push_back(parse_moe_case(line));
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(file.string() + ":" + std::to_string(number) + ": " +
                                  error.what());
    }
  }
  if (cases.empty()) throw std::invalid_argument(file.string() + ": no cases, expected some");
  return cases;
}

ModelConfig moe_model(std::string_view name) {
  const auto* const own = std::ranges::find(kOwnModels, name, &OwnModel::name);
  if (own != kOwnModels.end()) {
    ModelConfig model = moe_model(own->of);
    model.name = name;
    model.hidden_size = own->hidden;
    model.num_experts = own->experts;
    model.num_experts_per_tok = own->topk;
    model.moe_intermediate_size = own->columns;
    model.shared_expert_intermediate_size = own->shared;
    model.n_group = own->n_group;
    model.topk_group = own->topk_group;
    return model;
  }
  const bool is_rank = name.ends_with(kRankOfEight);
  const auto whole =
      layer_models().find(name.substr(0, name.size() - (is_rank ? kRankOfEight.size() : 0)));
  if (whole == layer_models().end()) {
    std::vector<std::string_view> known;
    for (const auto& [of, fields] : layer_models()) known.emplace_back(of);
    for (const OwnModel& one : kOwnModels) known.push_back(one.name);
    throw std::invalid_argument("model '" + std::string(name) + "' is not known here; nearest is " +
                                nearest(name, known));
  }
  ModelConfig model = model_config(name, whole->second);
  if (is_rank) {
    model.moe_intermediate_size /= 8;
    model.shared_expert_intermediate_size /= 8;
  }
  return model;
}

bool imposes_bias(const MoeCase& one) {
  return one.load != "router" && one.imposes_bias.value_or(one.design == MoeDesign::kPersistent);
}

bool imposes_scores(const MoeCase& one) { return one.load != "router" && !imposes_bias(one); }

LoweringOptions moe_lowering(const MoeCase& one) {
  LoweringOptions options;
  options.precision.weights = options.precision.activations = one.dtype;
  options.moe_design = one.design;
  options.moe_streams = one.streams;
  options.fuse_scatter_add = one.fuses_scatter;
  options.fuse_gather = one.fuses_gather;
  options.shared_inside = one.shared_inside;
  options.capacity_percent = one.capacity_percent;
  if (zipf_exponent(one.load) > 0) {
    options.expert_load.shares = shares_of(one, moe_model(one.model).num_experts);
  }
  return options;
}

Plan moe_plan(const MoeCase& one) {
  return moe_layer_plan(moe_model(one.model), one.tokens, moe_lowering(one), imposes_scores(one));
}

Plan chained(const Plan& layer, int count) {
  if (count == 1) return layer;
  Plan repeated = layer;
  const auto num_ops = static_cast<OpId>(layer.ops().size());
  repeated.add_repeat({.first = 0, .last = num_ops, .count = count});
  const Plan apart = unroll(repeated);
  Plan result;
  for (GroupId group = 0; group < apart.num_groups(); ++group) {
    const auto ranks = apart.ranks(group);
    result.add_group({ranks.begin(), ranks.end()});
  }
  for (const Split& split : apart.splits()) result.add_split(split);
  for (const Tensor& tensor : apart.tensors()) result.add_tensor(tensor);
  std::map<GroupId, OpId> ends;             // of the layer ahead: the last op of the ranks
  std::map<GroupId, OpId> latest;           // of this one
  std::set<std::pair<GroupId, int>> begun;  // ranks and streams
  for (Op op : apart.ops()) {
    if (std::ssize(result.ops()) % num_ops == 0) {
      ends = latest;
      begun.clear();
    }
    const bool is_first = begun.insert({op.ranks, op.stream}).second;
    if (is_first && ends.contains(op.ranks)) op.after.push_back(ends.at(op.ranks));
    latest[op.ranks] = static_cast<OpId>(result.ops().size());
    result.add_op(std::move(op));
  }
  return result;
}

std::string chained_name(const std::string& name, int count) {
  return count == 1 ? name : name + "#" + std::to_string(count - 1);
}

std::string chained_output(int count) { return chained_name("y", count); }

std::vector<float> layer_input(const MoeCase& one, std::int64_t hidden) {
  constexpr double kBound = 1.7320508075688772;  // sqrt(3)
  std::mt19937_64 random(one.seed);
  std::vector<float> values(static_cast<std::size_t>(one.tokens * hidden));
  for (float& value : values) {
    value = static_cast<float>(kBound * (2 * uniform(random) - 1));
  }
  return values;
}

std::vector<float> imposed_scores(const MoeCase& one, std::int64_t experts) {
  const std::vector<double> shares = shares_of(one, experts);
  std::mt19937_64 random(one.seed + 1);
  std::vector<float> scores;
  scores.reserve(static_cast<std::size_t>(one.tokens * experts));
  for (std::int64_t token = 0; token < one.tokens; ++token) {
    for (const double share : shares) {
      // exp(-(its key)): larger for likelier experts, and in (0, 1).
      const double key = -std::log(uniform(random)) / (share * static_cast<double>(experts));
      scores.push_back(static_cast<float>(std::exp(-key)));
    }
  }
  return scores;
}

}  // namespace orrery::tool
