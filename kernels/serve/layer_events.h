#pragma once

// Which layers of its KV cache the ranks of an executor have written in a step, for those who copy
// them while later ones are computed.

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kernels/cuda/handles.h"
#include "kernels/cuda/order_event.h"
#include "kernels/execute/kv_hook.h"

namespace orrery {

// Thread safe but for open().
class LayerEvents : public KvHook {
 public:
  // Ranks on `devices`, so many layers on each.
  void open(std::span<const int> devices, std::span<const std::int64_t> num_layers);

  // The executor runs its next step in the caller's thread, within the lifetime of this.
  class Step {
   public:
    explicit Step(LayerEvents& events);
    ~Step();
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

   private:
    LayerEvents& events_;
  };
  [[nodiscard]] std::int64_t num_steps() const;  // that have begun

  // What is enqueued on `stream` from now on waits until rank `rank` has written layer `layer` in
  // step `step`, counted from 1. Waits itself until that layer is enqueued, or the step has ended
  // (failed, where it was not enqueued).
  void hold(const cuda::Stream& stream, std::int64_t step, int rank, std::int64_t layer) const;

  void begin_step(int rank, const cuda::Stream& main, bool by_layers) override;
  void begin_layer(int rank, std::int64_t layer, const cuda::Stream& stream) override;
  void end_step(int rank, const cuda::Stream& main) override;

 private:
  struct Rank {
    std::vector<std::unique_ptr<cuda::OrderEvent>> written;  // by layer
    std::int64_t num_written = 0;                            // whose events are of this step
  };
  void record(int rank, std::int64_t num_layers, const cuda::Stream& stream);

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<Rank> ranks_;
  std::int64_t num_begun_ = 0;
  std::int64_t num_ended_ = 0;
};

}  // namespace orrery
