#include "kernels/serve/watched_mover.h"

#include <string>

namespace orrery {

WatchedKvMover::WatchedKvMover(KvMover& mover, int num_prefill, int num_decode,
                               int ranks_per_replica, const RunWatch::Setup& setup)
    : mover_(mover), num_decode_(num_decode) {
  for (int prefill = 0; prefill < num_prefill; ++prefill) {
    for (int decode = 0; decode < num_decode; ++decode) {
      RunWatch::Setup own = setup;
      own.rank = prefill * ranks_per_replica;
      watches_.push_back(std::make_unique<RunWatch>(std::move(own)));
    }
  }
}

Seconds WatchedKvMover::move(int prefill, int decode, std::span<const std::int32_t> source,
                             std::span<const std::int32_t> destination) {
  RunWatch& watch = *watches_[static_cast<std::size_t>(prefill * num_decode_ + decode)];
  return watch.run(
      RunPhase::kTransfer, [&] { return mover_.move(prefill, decode, source, destination); },
      "kv_transfer." + std::to_string(prefill) + "_to_" + std::to_string(decode));
}

}  // namespace orrery
