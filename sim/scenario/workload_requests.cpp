// The requests that a workload stands for: read, or drawn.

#include <span>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "sim/scenario/workload.h"
#include "sim/units/text.h"
#include "sim/units/text_file.h"

namespace orrery {
namespace {

Workload read_foreign_trace(const TraceWorkload& trace, std::uint64_t seed) {
  if (trace.reader == nullptr) {
    throw TextFileError(trace.file, 0,
                        "found a trace that only the Python package reads; expected CSV with "
                        "arrival_s, prompt_tokens, output_tokens or Azure's columns, or Mooncake's "
                        "JSON lines");
  }
  Workload workload = (*trace.reader)(trace.file, trace.options, seed);
  const std::int64_t count = std::ssize(workload.requests);
  if (trace.num_requests > count) {
    throw TextFileError(trace.file, 0,
                        "holds " + std::to_string(count) +
                            " requests; expected num_requests of at most that, found " +
                            std::to_string(trace.num_requests));
  }
  if (trace.num_requests > 0 && !workload.turns.empty()) {
    throw TextFileError(trace.file, 0,
                        "holds sessions, which num_requests would cut; expected all of them");
  }
  if (trace.num_requests > 0) {
    workload.requests.resize(static_cast<std::size_t>(trace.num_requests));
  }
  return workload;
}

Workload read_trace(const TraceWorkload& trace, std::uint64_t seed) {
  switch (trace.format) {
    case TraceFormat::kCsv:
      return read_csv_trace(trace.file, trace.num_requests);
    case TraceFormat::kMooncakeJsonl:
      return read_mooncake_trace(trace.file, trace.num_requests);
    case TraceFormat::kForeign:
      return read_foreign_trace(trace, seed);
  }
  return {};
}

Workload requests_of(const TraceWorkload& trace, std::uint64_t seed) {
  Workload workload = read_trace(trace, seed);
  if (trace.rate_scale != 1) {
    scale_rate(workload, trace.rate_scale);
  }
  return workload;
}

Workload requests_of(const RequestsWorkload& given, std::uint64_t) {
  const std::span<const Request> requests = counted_requests(given);
  Workload workload;
  workload.requests.assign(requests.begin(), requests.end());
  if (given.rate_scale != 1) {
    scale_rate(workload, given.rate_scale);
  }
  return workload;
}

Workload requests_of(const ArrivalWorkload& arrivals, std::uint64_t seed) {
  return open_loop(arrivals.requests_per_s, arrivals.cv, arrivals.num_requests,
                   arrivals.prompt_tokens, arrivals.output_tokens, seed);
}

Workload requests_of(const ClosedLoopWorkload& loop, std::uint64_t seed) {
  Workload workload = closed_loop(loop.concurrency, loop.num_requests, loop.prompt_tokens,
                                  loop.output_tokens, seed);
  if (loop.distinct_prompts > 0) {
    repeat_prompts(workload, loop.distinct_prompts);
  }
  workload.is_cold = loop.is_cold;
  return workload;
}

Workload requests_of(const SessionConfig& sessions, std::uint64_t seed) {
  return draw_sessions(sessions, seed);
}

Workload requests_of(const OfflineWorkload& spec, std::uint64_t seed) {
  return offline(spec.num_requests, spec.prompt_tokens, spec.output_tokens, spec.is_static_batch,
                 seed);
}

}  // namespace

Workload make_workload(const WorkloadSpec& spec, std::uint64_t seed) {
  Workload workload =
      std::visit([&](const auto& source) { return requests_of(source, seed); }, spec.source);
  workload.warmup_requests = spec.warmup_requests;
  if (spec.warmup_requests >= static_cast<std::int64_t>(workload.requests.size())) {
    throw std::invalid_argument("found warmup_requests: " + std::to_string(spec.warmup_requests) +
                                " of " + std::to_string(workload.requests.size()) +
                                " requests; expected fewer than all");
  }
  if (spec.drain_requests > 0 && !workload.turns.empty()) {
    throw std::invalid_argument(
        "found drain_requests beside sessions, whose last turns do not come last; expected none");
  }
  workload.drain_requests = spec.drain_requests;
  const std::int64_t after = std::ssize(workload.requests) - spec.warmup_requests;
  if (spec.drain_requests >= after) {
    throw std::invalid_argument("found drain_requests: " + std::to_string(spec.drain_requests) +
                                " of " + std::to_string(after) +
                                " requests after the warm-up; expected fewer than those");
  }
  return workload;
}

std::vector<std::string> warnings_of(const WorkloadSpec& spec) {
  constexpr double kMuch = 0.1;
  std::vector<std::string> warnings;
  const auto check = [&](const char* key, const LengthDistribution& lengths) {
    const double share = share_above_max(lengths);
    if (share > kMuch) {
      warnings.push_back(std::string(key) + ": " + format_significant(100 * share, 2) +
                         " % of the lengths are max, " + std::to_string(lengths.max) +
                         ": the log-normal that is asked for reaches far beyond it");
    }
  };
  std::visit(
      [&](const auto& source) {
        if constexpr (requires { source.prompt_tokens; }) {
          check("prompt_tokens", source.prompt_tokens);
          check("output_tokens", source.output_tokens);
        }
        if constexpr (requires { source.user_tokens; }) {
          check("turns", source.turns);
          check("first_prompt", source.first_prompt);
          check("user_tokens", source.user_tokens);
          check("output_tokens", source.output_tokens);
        }
      },
      spec.source);
  return warnings;
}

}  // namespace orrery
