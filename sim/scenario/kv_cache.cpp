#include "sim/scenario/kv_cache.h"

#include <algorithm>
#include <utility>

#include "sim/scenario/keys.h"
#include "sim/scenario/quoted_yaml.h"
#include "sim/units/shown.h"
#include "sim/units/text.h"

namespace orrery {
namespace {

KvTier read_tier(const YamlNode& node, const std::string& path) {
  const Reader reader(node, path, key_names("tier"));
  reader.require({"name", "capacity", "bandwidth"});
  KvTier tier{.name = reader.text("name"),
              .capacity = reader.bytes("capacity"),
              .bandwidth = reader.bytes_per_second("bandwidth")};
  if (tier.name.empty()) reader.fail("name", "found no text; expected a name such as host");
  tier.write_bandwidth =
      reader.has("write_bandwidth") ? reader.bytes_per_second("write_bandwidth") : tier.bandwidth;
  if (reader.has("latency")) tier.latency = reader.seconds("latency", /*zero_allowed=*/true);
  if (reader.has("write")) {
    tier.write = static_cast<TierWrite>(reader.choice("write", kTierWriteNames));
  }
  if (reader.has("shared")) tier.is_shared = reader.boolean("shared");
  return tier;
}

std::string tier_yaml(const KvTier& tier) {
  return "{name: " + quoted_yaml(tier.name) +
         ", capacity: " + format_number(tier.capacity.value()) +
         " B, bandwidth: " + format_number(tier.bandwidth.value()) +
         " B/s, write_bandwidth: " + format_number(tier.write_bandwidth.value()) +
         " B/s, latency: " + format_number(tier.latency.value()) +
         " s, write: " + std::string(kTierWriteNames[static_cast<std::size_t>(tier.write)]) +
         ", shared: " + yaml_bool(tier.is_shared) + "}";
}

PrefillEstimate fitted(const EngineConfig& engine, StepTimes& times) {
  constexpr std::int64_t kChunks = 8;
  const std::int64_t query = engine.max_num_batched_tokens;
  const std::int64_t context = kChunks * query;
  const auto step = [&](std::int64_t before) {
    return times.step(Batch{.prefill = {{.query = query, .context = before}}}).duration;
  };
  const auto tokens = static_cast<double>(query);
  const Seconds first = step(0);
  PrefillEstimate found;
  found.per_pair = (step(context) - first) / (tokens * static_cast<double>(context));
  found.per_token = (first - found.per_pair * (tokens * tokens / 2)) / tokens;
  return found;
}

}  // namespace

KvTiersConfig read_kv_cache(const YamlNode& node) {
  const Reader reader(node, "kv_cache", key_names("kv_cache"));
  const YamlNode& tiers = reader.at("tiers");
  if (tiers.kind != YamlNode::Kind::kList) {
    reader.fail("tiers", "found " + describe(tiers) +
                             "; expected a list of tiers such as {name: host, capacity: 512 GiB, "
                             "bandwidth: 50 GB/s}");
  }
  KvTiersConfig config;
  for (const YamlNode& item : tiers.items) {
    const std::string path = "kv_cache.tiers[" + std::to_string(config.tiers.size()) + "]";
    KvTier tier = read_tier(item, path);
    if (std::ranges::find(config.tiers, tier.name, &KvTier::name) != config.tiers.end()) {
      fail_at(item.where, path + ": a second tier named '" + shown(tier.name) +
                              "'; expected a name of its own");
    }
    config.tiers.push_back(std::move(tier));
  }
  if (reader.has("load")) {
    config.load = static_cast<TierLoad>(reader.choice("load", kTierLoadNames));
  }
  if (reader.has("overlap")) {
    config.overlap = static_cast<TierOverlap>(reader.choice("overlap", kTierOverlapNames));
  }
  return config;
}

std::string to_yaml(const KvTiersConfig& tiers) {
  if (tiers.tiers.empty()) return "";
  std::string text = "kv_cache:\n  tiers:";
  for (const KvTier& tier : tiers.tiers) text += "\n    - " + tier_yaml(tier);
  return text + "\n  load: " + std::string(kTierLoadNames[static_cast<std::size_t>(tiers.load)]) +
         "\n  overlap: " + std::string(kTierOverlapNames[static_cast<std::size_t>(tiers.overlap)]) +
         "\n";
}

KvTiersConfig kv_tiers_of(const KvTiersConfig& given, const ModelConfig& model, const Mesh& mesh,
                          const EngineConfig& engine, const MemoryBudget& memory,
                          StepTimes& times) {
  KvTiersConfig config = given;
  if (config.tiers.empty()) return config;
  config.block_of_gpu = memory.kv_block;
  const int ranks_of_replica = (num_ranks(mesh) - num_ffn_ranks(mesh)) / mesh.dp;
  config.block = memory.kv_block * ranks_of_replica;
  config.layers.all = std::ssize(model.layers);
  config.layers.of_stage = std::max<std::int64_t>(config.layers.all / mesh.pp, 1);
  if (config.load == TierLoad::kWhenFaster) config.prefill = fitted(engine, times);
  return config;
}

}  // namespace orrery
