#include "sim/serve/executed_tiers.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <set>
#include <span>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "sim/units/nearest.h"
#include "sim/units/shown.h"
#include "sim/units/text.h"

namespace orrery {
namespace {

constexpr std::array<std::string_view, 7> kFields{"block_of_gpu", "block",   "layers", "load",
                                                  "overlap",      "prefill", "tier"};

// Fields of one line behind its name.
class Words {
 public:
  Words(std::int64_t line, std::string_view text) : line_(line) {
    std::istringstream stream{std::string(text)};
    for (std::string word; stream >> word;) words_.push_back(word);
  }
  [[nodiscard]] std::int64_t line() const { return line_; }
  [[noreturn]] void fail(const std::string& message) const {
    throw std::invalid_argument("line " + std::to_string(line_) + ": " + message);
  }
  void require(std::size_t count, std::string_view expected) const {
    if (words_.size() == count) return;
    fail("found " + std::to_string(words_.size()) + " words, expected " + std::string(expected));
  }
  [[nodiscard]] const std::string& text(std::size_t at) const { return words_[at]; }
  // Of at least `least`, which is 0 or more.
  [[nodiscard]] double number(std::size_t at, double least) const {
    double value = 0;
    const std::string& word = words_[at];
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    const bool is_number = error == std::errc() && end == word.data() + word.size();
    if (!is_number || !std::isfinite(value) || value < least) {
      fail("found \"" + shown(word) + "\", expected a number of at least " + format_number(least));
    }
    return value;
  }
  template <typename Value>
  [[nodiscard]] Value choice(std::size_t at, std::span<const std::string_view> names) const {
    const auto found = std::ranges::find(names, words_[at]);
    if (found == names.end()) {
      fail("found \"" + shown(words_[at]) + "\", expected " + std::string(names[0]) + " or " +
           std::string(names[1]));
    }
    return static_cast<Value>(found - names.begin());
  }

 private:
  std::int64_t line_;
  std::vector<std::string> words_;
};

KvTier tier_of(const Words& words) {
  words.require(6, "name, capacity, bandwidth, write_bandwidth, latency, write");
  return {.name = words.text(0),
          .capacity = Bytes(words.number(1, 1)),
          .bandwidth = BytesPerSecond(words.number(2, 1)),
          .write_bandwidth = BytesPerSecond(words.number(3, 1)),
          .latency = Seconds(words.number(4, 0)),
          .write = words.choice<TierWrite>(5, kTierWriteNames)};
}

void set(KvTiersConfig& config, std::string_view field, const Words& words) {
  if (field == "tier") {
    config.tiers.push_back(tier_of(words));
  } else if (field == "layers") {
    words.require(2, "those of all stages and of one");
    config.layers = {.all = static_cast<std::int64_t>(words.number(0, 1)),
                     .of_stage = static_cast<std::int64_t>(words.number(1, 1))};
  } else if (field == "prefill") {
    words.require(2, "seconds per token and per pair");
    config.prefill = {.per_token = Seconds(words.number(0, 0)),
                      .per_pair = Seconds(words.number(1, 0))};
  } else {
    words.require(1, "one");
    if (field == "block_of_gpu") config.block_of_gpu = Bytes(words.number(0, 1));
    if (field == "block") config.block = Bytes(words.number(0, 1));
    if (field == "load") config.load = words.choice<TierLoad>(0, kTierLoadNames);
    if (field == "overlap") config.overlap = words.choice<TierOverlap>(0, kTierOverlapNames);
  }
}

template <typename Value, std::size_t kSize>
std::string_view name_of(const std::array<std::string_view, kSize>& names, Value value) {
  return names[static_cast<std::size_t>(value)];
}

}  // namespace

std::optional<std::string> tiers_refusal(const KvTiersConfig& config, const Mesh& mesh) {
  const std::vector<KvTier>& tiers = config.tiers;
  if (tiers.empty()) return std::nullopt;
  if (tiers.size() > 1 || tiers.front().name != "host" || tiers.front().is_shared) {
    std::string found;
    for (const KvTier& tier : tiers) {
      found.append(found.empty() ? "" : ", ").append(tier.name);
      if (tier.is_shared) found += " (shared)";
    }
    return "found tiers of KV blocks that are simulated and not executed: " + found +
           "; executed is one tier named host that is not shared";
  }
  if (mesh.dp > 1 || mesh.pp > 1 || mesh.cp > 1 || mesh.ffn_instances > 0) {
    return "found a tier of KV blocks behind dp " + std::to_string(mesh.dp) + ", pp " +
           std::to_string(mesh.pp) + ", cp " + std::to_string(mesh.cp) + " and " +
           std::to_string(mesh.ffn_instances) +
           " ffn_instances, which is simulated and not executed; executed is one behind a replica "
           "of tensor-parallel ranks alone";
  }
  return std::nullopt;
}

std::string to_text(const KvTiersConfig& config) {
  std::ostringstream out;
  out << "block_of_gpu " << format_number(config.block_of_gpu.value()) << "\nblock "
      << format_number(config.block.value()) << "\nlayers " << config.layers.all << " "
      << config.layers.of_stage << "\nload " << name_of(kTierLoadNames, config.load) << "\noverlap "
      << name_of(kTierOverlapNames, config.overlap) << "\nprefill "
      << format_number(config.prefill.per_token.value()) << " "
      << format_number(config.prefill.per_pair.value()) << "\n";
  for (const KvTier& tier : config.tiers) {
    out << "tier " << tier.name << " " << format_number(tier.capacity.value()) << " "
        << format_number(tier.bandwidth.value()) << " "
        << format_number(tier.write_bandwidth.value()) << " " << format_number(tier.latency.value())
        << " " << name_of(kTierWriteNames, tier.write) << "\n";
  }
  return out.str();
}

KvTiersConfig parse_kv_tiers(std::string_view text) {
  KvTiersConfig config;
  std::set<std::string, std::less<>> seen;
  std::istringstream input{std::string(text)};
  std::string line;
  for (std::int64_t number = 1; std::getline(input, line); ++number) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty()) continue;
    const std::string field = line.substr(0, line.find(' '));
    const Words words(number, std::string_view(line).substr(field.size()));
    if (std::ranges::find(kFields, field) == kFields.end()) {
      words.fail("unknown field \"" + shown(field) + "\"; did you mean " + nearest(field, kFields) +
                 "?");
    }
    if (!seen.insert(field).second && field != "tier") words.fail("a second " + field);
    set(config, field, words);
  }
  for (const std::string_view field : kFields) {
    if (!seen.contains(field)) {
      throw std::invalid_argument("found no line \"" + std::string(field) + " ...\"");
    }
  }
  return config;
}

std::string kv_tiers_csv(const KvTierMetrics& metrics) {
  std::ostringstream out;
  out << "tier,hit_tokens,loaded_bytes,written_bytes,evicted_bytes,held_bytes,capacity_bytes,"
         "exposed_s,exposed_share,recomputed_tokens\n";
  for (const TierMetrics& tier : metrics.tiers) {
    out << tier.name << "," << tier.hit_tokens;
    for (const Bytes bytes : {tier.loaded, tier.written, tier.evicted, tier.held, tier.capacity}) {
      out << "," << format_number(bytes.value());
    }
    out << "," << format_number(metrics.exposed.value()) << ","
        << format_number(metrics.exposed_share) << "," << metrics.recomputed_tokens << "\n";
  }
  return out.str();
}

}  // namespace orrery
