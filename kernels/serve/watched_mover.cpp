#include "kernels/serve/watched_mover.h"

#include <string>
#include <utility>

namespace orrery {

WatchedKvMover::WatchedKvMover(KvMover& mover, std::span<const int> first_gpus, int num_decode,
                               const RunWatch::Setup& setup)
    : mover_(mover), num_decode_(num_decode) {
  for (const int gpu : first_gpus) {
    for (int decode = 0; decode < num_decode; ++decode) {
      RunWatch::Setup own = setup;
      own.rank = gpu;
      watches_.push_back(std::make_unique<RunWatch>(std::move(own)));
    }
  }
}

Seconds WatchedKvMover::move(const Move& move) {
  RunWatch& watch =
      *watches_[static_cast<std::size_t>(move.prefill) * static_cast<std::size_t>(num_decode_) +
                static_cast<std::size_t>(move.decode)];
  return watch.run(
      RunPhase::kTransfer, [&] { return mover_.move(move); },
      "kv_transfer." + std::to_string(move.prefill) + "_to_" + std::to_string(move.decode));
}

}  // namespace orrery
