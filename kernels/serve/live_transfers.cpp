#include "kernels/serve/live_transfers.h"

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

namespace orrery {

LiveTransfers::LiveTransfers(LiveLoop& live, std::size_t first_thread, const LiveClock& clock,
                             KvMover& mover, std::span<const Request> requests,
                             std::span<ExecutedSteps* const> prefill,
                             std::span<ExecutedSteps* const> decode)
    : live_(live),
      first_thread_(first_thread),
      clock_(clock),
      mover_(mover),
      requests_(requests),
      prefill_(prefill),
      decode_(decode) {}

void LiveTransfers::submit(Seconds /*now*/, std::int64_t idx, int prefill, int decode,
                           Bytes /*bytes*/, const Layers& layers) {
  const ExecutedSteps& from = replica_of(prefill_, prefill);
  ExecutedSteps& to = replica_of(decode_, decode);
  const std::span<const std::int32_t> source = from.blocks(idx);
  const std::span<const std::int32_t> destination = to.adopt(
      idx, requests_[static_cast<std::size_t>(idx)].prompt_tokens, decode % to.num_dp_ranks());
  if (source.size() != destination.size()) {
    throw std::logic_error("request " + std::to_string(idx) + " holds " +
                           std::to_string(source.size()) + " KV blocks and got " +
                           std::to_string(destination.size()));
  }
  const std::size_t num_decode =
      decode_.size() * static_cast<std::size_t>(decode_.front()->num_dp_ranks());
  const std::size_t pair =
      static_cast<std::size_t>(prefill) * num_decode + static_cast<std::size_t>(decode);
  live_.give(first_thread_ + pair,
             [this, idx, prefill, decode, step = layers.last_part > 0 ? from.num_steps() : 0,
              from_blocks = std::vector<std::int32_t>(source.begin(), source.end()),
              to_blocks = std::vector<std::int32_t>(destination.begin(), destination.end())] {
               move(idx, {.prefill = prefill,
                          .decode = decode,
                          .source = from_blocks,
                          .destination = to_blocks,
                          .step = step});
             });
}

void LiveTransfers::move(std::int64_t idx, const KvMover::Move& move) {
  Seconds time;
  {
    const Unlocked unlocked(live_.mutex());
    time = mover_.move(move);
  }
  const Seconds moved = clock_.now();
  if (move.step > 0) wait_for_first_token(idx, move.prefill);
  if (live_.is_stopped()) return;
  replica_of(decode_, move.decode).take_over(idx, replica_of(prefill_, move.prefill).tokens(idx));
  ended_.push_back({.idx = idx,
                    .prefill = move.prefill,
                    .decode = move.decode,
                    .start = moved - time,
                    .end = clock_.now()});
}

// Its step ends within microseconds of the last layer's transfer.
void LiveTransfers::wait_for_first_token(std::int64_t idx, int prefill) {
  constexpr std::chrono::microseconds kGlance(20);
  const ExecutedSteps& from = replica_of(prefill_, prefill);
  const std::int64_t prompt = requests_[static_cast<std::size_t>(idx)].prompt_tokens;
  while (std::ssize(from.tokens(idx)) <= prompt && !live_.is_stopped()) {
    const Unlocked unlocked(live_.mutex());
    std::this_thread::sleep_for(kGlance);
  }
}

std::optional<Seconds> LiveTransfers::next_event() const {
  return ended_.empty() ? std::nullopt : std::optional(ended_.front().end);
}

void LiveTransfers::advance(Seconds now, std::vector<Ended>& ended) {
  for (; !ended_.empty() && ended_.front().end <= now; ended_.pop_front()) {
    ended.push_back(ended_.front());
  }
}

}  // namespace orrery
