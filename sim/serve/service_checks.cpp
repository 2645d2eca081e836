#include "sim/serve/service_checks.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "sim/serve/kv_tiers.h"
#include "sim/serve/router.h"
#include "sim/units/parse.h"
#include "sim/units/text.h"

namespace orrery {
namespace {

void check(const Request& request, const ServiceConfig& config, const Workload& workload) {
  const EngineConfig& engine = config.engine;
  const auto name = [&] { return "request " + std::to_string(request.id); };
  const auto tokens = [&] {
    return name() + " has " + std::to_string(request.prompt_tokens) + " prompt and " +
           std::to_string(request.output_tokens) + " output tokens";
  };
  require(request.prompt_tokens >= 1 && request.output_tokens >= 1,
          [&] { return tokens() + ", expected at least 1 of each"; });
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;  // keeps the sums below in range
  require(request.prompt_tokens <= kMostTokens && request.output_tokens <= kMostTokens,
          [&] { return tokens() + ", expected at most 2^40"; });
  const std::int64_t total = request.prompt_tokens + request.output_tokens;
  require(engine.max_model_len == 0 || total <= engine.max_model_len, [&] {
    return name() + " has " + std::to_string(total) +
           " prompt and output tokens, more than max_model_len, " +
           std::to_string(engine.max_model_len);
  });
  // The last output token is never computed, so it takes no room in the cache; drafts behind it do.
  const std::int64_t most = total - 1 + engine.speculation.num_tokens;
  const std::int64_t capacity =
      (config.num_kv_blocks / config.num_dp_ranks - config.state_blocks) * engine.block_size;
  require(most <= capacity, [&] {
    return name() + " needs " + std::to_string(most) + " tokens of KV cache, more than the " +
           std::to_string(capacity) + " that one " +
           (config.num_dp_ranks == 1 ? "replica" : "data-parallel rank") + " holds";
  });
  // What was preempted computes its own tokens again with its prompt.
  const std::int64_t whole =
      engine.kv_admission == KvAdmission::kFullLength ? request.prompt_tokens : total - 1;
  require(engine.enable_chunked_prefill || whole <= engine.max_num_batched_tokens, [&] {
    return name() + " needs up to " + std::to_string(whole) +
           " tokens in one step without chunked prefill, more than max_num_batched_tokens, " +
           std::to_string(engine.max_num_batched_tokens);
  });
  const auto num_hashes = static_cast<std::int64_t>(request.block_hashes.size());
  const std::int64_t hashed = workload.turns.empty() ? request.prompt_tokens : total;
  require(num_hashes * workload.hash_block_tokens <= hashed, [&] {
    return name() + " has " + std::to_string(num_hashes) + " block hashes of " +
           std::to_string(workload.hash_block_tokens) +
           " tokens, expected those of the full blocks of " + std::to_string(hashed) +
           (workload.turns.empty() ? " prompt tokens only" : " prompt and output tokens only");
  });
}

void check_autoscaling(const ServiceConfig& config, const Workload& workload) {
  const AutoscalingConfig& scaling = *config.autoscaling;
  const auto replicas = [&] {
    return "min_replicas " + std::to_string(scaling.min_replicas) + ", max_replicas " +
           std::to_string(scaling.max_replicas) + " and " + std::to_string(config.num_replicas) +
           " at the start";
  };
  require(scaling.min_replicas >= 1 && config.num_replicas >= scaling.min_replicas &&
              config.num_replicas <= scaling.max_replicas,
          [&] {
            return "autoscaling: found " + replicas() +
                   ", expected at least 1 and the start between them";
          });
  const auto is_time = [](Seconds time) {
    return std::isfinite(time.value()) && time >= Seconds(0);
  };
  require(std::isfinite(scaling.target) && scaling.target > 0 && is_time(scaling.interval) &&
              scaling.interval > Seconds(0) && is_time(scaling.start_up) &&
              is_time(scaling.scale_down_delay) && scaling.tolerance >= 0,
          "autoscaling: expected a target and an interval above 0, and start_up, scale_down_delay "
          "and tolerance of at least 0");
  require(!workload.is_static_batch && !workload.is_offline,
          "autoscaling follows requests that come one after another, expected no static_batch or "
          "offline workload");
  require(config.kv_tiers.tiers.empty(),
          "found tiers behind the KV blocks beside autoscaling, which does not say what becomes of "
          "them as replicas go; expected one of them");
}

}  // namespace

void check_kv_tiers(const ServiceConfig& config, const Workload& workload) {
  const KvTiersConfig& given = config.kv_tiers;
  if (given.tiers.empty()) return;
  require(config.engine.enable_prefix_caching,
          "found tiers without a prefix cache, expected enable_prefix_caching: true");
  require(config.state_blocks == 0,
          "tiers hold the KV blocks of tokens, expected a model whose sequences keep no states or "
          "short windows beside them");
  std::set<std::string_view> names;
  for (const KvTier& tier : given.tiers) {
    require(tier.bandwidth > BytesPerSecond(0) && tier.write_bandwidth > BytesPerSecond(0) &&
                tier.latency >= Seconds(0),
            "tier " + tier.name + ": expected rates above 0 and a latency of at least 0");
    require(names.insert(tier.name).second,
            "found two tiers named " + tier.name + ", expected names of their own");
  }
  const std::int64_t per_unit = workload.hash_block_tokens / config.engine.block_size;
  if (per_unit == 0) return;
  const auto longest = std::ranges::max_element(
      workload.requests, {}, [](const Request& request) { return request.block_hashes.size(); });
  if (longest == workload.requests.end()) return;
  const std::int64_t needed = std::max<std::int64_t>(std::ssize(longest->block_hashes), 1);
  const Bytes unit = given.block * static_cast<double>(per_unit);
  for (const KvTier& tier : given.tiers) {
    const int ranks = tier.is_shared ? 1 : config.num_dp_ranks;
    require(tier_units(given, tier, per_unit, ranks) >= needed, [&] {
      return "tier " + tier.name + " of " + memory_text(tier.capacity) +
             (ranks > 1 ? " over " + std::to_string(ranks) + " data-parallel ranks" : "") +
             " holds fewer KV blocks than the prompt of request " + std::to_string(longest->id) +
             " shares, expected at least " +
             memory_text(unit * static_cast<double>(needed * ranks));
    });
  }
}

std::string too_late(Seconds arrival) {
  return "arrives " + format_significant(arrival.value(), 4) +
         " s after the first request, where times keep no nanoseconds; expected at most " +
         format_significant(kLongestSpan.value(), 7) + " s (104 days)";
}

namespace {

void check_speculation(const EngineConfig& engine) {
  const Speculation& speculation = engine.speculation;
  const std::int64_t query = 1 + speculation.num_tokens;
  require(speculation.num_tokens >= 0 && speculation.num_tokens <= kMostSpeculativeTokens,
          "num_speculative_tokens is " + std::to_string(speculation.num_tokens) +
              ", expected 0 to " + std::to_string(kMostSpeculativeTokens));
  require(std::ssize(speculation.acceptance) == speculation.num_tokens,
          "acceptance has " + std::to_string(speculation.acceptance.size()) +
              " probabilities, expected one of each of the " +
              std::to_string(speculation.num_tokens) + " drafts");
  require(std::ranges::all_of(speculation.acceptance, [](double p) { return p >= 0 && p <= 1; }),
          "found an acceptance outside of 0 to 1, expected probabilities");
  require(engine.max_num_batched_tokens >= engine.max_num_seqs * query, [&] {
    return "max_num_batched_tokens is " + std::to_string(engine.max_num_batched_tokens) +
           ", expected at least the " + std::to_string(query) +
           " tokens that each of max_num_seqs, " + std::to_string(engine.max_num_seqs) +
           ", verifies in a step: " + std::to_string(engine.max_num_seqs * query);
  });
}

}  // namespace

void require(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument(message);
}

void check_service(const ServiceConfig& config, const Workload& workload) {
  const EngineConfig& engine = config.engine;
  require(config.num_threads >= 1,
          "num_threads is " + std::to_string(config.num_threads) + ", expected at least 1");
  require(config.num_replicas >= 1,
          "replicas is " + std::to_string(config.num_replicas) + ", expected at least 1");
  require(config.num_dp_ranks >= 1,
          "num_dp_ranks is " + std::to_string(config.num_dp_ranks) + ", expected at least 1");
  require(engine.block_size >= 1,
          "block_size is " + std::to_string(engine.block_size) + ", expected at least 1");
  require(engine.max_num_seqs >= 1,
          "max_num_seqs is " + std::to_string(engine.max_num_seqs) + ", expected at least 1");
  require(engine.max_num_batched_tokens >= engine.max_num_seqs,
          "max_num_batched_tokens is " + std::to_string(engine.max_num_batched_tokens) +
              ", expected at least max_num_seqs, " + std::to_string(engine.max_num_seqs));
  check_speculation(engine);
  require(
      engine.new_token_ratio >= 0 && engine.new_token_ratio <= 1,
      "new_token_ratio is " + std::to_string(engine.new_token_ratio) + ", expected from 0 to 1");
  require(config.num_kv_blocks >= 1, "the KV cache has " + std::to_string(config.num_kv_blocks) +
                                         " blocks, expected at least 1");
  const RouterPolicy& router = router_policy(config.router);
  require(!router.finds_prefixes || engine.enable_prefix_caching, [&] {
    return "router " + std::string(router.name) +
           " finds no prefix without enable_prefix_caching, expected it on or router least_loaded";
  });
  require(!router.needs_sessions || !workload.turns.empty(), [&] {
    return "router " + std::string(router.name) +
           " keeps the turns of a session together and the requests of this workload are of none, "
           "expected a workload of sessions or router round_robin";
  });
  if (config.autoscaling) check_autoscaling(config, workload);
  require(workload.closed_loop_concurrency >= 0,
          "concurrency is " + std::to_string(workload.closed_loop_concurrency) +
              ", expected at least 1, or 0 for an open loop");
  const auto num_requests = static_cast<std::int64_t>(workload.requests.size());
  require(workload.warmup_requests >= 0 &&
              workload.warmup_requests < std::max<std::int64_t>(num_requests, 1),
          "warmup_requests is " + std::to_string(workload.warmup_requests) +
              ", expected at least 0 and fewer than the " + std::to_string(num_requests) +
              " requests");
  require(workload.drain_requests >= 0 &&
              workload.drain_requests <
                  std::max<std::int64_t>(num_requests - workload.warmup_requests, 1),
          "drain_requests is " + std::to_string(workload.drain_requests) +
              ", expected at least 0 and fewer than the " +
              std::to_string(num_requests - workload.warmup_requests) +
              " requests after the warm-up");
  require(!engine.enable_prefix_caching || workload.hash_block_tokens % engine.block_size == 0,
          "block_size is " + std::to_string(engine.block_size) +
              ", expected a divisor of the workload's hash blocks of " +
              std::to_string(workload.hash_block_tokens) + " tokens");
}

void check_requests(const Workload& workload, const ServiceConfig& config) {
  check_service(config, workload);
  check_kv_tiers(config, workload);
  const std::vector<Turn>& turns = workload.turns;
  require(turns.empty() || turns.size() == workload.requests.size(),
          "found " + std::to_string(turns.size()) + " turns, expected one for each of the " +
              std::to_string(workload.requests.size()) + " requests");
  Seconds before(-std::numeric_limits<double>::infinity());
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    const Request& request = workload.requests[i];
    const auto name = [&] { return "request " + std::to_string(i); };
    require(request.id == static_cast<std::int64_t>(i), [&] {
      return "request at index " + std::to_string(i) + " has id " + std::to_string(request.id) +
             ", expected its index";
    });
    check(request, config, workload);
    if (!turns.empty()) {
      const std::int64_t turn =
          i > 0 && turns[i].session == turns[i - 1].session ? turns[i - 1].turn + 1 : 0;
      require(turns[i].turn == turn && std::isfinite(turns[i].wait.value()) &&
                  turns[i].wait >= Seconds(0),
              [&] {
                return name() + " is turn " + std::to_string(turns[i].turn) +
                       " of its session, expected turn " + std::to_string(turn) +
                       " and a wait of at least 0 s before it";
              });
    }
    if (workload.closed_loop_concurrency > 0) continue;
    require(std::isfinite(request.arrival.value()) && request.arrival >= Seconds(0),
            [&] { return name() + " arrives at a time that is negative or not finite"; });
    require(request.arrival >= before || (!turns.empty() && turns[i].turn > 0),
            [&] { return name() + " arrives before the one above; expected ascending arrivals"; });
    require(request.arrival <= kLongestSpan,
            [&] { return name() + " " + too_late(request.arrival); });
    if (turns.empty() || turns[i].turn == 0) before = request.arrival;
  }
}

}  // namespace orrery
