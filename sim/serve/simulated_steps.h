#pragma once

// Steps in virtual time. Decode batches are padded to captured graph sizes and replayed as graphs;
// steps with prefill, and batches above the largest captured size, are launched one kernel at a
// time: kernel k (from 0) starts when the one before has ended and the host has issued it, at (k +
// 1) eager_launch, so the host runs ahead of long kernels and holds up short ones. Within an
// interval of mean context the time of a decode step is linear in it.
//
// Besides launching, the host takes scheduler_base + scheduler_per_sequence * (decodes + chunks)
// for a step: choosing the batch, its inputs, its results.
//
// With data-parallel ranks a step takes as long as the rank with the largest share: sequences and
// prompt chunks are dealt round robin, each chunk to one rank, and all ranks pad to the same graph.
// Chunks of one step count as equally long there, and a rank's own unevenness is left out.

#include <cstdint>
#include <map>
#include <memory>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "sim/serve/step_backend.h"
#include "sim/serve/step_skeletons.h"

namespace orrery {

struct SimulatedStepsConfig {
  ModelConfig model;
  Mesh mesh;
  LoweringOptions lowering;
  StepLevel level = StepLevel::kClosedForm;
  const Machine* machine = nullptr;
  const CostModel* graph_cost = nullptr;  // LaunchMode::kGraph
  const CostModel* eager_cost = nullptr;  // LaunchMode::kEager
  Seconds scheduler_base;
  Seconds scheduler_per_sequence;
  // Ascending; empty: no graphs, all steps are eager.
  std::vector<std::int64_t> graph_batch_sizes;
  // The host prepares a step while the one before runs: a step takes the longer of host and device
  // instead of the sum.
  bool async_scheduling = false;
};

// Times of steps of one deployment, shared by its replicas. Thread safe; the value for a batch does
// not depend on what was asked before.
class StepTimes {
 public:
  explicit StepTimes(SimulatedStepsConfig config);

  // Time of one step, host included.
  StepTime step(const Batch& batch);
  // Linear piece of decode steps that starts with `batch`, see StepBackend::leap.
  LeapTime leap(const Batch& batch, std::int64_t max_steps);

 private:
  [[nodiscard]] bool is_graph(const Batch& batch) const;
  // Decodes of the fullest data-parallel rank.
  [[nodiscard]] std::int64_t rank_decodes(std::int64_t num_decodes) const;
  [[nodiscard]] std::int64_t padded(std::int64_t num_decodes) const;
  // Device time of a decode-only batch at a grid point of the mean context.
  DeviceTime decode_time(std::int64_t num_decodes, std::int64_t context);
  DeviceTime mixed_time(const Batch& batch);
  [[nodiscard]] Seconds host_time(const Batch& batch) const;

  SimulatedStepsConfig config_;
  StepSetup graph_;
  StepSetup eager_;
  StepSkeletons graph_skeletons_;
  StepSkeletons eager_skeletons_;
  std::shared_mutex mutex_;
  std::map<std::pair<std::int64_t, std::int64_t>, DeviceTime> decode_times_;
  std::map<std::vector<std::int64_t>, DeviceTime> mixed_times_;
};

class SimulatedSteps : public StepBackend {
 public:
  // `times` outlives it.
  explicit SimulatedSteps(StepTimes& times) : times_(times) {}
  StepTime run(const Batch& batch) override { return times_.step(batch); }
  LeapTime leap(const Batch& batch, std::int64_t max_steps) override {
    return times_.leap(batch, max_steps);
  }

 private:
  StepTimes& times_;
};

}  // namespace orrery
