#pragma once

// Step backends whose times have closed forms, and small services around them.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "sim/serve/serve.h"
#include "sim/serve/workload.h"

namespace orrery::testing {

// Of times in seconds that are sums of a few tens of terms.
inline constexpr double kTolerance = 1e-12;

// A step takes `base` + `per_prefill` for each prompt token + `per_context` for each token of the
// decodes' contexts. With `fast_forwards` off every decode step is asked for by itself.
struct FakeTimes {
  Seconds base{0.010};
  Seconds per_prefill{0.001};
  Seconds per_context{0};
  bool fast_forwards = true;
};

class FakeSteps : public StepBackend {
 public:
  explicit FakeSteps(FakeTimes times, std::vector<Batch>* batches = nullptr)
      : times_(times), batches_(batches) {}

  StepTime run(const Batch& batch) override {
    if (batches_ != nullptr) batches_->push_back(batch);
    std::int64_t prefill = 0;
    for (const PrefillChunk& chunk : batch.prefill) prefill += chunk.query;
    return {.duration = times_.base + times_.per_prefill * static_cast<double>(prefill) +
                        times_.per_context * static_cast<double>(batch.decode_context),
            .basis = {.measured = times_.base}};
  }
  FastForward fast_forward(const Batch& batch, std::int64_t max_steps) override {
    if (batches_ != nullptr) batches_->push_back(batch);
    return {.num_steps = times_.fast_forwards ? max_steps : 1,
            .first = times_.base + times_.per_context * static_cast<double>(batch.decode_context),
            .slope = times_.per_context * static_cast<double>(batch.num_decodes),
            .basis = {.measured = times_.base}};
  }

 private:
  FakeTimes times_;
  std::vector<Batch>* batches_;
};

inline Workload workload_of(std::vector<Request> requests) {
  Workload workload;
  workload.requests = std::move(requests);
  for (std::size_t i = 0; i < workload.requests.size(); ++i) {
    workload.requests[i].id = static_cast<std::int64_t>(i);
  }
  return workload;
}

inline ServiceConfig small_service() {
  ServiceConfig config;
  config.engine.max_num_seqs = 8;
  config.engine.max_num_batched_tokens = 64;
  config.engine.block_size = 4;
  config.num_kv_blocks = 1000;
  return config;
}

inline ServiceResult serve_fake(const Workload& workload, const ServiceConfig& config,
                                const FakeTimes& times = {},
                                std::vector<Batch>* batches = nullptr) {
  return serve(workload, config, {},
               [&](int) { return std::make_unique<FakeSteps>(times, batches); });
}

// 300 requests of up to 150 prompt and 120 output tokens, in bursts.
inline Workload random_workload(std::uint64_t seed, double requests_per_s) {
  return open_loop(requests_per_s, 1.5, 300, {.kind = LengthKind::kUniform, .min = 1, .max = 150},
                   lognormal_of_mean_cv(20, 1, 1, 120), seed);
}

// 80 blocks of 4 tokens hold one longest request (270 tokens) and little more: preemptions happen.
inline ServiceConfig tight_service() {
  ServiceConfig config = small_service();
  config.num_kv_blocks = 80;
  return config;
}

}  // namespace orrery::testing
