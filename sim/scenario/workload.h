#pragma once

// The workload part of a scenario: its keys, and the requests that it stands for.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "sim/scenario/foreign_trace.h"
#include "sim/scenario/reader.h"
#include "sim/serve/serve.h"
#include "sim/serve/sessions.h"
#include "sim/serve/workload.h"

namespace orrery {

struct TraceWorkload {
  TraceFormat format = TraceFormat::kCsv;
  std::filesystem::path file;     // resolved
  TraceOptions options;           // of a foreign trace
  SharedTraceReader reader;       // of foreign traces; null: there is none
  std::int64_t num_requests = 0;  // only the first N; 0: all
  double rate_scale = 1;          // arrivals come this many times as fast
  bool operator==(const TraceWorkload&) const = default;
};

// Shared because the copies of a scenario, one for each plan that is tried, serve the same
// requests.
using SharedRequests = std::shared_ptr<const Workload>;

// Requests in memory.
struct RequestsWorkload {
  SharedRequests requests;        // not null
  std::int64_t num_requests = 0;  // only the first N; 0: all
  double rate_scale = 1;          // arrivals come this many times as fast
  bool operator==(const RequestsWorkload& other) const;
};
// Those that count.
std::span<const Request> counted_requests(const RequestsWorkload& workload);

// Independent inter-arrival times: gamma with coefficient of variation `cv`; cv = 1 is Poisson.
struct ArrivalWorkload {
  double requests_per_s = 0;
  double cv = 1;
  std::int64_t num_requests = 0;
  LengthDistribution prompt_tokens;
  LengthDistribution output_tokens;
  bool operator==(const ArrivalWorkload&) const = default;
};

struct ClosedLoopWorkload {
  std::int64_t concurrency = 0;
  std::int64_t num_requests = 0;
  LengthDistribution prompt_tokens;
  LengthDistribution output_tokens;
  std::int64_t distinct_prompts = 0;  // > 0: request i sends the prompt of request i modulo this
  bool is_cold = false;               // the server has served nothing before
  bool operator==(const ClosedLoopWorkload&) const = default;
};

// All requests wait from the start; `static_batch`: they are one batch that starts together.
struct OfflineWorkload {
  std::int64_t num_requests = 0;
  LengthDistribution prompt_tokens;
  LengthDistribution output_tokens;
  bool is_static_batch = false;
  bool operator==(const OfflineWorkload&) const = default;
};

struct WorkloadSpec {
  std::variant<TraceWorkload, RequestsWorkload, ArrivalWorkload, ClosedLoopWorkload,
               OfflineWorkload, SessionConfig>
      source;
  std::int64_t warmup_requests = 0;  // the first N are served but not measured
  std::int64_t drain_requests = 0;   // the last N, likewise
  bool operator==(const WorkloadSpec&) const = default;
};

// Exactly one of trace, mooncake, requests, poisson, gamma, closed_loop, sessions, offline,
// static_batch.
// Where `requests:` has no value, `given` are the requests; `traces` reads foreign ones. Throws
// ScenarioError.
WorkloadSpec read_workload(const YamlNode& node, const std::filesystem::path& directory,
                           const std::filesystem::path& root, SharedRequests given = nullptr,
                           SharedTraceReader traces = nullptr);

// The value of `workload:` as flow YAML; paths under `root` are written relative to it. Requests in
// memory are written out, or where `requests_file` is named, as the trace in it.
std::string to_yaml(const WorkloadSpec& spec, const std::filesystem::path& root,
                    const std::string& requests_file = {});

// Reads the trace or draws the requests. Same seed, same requests. Throws std::invalid_argument
// with the trace's file and line, or when there are more than kMostRequests.
Workload make_workload(const WorkloadSpec& spec, std::uint64_t seed);

// What its reader should know: lengths of which many are cut off at max.
std::vector<std::string> warnings_of(const WorkloadSpec& spec);

}  // namespace orrery
