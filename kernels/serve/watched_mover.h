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
  // Transfers are work of the first rank of their prefill replica, of `ranks_per_replica`; `setup`
  // says the rest. `mover` outlives it.
  WatchedKvMover(KvMover& mover, int num_prefill, int num_decode, int ranks_per_replica,
                 const RunWatch::Setup& setup);
  // Throws RankError for what `mover` throws.
  Seconds move(int prefill, int decode, std::span<const std::int32_t> source,
               std::span<const std::int32_t> destination) override;

 private:
  KvMover& mover_;
  int num_decode_;
  std::vector<std::unique_ptr<RunWatch>> watches_;  // [prefill, decode]: a thread each
};

}  // namespace orrery
