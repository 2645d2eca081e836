#pragma once

// Where requests come from: arrival processes and length distributions drawn from a seed, and
// traces read from files.

#include <cstdint>
#include <filesystem>
#include <vector>

#include "sim/serve/random.h"
#include "sim/serve/serve.h"

namespace orrery {

enum class LengthKind : std::uint8_t { kFixed, kUniform, kLogNormal };

// Tokens of a prompt or an output, clamped to [min, max].
struct LengthDistribution {
  LengthKind kind = LengthKind::kFixed;
  double mean = 0;  // kFixed: the length; kLogNormal: mean before clamping
  double cv = 0;    // kLogNormal: standard deviation / mean
  std::int64_t min = 1;
  std::int64_t max = 0;
  // kUniform: the lengths to draw from (before clamping) in place of all of [min, max]; may be
  // empty.
  std::vector<std::int64_t> values;
  bool operator==(const LengthDistribution&) const = default;
};
std::int64_t draw(const LengthDistribution& lengths, Random& random);

// Log-normal lengths by what traces are described with. With p50 = exp(mu):
//   mean / p50 = exp(sigma^2 / 2), p99 / p50 = exp(2.3263 sigma).
// Throw std::invalid_argument unless 0 < p50 <= mean or p50 <= p99.
LengthDistribution lognormal_of_mean_p50(double mean, double p50, std::int64_t min,
                                         std::int64_t max);
LengthDistribution lognormal_of_p50_p99(double p50, double p99, std::int64_t min, std::int64_t max);

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

// Azure LLM inference trace: CSV with the columns TIMESTAMP ("2023-11-16 18:15:46.6805900"),
// ContextTokens and GeneratedTokens in any order; also plain CSV with arrival_s, prompt_tokens and
// output_tokens. The first arrival becomes t = 0. `max_requests` 0: all. Throws
// std::invalid_argument "file:line: ..." for a missing file or column, a field that is no number,
// timestamps that are not finite or go back, and lengths below 1.
Workload read_csv_trace(const std::filesystem::path& file, std::int64_t max_requests = 0);

// Mooncake trace: one JSON object per line with timestamp (ms), input_length, output_length and
// hash_ids (one per 512 prompt tokens). Throws as above.
Workload read_mooncake_trace(const std::filesystem::path& file, std::int64_t max_requests = 0);

// Arrivals `factor` times as fast.
void scale_rate(Workload& workload, double factor);

}  // namespace orrery
