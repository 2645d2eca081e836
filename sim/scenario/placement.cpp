#include "sim/scenario/placement.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <stdexcept>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/machine/machine_link.h"
#include "sim/scenario/config_keys.h"
#include "sim/scenario/costs.h"
#include "sim/scenario/keys.h"
#include "sim/scenario/quoted_yaml.h"
#include "sim/units/text.h"

namespace orrery {

namespace {

// Formats of what a side computes with, by key.
constexpr std::array kSideFormats = {
    std::pair(std::string_view("weights"), &SidePlacement::weights),
    std::pair(std::string_view("expert_weights"), &SidePlacement::expert_weights),
    std::pair(std::string_view("activations"), &SidePlacement::activations)};

// `name` is the path of the mapping in the file.
Placement read_mesh(const Reader& reader, const std::string& name, const ModelConfig& model) {
  Placement placement;
  if (reader.has("replicas")) {
    placement.replicas = static_cast<int>(reader.integer("replicas", 1, kMaxGpus));
  }
  read_config(reader, mesh_fields(), placement.mesh);
  try {
    check_mesh(model, placement.mesh);
  } catch (const std::invalid_argument& error) {
    fail_at(reader.node().where, name + ": " + error.what());
  }
  return placement;
}

SidePlacement read_side(const YamlNode& node, const std::string& name, const ModelConfig& model,
                        DType kv_cache) {
  const Reader reader(node, name, key_names("side"));
  SidePlacement side;
  side.placement = read_mesh(reader, name, model);
  if (const int cp = side.placement.mesh.cp; cp > 1) {
    fail_at(node.where, name + ": cp is " + std::to_string(cp) +
                            ", but transfers between parts of contexts are not simulated; nearest "
                            "legal cp: 1");
  }
  const auto whole = [&](std::string_view key, std::optional<std::int64_t>& value) {
    if (reader.has(key)) {
      value = reader.integer(key, 1, 1'000'000'000);
    }
  };
  whole("max_num_seqs", side.max_num_seqs);
  whole("max_num_batched_tokens", side.max_num_batched_tokens);
  if (reader.has("gpu_memory_utilization")) {
    side.gpu_memory_utilization = reader.number("gpu_memory_utilization", 0, 1, true);
  }
  if (reader.has("kv_cache")) {
    const DType own = reader.convert("kv_cache", parse_dtype);
    if (own != kv_cache) side.kv_cache = own;
  }
  for (const auto& [key, member] : kSideFormats) {
    if (reader.has(key)) side.*member = reader.convert(key, parse_dtype);
  }
  return side;
}

std::string ways_of(const Mesh& mesh) {
  return "tp " + std::to_string(mesh.tp) + " pp " + std::to_string(mesh.pp);
}

bool is_legal(const ModelConfig& model, const Mesh& mesh) {
  try {
    check_mesh(model, mesh);
  } catch (const std::invalid_argument&) {
    return false;
  }
  return true;
}

// The tp and pp of one side on the other, where the other's mesh can have them.
std::string nearest_alike(const Disaggregation& placed, const ModelConfig& model) {
  const Mesh& prefill = placed.prefill.placement.mesh;
  const Mesh& decode = placed.decode.placement.mesh;
  for (const auto& [name, mesh, other] :
       {std::tuple("decode", decode, prefill), std::tuple("prefill", prefill, decode)}) {
    Mesh changed = mesh;
    changed.tp = other.tp;
    changed.pp = other.pp;
    if (is_legal(model, changed)) {
      return std::string(", nearest: ") + name + " with " + ways_of(changed);
    }
  }
  return "";
}

// Windows and states lie in blocks whose number follows from the ranks that they are split over and
// from the bytes of a block.
void check_resharding(const Location& where, const Disaggregation& placed,
                      const ModelConfig& model) {
  if (held_alike(placed) || std::ranges::none_of(model.layers, [](const LayerConfig& layer) {
        return layer.sliding_window > 0 || layer.state_bytes > 0;
      })) {
    return;
  }
  const Mesh& prefill = placed.prefill.placement.mesh;
  const Mesh& decode = placed.decode.placement.mesh;
  const bool same_ways = prefill.tp == decode.tp && prefill.pp == decode.pp;
  const std::string message =
      same_ways
          ? "disaggregation: kv_cache differs between prefill and decode"
          : "disaggregation: prefill has " + ways_of(prefill) + " and decode " + ways_of(decode);
  fail_at(where, message +
                     "; the windows and states that layers of this model keep are not re-sharded, "
                     "expected the same " +
                     (same_ways ? "kv_cache on both sides"
                                : "tp and pp on both sides" + nearest_alike(placed, model)));
}

// Before it is known to fit a machine.
std::int64_t gpus_of(const Placement& placement) {
  return std::int64_t{placement.replicas} * num_ranks(placement.mesh);
}

// A placement that needs more GPUs than a machine has.
void check_fits(const Location& where, const std::string& name, const Placement& placement,
                const MachineSpec& machine) {
  const std::int64_t gpus = gpus_of(placement);
  if (gpus <= machine.num_gpus) return;
  fail_at(where, name + ": needs " + std::to_string(gpus) + " GPUs (" +
                     std::to_string(placement.replicas) + " replicas of " +
                     std::to_string(num_ranks(placement.mesh)) + "); machine " + machine.name +
                     " has " + std::to_string(machine.num_gpus));
}

void check_gpus(const Location& where, const Disaggregation& placed, const SideMachines& machines) {
  if (machines.are_two) {
    check_fits(where, "disaggregation.prefill", placed.prefill.placement, *machines.prefill);
    check_fits(where, "disaggregation.decode", placed.decode.placement, *machines.decode);
    return;
  }
  const MachineSpec& machine = *machines.decode;
  const std::int64_t for_prefill = gpus_of(placed.prefill.placement);
  const std::int64_t for_decode = gpus_of(placed.decode.placement);
  if (for_prefill + for_decode > machine.num_gpus) {
    fail_at(where, "disaggregation: needs " + std::to_string(for_prefill + for_decode) +
                       " GPUs (prefill " + std::to_string(for_prefill) + ", decode " +
                       std::to_string(for_decode) + "); machine " + machine.name + " has " +
                       std::to_string(machine.num_gpus));
  }
}

// Of one mesh of which attention and FFNs are on machines of their own.
void check_ffn_gpus(const Location& where, const Placement& placed, const MachineSpec& machine,
                    const MachineSpec& ffn) {
  const auto check = [&](const std::string& name, std::int64_t ranks, const MachineSpec& of) {
    const std::int64_t gpus = placed.replicas * ranks;
    if (gpus <= of.num_gpus) return;
    fail_at(where, "placement: " + name + " needs " + std::to_string(gpus) + " GPUs (" +
                       std::to_string(placed.replicas) + " replicas of " + std::to_string(ranks) +
                       "); machine " + of.name + " has " + std::to_string(of.num_gpus));
  };
  const std::int64_t num_ffn = num_ffn_ranks(placed.mesh);
  check("attention", num_ranks(placed.mesh) - num_ffn, machine);
  check("ffn", num_ffn, ffn);
}

// Two sides on machines of their own, in words.
struct LinkWords {
  std::string place;
  std::string first;
  std::string second;
  std::string key;
};

// Two machines between which nothing says how fast anything moves.
void check_link(const Location& where, const LinkWords& words, const MachineSpec& first,
                const MachineSpec& second) {
  std::vector<std::string> without;
  for (const MachineSpec* machine : {&first, &second}) {
    if (!network_of(*machine)) without.push_back(machine->name);
  }
  if (without.empty()) return;
  const bool is_one = without.front() == without.back();
  fail_at(where, words.place + ": " + words.first + " is on " + first.name + " and " +
                     words.second + " on " + second.name +
                     ", machines of their own, and no link between them is known, since " +
                     (is_one ? without.front() + " has"
                             : without.front() + " and " + without.back() + " have") +
                     " no network; expected " + words.key +
                     ": {rate: 50 GB/s} or whatever it is, or clusters (orrery machines)");
}

std::string mesh_yaml(const Placement& placement, const std::string& indent) {
  return "\n" + indent + "replicas: " + std::to_string(placement.replicas) +
         config_yaml(mesh_fields(), placement.mesh, indent);
}

// Of a side, each behind a line end.
std::string setting_yaml(const MachineSetting& setting, bool is_apart) {
  std::string text;
  if (is_apart) text += "\n" + machine_yaml(setting, "    ");
  text += "\n" + provider_yaml(setting, "    ");
  const std::string costs = to_yaml(setting.machine_spec.costs, "\n    ");
  return text + costs.substr(0, costs.find_last_of('}') + 1);
}

// `setting`: null where the scenario says it for both.
std::string side_yaml(const SidePlacement& side, std::string_view name,
                      const MachineSetting* setting, bool is_apart) {
  std::string text = "  " + std::string(name) + ":";
  if (setting != nullptr) text += setting_yaml(*setting, is_apart);
  text += mesh_yaml(side.placement, "    ");
  if (side.max_num_seqs) {
    text += "\n    max_num_seqs: " + std::to_string(*side.max_num_seqs);
  }
  if (side.max_num_batched_tokens) {
    text += "\n    max_num_batched_tokens: " + std::to_string(*side.max_num_batched_tokens);
  }
  if (side.gpu_memory_utilization) {
    text += "\n    gpu_memory_utilization: " + format_number(*side.gpu_memory_utilization);
  }
  if (side.kv_cache) text += "\n    kv_cache: " + std::string(to_text(*side.kv_cache));
  for (const auto& [key, member] : kSideFormats) {
    if (!(side.*member)) continue;
    text.append("\n    ").append(key).append(": ").append(to_text(*(side.*member)));
  }
  return text + "\n";
}

}  // namespace

void check_placed_as_one_kernel(const YamlNode& node, const ModelConfig& model) {
  if (model.num_experts == 0) return;
  const Reader reader(node, "placement", key_names("placement"));
  Mesh mesh;
  read_config(reader, mesh_fields(), mesh);
  try {
    check_persistent_mesh(mesh);
  } catch (const std::invalid_argument& error) {
    fail_at(node.where, std::string("placement: ") + error.what());
  }
  if (mesh.ep < 1 || model.num_experts % mesh.ep == 0) return;
  std::string legal;
  for (std::int64_t ways = 1; ways <= kMostPersistentRanks; ++ways) {
    if (model.num_experts % ways != 0) continue;
    legal.append(legal.empty() ? "" : ", ").append(std::to_string(ways));
  }
  fail_at(node.where, "placement: moe design persistent: ep " + std::to_string(mesh.ep) +
                          " does not divide the " + std::to_string(model.num_experts) +
                          " routed experts; expected dp and ep of one of " + legal);
}

Placement read_placement(const YamlNode& node, const ModelConfig& model,
                         const MachineSpec& machine) {
  const Reader reader(node, "placement", key_names("placement"));
  Placement placement = read_mesh(reader, "placement", model);
  if (!reader.has(kFfnSide)) check_fits(node.where, "placement", placement, machine);
  return placement;
}

FfnSide read_ffn_side(const YamlNode& placement, const Placement& placed,
                      const MachineSpec& machine, MachineSetting ffn) {
  const YamlNode& node = *placement.find(kFfnSide);
  const Reader reader(node, "placement.ffn", key_names("ffn_side"));
  reader.require({"machine"});
  if (placed.mesh.ffn_instances == 0) {
    fail_at(node.where,
            "placement.ffn: found a machine for FFNs without ffn_instances, so that "
            "they lie where attention does; expected ffn_instances of at least 1");
  }
  FfnSide side{.setting = std::move(ffn), .rate = {}, .latency = {}};
  if (reader.has("transfer")) {
    const Reader transfer(reader.at("transfer"), "placement.ffn.transfer",
                          key_names("ffn_transfer"));
    if (transfer.has("rate")) side.rate = transfer.bytes_per_second("rate");
    if (transfer.has("latency")) side.latency = transfer.seconds("latency", /*zero_allowed=*/true);
  }
  check_ffn_gpus(node.where, placed, machine, side.setting.machine_spec);
  if (!side.rate) {
    check_link(node.where, {"placement", "attention", "ffn", "placement.ffn.transfer"}, machine,
               side.setting.machine_spec);
  }
  return side;
}

bool held_alike(const Disaggregation& disaggregation) {
  const Mesh& prefill = disaggregation.prefill.placement.mesh;
  const Mesh& decode = disaggregation.decode.placement.mesh;
  return prefill.tp == decode.tp && prefill.pp == decode.pp &&
         disaggregation.prefill.kv_cache == disaggregation.decode.kv_cache;
}

Disaggregation read_disaggregation(const YamlNode& node, const ModelConfig& model, DType kv_cache,
                                   const SideMachines& machines) {
  const Reader reader(node, "disaggregation", key_names("disaggregation"));
  Disaggregation found;
  found.prefill = read_side(reader.at("prefill"), "disaggregation.prefill", model, kv_cache);
  found.decode = read_side(reader.at("decode"), "disaggregation.decode", model, kv_cache);
  if (reader.has("transfer")) {
    const Reader transfer(reader.at("transfer"), "disaggregation.transfer", key_names("transfer"));
    if (transfer.has("rate")) {
      found.transfer.rate = transfer.bytes_per_second("rate");
    }
    if (transfer.has("latency")) {
      found.transfer.latency = transfer.seconds("latency", /*zero_allowed=*/true);
    }
    if (transfer.has("layerwise")) found.transfer.layerwise = transfer.boolean("layerwise");
  }
  found.has_two_machines = machines.are_two;
  check_resharding(reader.at("decode").where, found, model);
  check_gpus(node.where, found, machines);
  if (machines.are_two && !found.transfer.rate) {
    check_link(node.where, {"disaggregation", "prefill", "decode", "disaggregation.transfer"},
               *machines.prefill, *machines.decode);
  }
  return found;
}

std::string to_yaml(const Placement& placement, const std::optional<FfnSide>& ffn) {
  std::string text = "placement:" + mesh_yaml(placement, "  ") + "\n";
  if (!ffn) return text;
  text += "  ffn:" + setting_yaml(ffn->setting, /*is_apart=*/true) + "\n";
  if (ffn->rate || ffn->latency) text += "    transfer:\n";
  if (ffn->rate) text += "      rate: " + format_number(ffn->rate->value()) + " B/s\n";
  if (ffn->latency) text += "      latency: " + format_number(ffn->latency->value()) + " s\n";
  return text;
}

std::string machine_yaml(const MachineSetting& setting, const std::string& indent) {
  return indent + "machine: {name: " + quoted_yaml(setting.machine) +
         ", num_gpus: " + std::to_string(setting.machine_spec.num_gpus) + "}";
}

std::string provider_yaml(const MachineSetting& setting, const std::string& indent) {
  return indent + "provider: " + quoted_yaml(setting.provider);
}

std::string to_yaml(const Disaggregation& disaggregation, const MachineSetting& decode) {
  const std::optional<MachineSetting>& prefill = disaggregation.prefill_setting;
  const bool is_apart = disaggregation.has_two_machines;
  std::string text =
      "disaggregation:\n" +
      side_yaml(disaggregation.prefill, kPrefillSide, prefill ? &*prefill : nullptr, is_apart) +
      side_yaml(disaggregation.decode, kDecodeSide, prefill ? &decode : nullptr, is_apart);
  const TransferSpec& transfer = disaggregation.transfer;
  if (transfer.rate || transfer.latency || transfer.layerwise) {
    text += "  transfer:\n";
  }
  if (transfer.rate) {
    text += "    rate: " + format_number(transfer.rate->value()) + " B/s\n";
  }
  if (transfer.latency) {
    text += "    latency: " + format_number(transfer.latency->value()) + " s\n";
  }
  if (transfer.layerwise) text += "    layerwise: true\n";
  return text;
}

Precision precision_of(const SidePlacement& side, Precision precision) {
  precision.kv_cache = side.kv_cache.value_or(precision.kv_cache);
  precision.activations = side.activations.value_or(precision.activations);
  if (side.weights) {
    precision.weights = *side.weights;
    precision.expert_weights.reset();
  }
  if (side.expert_weights) precision.expert_weights = side.expert_weights;
  return precision;
}

EngineConfig engine_of(const SidePlacement& side, EngineConfig engine) {
  engine.max_num_seqs = side.max_num_seqs.value_or(engine.max_num_seqs);
  engine.max_num_batched_tokens =
      side.max_num_batched_tokens.value_or(engine.max_num_batched_tokens);
  engine.gpu_memory_utilization =
      side.gpu_memory_utilization.value_or(engine.gpu_memory_utilization);
  return engine;
}

int num_gpus(const Placement& placement) { return placement.replicas * num_ranks(placement.mesh); }

}  // namespace orrery
