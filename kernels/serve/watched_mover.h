#pragma once

// Looks on while KV caches move: a transfer that does not end ends the run, with its name. No CUDA.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/execute/run_watch.h"
#include "kernels/serve/live_transfers.h"

namespace orrery {

class WatchedKvMover : public KvMover {
 public:
  // Transfers are work of the GPU that `first_gpus` names for their prefill rank; `setup` says the
  // rest. `mover` outlives it.
  WatchedKvMover(KvMover& mover, std::span<const int> first_gpus, int num_decode,
                 const RunWatch::Setup& setup);
  // Throws RankError for what `mover` throws.
  Seconds move(const Move& move) override;

 private:
  KvMover& mover_;
  int num_decode_;
  std::vector<std::unique_ptr<RunWatch>> watches_;  // [prefill, decode]: a thread each
};

}  // namespace orrery
