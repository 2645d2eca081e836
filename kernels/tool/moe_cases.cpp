#include "kernels/tool/moe_cases.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <stdexcept>
#include <utility>

#include "sim/units/nearest.h"

namespace orrery::tool {
namespace {

// Layers of nobody's model, routed as one routes: small ones, of which a check is soon done.
struct OwnModel {
  std::string_view name;
  std::string_view of;
  std::int64_t experts;
  std::int64_t topk;
  std::int64_t shared;  // columns of the shared experts together
  std::int64_t n_group = 1;
  std::int64_t topk_group = 1;
};
constexpr auto kOwnModels = std::to_array<OwnModel>({
    {"tiny_qwen3", "qwen3_30b", 16, 8, 0},
    {"tiny_llama4", "scout", 16, 1, 128},
    {"tiny_deepseek", "deepseek_v3", 32, 4, 256, 4, 2},
});
constexpr std::int64_t kOwnHidden = 256;
constexpr std::int64_t kOwnColumns = 128;  // of an expert

// With an eighth of the columns of each expert, as a rank of eight has them.
constexpr std::string_view kRankOfEight = "_tp8";

// The share of each expert.
std::vector<double> shares_of(const MoeCase& one, std::int64_t experts) {
  std::vector<double> shares(static_cast<std::size_t>(experts));
  for (std::size_t i = 0; i < shares.size(); ++i) {
    shares[i] = std::pow(static_cast<double>(i + 1), -one.zipf);
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

std::string to_text(const MoeCase& one) {
  const Mesh& mesh = one.mesh;
  std::string text(one.model);
  text += " " + std::string(to_text(one.dtype)) + " tokens=" + std::to_string(one.tokens) + " " +
          std::string(to_text(one.design)) + " " + std::string(to_text(one.mode));
  const auto add = [&](std::string_view name, int value) {
    if (value > 1) text.append(" ").append(name).append("=").append(std::to_string(value));
  };
  add("tp", mesh.tp);
  add("dp", mesh.dp);
  add("ep", mesh.ep);
  add("chunks", mesh.moe_chunks);
  add("streams", one.streams);
  if (mesh.expert_comm != ExpertComm::kAllToAll) {
    text.append(" comm=").append(kExpertCommNames[static_cast<std::size_t>(mesh.expert_comm)]);
  }
  if (one.fuses_scatter) text += " fuse";
  if (one.fuses_gather) text += " gather";
  if (one.load == ImposedLoad::kNone) return text;
  return text + (one.zipf > 0 ? " zipf" : " uniform") +
         (one.load == ImposedLoad::kBias ? " by bias" : " by scores");
}

ModelConfig moe_model(std::string_view name) {
  const auto* const own = std::ranges::find(kOwnModels, name, &OwnModel::name);
  if (own != kOwnModels.end()) {
    ModelConfig model = moe_model(own->of);
    model.name = name;
    model.hidden_size = kOwnHidden;
    model.num_experts = own->experts;
    model.num_experts_per_tok = own->topk;
    model.moe_intermediate_size = kOwnColumns;
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

LoweringOptions moe_lowering(const MoeCase& one) {
  LoweringOptions options;
  options.precision.weights = options.precision.activations = one.dtype;
  options.moe_design = one.design;
  options.moe_streams = one.streams;
  options.fuse_scatter_add = one.fuses_scatter;
  options.fuse_gather = one.fuses_gather;
  if (one.zipf > 0) {
    options.expert_load.shares = shares_of(one, moe_model(one.model).num_experts);
  }
  return options;
}

Plan moe_plan(const MoeCase& one) {
  return moe_layer_plan(moe_model(one.model), one.tokens, moe_lowering(one),
                        one.load == ImposedLoad::kScores);
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
