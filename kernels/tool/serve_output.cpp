#include "kernels/tool/serve_output.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <map>
#include <sstream>

#include "sim/memory/rank_memory.h"
#include "sim/units/text.h"

namespace orrery::tool {
namespace {

void print_tiers(const KvTierMetrics& metrics, std::int64_t prompt_tokens) {
  constexpr double kGiga = 1e-9;
  for (const TierMetrics& tier : metrics.tiers) {
    std::printf("tier %s: %.1f %% of prompt tokens, %.2f GB loaded, %.2f GB written\n",
                tier.name.c_str(),
                100 * static_cast<double>(tier.hit_tokens) /
                    static_cast<double>(std::max<std::int64_t>(prompt_tokens, 1)),
                tier.loaded.value() * kGiga, tier.written.value() * kGiga);
  }
  std::printf("steps waited for blocks on their way for %.3f s, %.2f %% of their time\n",
              metrics.exposed.value(), 100 * metrics.exposed_share);
}

}  // namespace

std::string memory_csv(std::span<const std::unique_ptr<ExecutorRunner>> runners) {
  std::map<int, RankMemory> by_rank;
  int first = 0;  // of the replica's ranks
  for (const auto& runner : runners) {
    for (const auto& [rank, memory] : runner->executor().memory()) by_rank[first + rank] = memory;
    first += runner->executor().num_ranks();
  }
  return orrery::memory_csv(by_rank);
}

std::string host_csv(std::span<const std::unique_ptr<ExecutorRunner>> runners) {
  std::ostringstream out;
  out << "replica,step,graph_rows,prepare_s,run_s,duration_s,device_s,balance,waited_s\n";
  for (std::size_t replica = 0; replica < runners.size(); ++replica) {
    const std::span<const RunTimes> times = runners[replica]->times();
    for (std::size_t step = 0; step < times.size(); ++step) {
      out << replica << "," << step << "," << times[step].graph_rows;
      for (const Seconds time :
           {times[step].prepare, times[step].run, times[step].duration, times[step].device}) {
        out << "," << format_number(time.value());
      }
      out << "," << format_number(times[step].balance) << ","
          << format_number(times[step].waited.value()) << "\n";
    }
  }
  return out.str();
}

std::string tokens_text(const Tokens& requests) {
  std::string text;
  for (const std::vector<std::int32_t>& tokens : requests) {
    for (const std::int32_t token : tokens) text.append(std::to_string(token)).append(" ");
    text.append("\n");
  }
  return text;
}

void print_served(const LiveResult& result, std::int64_t num_requests) {
  const ServingMetrics& metrics = result.service.metrics;
  constexpr double kMilli = 1e3;
  const auto row = [&](const char* name, const Quantiles& times) {
    std::printf(
        "%-5s mean %10.3f ms   p50 %10.3f ms   p90 %10.3f ms   p95 %10.3f ms   p99 %10.3f ms\n",
        name, times.mean * kMilli, times.p50 * kMilli, times.p90 * kMilli, times.p95 * kMilli,
        times.p99 * kMilli);
  };
  std::printf(
      "%zu of %lld requests in %.3f s: %.1f output tokens/s, %lld steps, %.1f sequences a step, "
      "%lld preemptions, KV cache at most %.1f %% full\n",
      result.service.requests.size(), static_cast<long long>(num_requests),
      metrics.duration.value(), metrics.output_tokens_per_s,
      static_cast<long long>(metrics.num_steps), metrics.mean_batch,
      static_cast<long long>(metrics.num_preemptions), metrics.kv_utilisation_max * 100);
  row("TTFT", metrics.ttft_s);
  row("TPOT", metrics.tpot_s);
  row("ITL", metrics.itl_s);
  row("E2E", metrics.e2e_s);
  if (metrics.kv_tiers) print_tiers(*metrics.kv_tiers, metrics.prompt_tokens);
  if (!metrics.disaggregation) return;
  const DisaggregationMetrics& apart = *metrics.disaggregation;
  std::printf("%lld KV caches of %.1f MB on average moved; %.1f %% of the time waited for\n",
              static_cast<long long>(apart.num_transfers),
              apart.transferred.value() * 1e-6 /
                  static_cast<double>(std::max<std::int64_t>(apart.num_transfers, 1)),
              apart.exposed_share * 100);
  row("move", apart.transfer_s);
  row("wait", apart.wait_s);
  row("2nd", apart.second_token_s);
}

}  // namespace orrery::tool
