#pragma once

// Where requests come from: arrival processes with lengths drawn from a seed, and traces read from
// files.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "sim/serve/lengths.h"
#include "sim/serve/serve.h"

namespace orrery {

// A run keeps its requests and their records in memory, about 0.8 KB for each.
constexpr std::int64_t kMostRequests = 20'000'000;

// `num_requests` requests with independent gamma inter-arrival times of coefficient of variation
// `cv` (1: Poisson) at `requests_per_s`. Throws std::invalid_argument on rates, counts or lengths
// that are not positive.
Workload open_loop(double requests_per_s, double cv, std::int64_t num_requests,
                   const LengthDistribution& prompt, const LengthDistribution& output,
                   std::uint64_t seed);

// `concurrency` requests in flight at any time, `num_requests` in all.
Workload closed_loop(std::int64_t concurrency, std::int64_t num_requests,
                     const LengthDistribution& prompt, const LengthDistribution& output,
                     std::uint64_t seed);

// Makes request i send the prompt of request i modulo `num_distinct`, as benchmark clients do that
// draw from a data set; prefix caches find it. Throws std::invalid_argument unless num_distinct
// >= 1.
void repeat_prompts(Workload& workload, std::int64_t num_distinct);

// `num_requests` requests that all wait at 0, without a front end before the engine; with
// `is_static_batch` one batch that starts together. Throws as above.
Workload offline(std::int64_t num_requests, const LengthDistribution& prompt,
                 const LengthDistribution& output, bool is_static_batch, std::uint64_t seed);

// Azure LLM inference trace: CSV with the columns TIMESTAMP ("2023-11-16 18:15:46.6805900", in UTC
// unless "Z" or "+02:00" follows), ContextTokens and GeneratedTokens in any order; also plain CSV
// with arrival_s, prompt_tokens and output_tokens. The first arrival becomes t = 0. `max_requests`
// 0: all. Throws std::invalid_argument "file:line: ..." for a missing or foreign file, a missing
// column, rows with more or fewer cells than the header, a field that is no number, dates that no
// calendar has, timestamps that are not finite, go back or span more than kLongestSpan
// (service_checks.h), lengths below 1, and fewer than `max_requests` requests.
Workload read_csv_trace(const std::filesystem::path& file, std::int64_t max_requests = 0);

// Whether `line`, the first of a file, has the columns of read_csv_trace and no session_id.
bool is_csv_trace_header(std::string_view line);

// Request i arrives at arrivals_s[i], ascending seconds; the first arrival becomes t = 0. Throws
// std::invalid_argument "name:row: ..." as above, rows counted from 1, and when the columns are not
// equally long.
Workload column_trace(const std::string& name, std::span<const double> arrivals_s,
                      std::span<const std::int64_t> prompt_tokens,
                      std::span<const std::int64_t> output_tokens);

// Mooncake trace: one JSON object per line with timestamp (ms), input_length, output_length and
// where prompts share blocks hash_ids (at most one per 512 prompt tokens begun). Throws as above,
// and for keys that stand there twice and lists within lists.
Workload read_mooncake_trace(const std::filesystem::path& file, std::int64_t max_requests = 0);

// Arrivals `factor` times as fast.
void scale_rate(Workload& workload, double factor);

}  // namespace orrery
