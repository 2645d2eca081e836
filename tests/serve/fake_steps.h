#pragma once

// Step backends whose times have closed forms, and small services around them.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sim/serve/serve.h"
#include "sim/serve/workload.h"

namespace orrery::testing {

// Of times in seconds that are sums of a few tens of terms.
inline constexpr double kTolerance = 1e-12;

// A rank takes `base` + `per_prefill` for each prompt token + `per_context` for each token of the
// decodes' contexts, a step as long as its slowest rank. With `fast_forwards` off every decode step
// is asked for by itself.
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

  StepTime run(std::span<const Batch> ranks) override {
    see(ranks);
    StepTime step{.basis = {.measured = times_.base}};
    for (const Batch& batch : ranks) {
      std::int64_t prefill = 0;
      for (const PrefillChunk& chunk : batch.prefill) prefill += chunk.query;
      const Seconds own = times_.base + times_.per_prefill * static_cast<double>(prefill) +
                          times_.per_context * static_cast<double>(batch.decode_context);
      step.duration = std::max(step.duration, own);
      if (ranks.size() > 1) step.ranks.push_back(own);
    }
    return step;
  }
  // Until another rank is the slowest.
  FastForward fast_forward(std::span<const Batch> ranks, std::int64_t max_steps) override {
    see(ranks);
    FastForward fast{.num_steps = times_.fast_forwards ? max_steps : 1,
                     .basis = {.measured = times_.base}};
    for (const Batch& batch : ranks) {
      if (first(batch) < fast.first) continue;
      const bool is_equal = first(batch) == fast.first;
      fast.first = first(batch);
      fast.slope = std::max(slope(batch), is_equal ? fast.slope : Seconds(0));
    }
    if (ranks.size() == 1) return fast;
    for (const Batch& batch : ranks) {
      if (slope(batch) <= fast.slope) continue;
      const double steps = (fast.first - first(batch)) / (slope(batch) - fast.slope);
      fast.num_steps = std::min(fast.num_steps, static_cast<std::int64_t>(steps) + 1);
    }
    const auto steps = static_cast<double>(fast.num_steps);
    for (const Batch& batch : ranks) {
      fast.ranks.push_back((first(batch) + slope(batch) * ((steps - 1) / 2)) * steps);
    }
    return fast;
  }

 private:
  [[nodiscard]] Seconds first(const Batch& batch) const {
    return times_.base + times_.per_context * static_cast<double>(batch.decode_context);
  }
  [[nodiscard]] Seconds slope(const Batch& batch) const {
    return times_.per_context * static_cast<double>(batch.num_decodes);
  }
  void see(std::span<const Batch> ranks) {
    if (batches_ != nullptr) batches_->insert(batches_->end(), ranks.begin(), ranks.end());
  }

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
