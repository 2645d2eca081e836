#include "sim/serve/workload.h"

#include <cmath>
#include <stdexcept>
#include <string>

namespace orrery {
namespace {

void check(const LengthDistribution& lengths, const char* what) {
  if (lengths.min < 1 || lengths.max < lengths.min) {
    throw std::invalid_argument(std::string(what) + ": lengths in [" + std::to_string(lengths.min) +
                                ", " + std::to_string(lengths.max) + "], expected 1 <= min <= max");
  }
}

std::vector<Request> draw_requests(std::int64_t num_requests, const LengthDistribution& prompt,
                                   const LengthDistribution& output, Random& random) {
  if (num_requests < 1) {
    throw std::invalid_argument("num_requests is " + std::to_string(num_requests) +
                                ", expected at least 1");
  }
  check(prompt, "prompt_tokens");
  check(output, "output_tokens");
  std::vector<Request> requests(static_cast<std::size_t>(num_requests));
  for (std::int64_t id = 0; id < num_requests; ++id) {
    Request& request = requests[static_cast<std::size_t>(id)];
    request.id = id;
    request.prompt_tokens = draw(prompt, random);
    request.output_tokens = draw(output, random);
  }
  return requests;
}

}  // namespace

Workload open_loop(double requests_per_s, double cv, std::int64_t num_requests,
                   const LengthDistribution& prompt, const LengthDistribution& output,
                   std::uint64_t seed) {
  if (!(requests_per_s > 0) || !std::isfinite(requests_per_s) || !(cv > 0) || !std::isfinite(cv)) {
    throw std::invalid_argument("requests_per_s is " + std::to_string(requests_per_s) +
                                " and cv is " + std::to_string(cv) +
                                ", expected both finite and above 0");
  }
  Random random(seed);
  Workload workload;
  workload.requests = draw_requests(num_requests, prompt, output, random);
  // A gamma of shape 1/cv^2 and mean 1 has coefficient of variation cv.
  const double shape = 1 / (cv * cv);
  Seconds now;
  for (Request& request : workload.requests) {
    now += Seconds((cv == 1 ? random.exponential() : random.gamma(shape) / shape) / requests_per_s);
    request.arrival = now;
  }
  return workload;
}

Workload closed_loop(std::int64_t concurrency, std::int64_t num_requests,
                     const LengthDistribution& prompt, const LengthDistribution& output,
                     std::uint64_t seed) {
  if (concurrency < 1) {
    throw std::invalid_argument("concurrency is " + std::to_string(concurrency) +
                                ", expected at least 1");
  }
  Random random(seed);
  Workload workload;
  workload.requests = draw_requests(num_requests, prompt, output, random);
  workload.closed_loop_concurrency = concurrency;
  return workload;
}

void repeat_prompts(Workload& workload, std::int64_t num_distinct) {
  if (num_distinct < 1) {
    throw std::invalid_argument("found " + std::to_string(num_distinct) +
                                " distinct prompts, expected at least 1");
  }
  constexpr std::int64_t kBlockTokens = 64;            // of every engine's block sizes a multiple
  constexpr std::uint64_t kBlocksPerPrompt = 1 << 24;  // more than any prompt has
  workload.hash_block_tokens = kBlockTokens;
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    const std::size_t prompt = i % static_cast<std::size_t>(num_distinct);
    Request& request = workload.requests[i];
    request.prompt_tokens = workload.requests[prompt].prompt_tokens;
    request.block_hashes.clear();
    for (std::int64_t block = 0; block < request.prompt_tokens / kBlockTokens; ++block) {
      request.block_hashes.push_back(prompt * kBlocksPerPrompt + static_cast<std::uint64_t>(block));
    }
  }
}

Workload offline(std::int64_t num_requests, const LengthDistribution& prompt,
                 const LengthDistribution& output, bool is_static_batch, std::uint64_t seed) {
  Random random(seed);
  Workload workload;
  workload.requests = draw_requests(num_requests, prompt, output, random);
  workload.is_offline = true;
  workload.is_static_batch = is_static_batch;
  return workload;
}

void scale_rate(Workload& workload, double factor) {
  if (!(factor > 0) || !std::isfinite(factor)) {
    throw std::invalid_argument("rate scale is " + std::to_string(factor) + ", expected above 0");
  }
  for (Request& request : workload.requests) request.arrival = request.arrival / factor;
}

}  // namespace orrery
