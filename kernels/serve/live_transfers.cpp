#include "kernels/serve/live_transfers.h"

#include <stdexcept>
#include <string>

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
                           Bytes /*bytes*/, const Layers& /*layers*/) {
  const ExecutedSteps& from = *prefill_[static_cast<std::size_t>(prefill)];
  const std::span<const std::int32_t> source = from.blocks(idx);
  const std::span<const std::int32_t> destination =
      decode_[static_cast<std::size_t>(decode)]->adopt(
          idx, from.tokens(idx), requests_[static_cast<std::size_t>(idx)].prompt_tokens);
  if (source.size() != destination.size()) {
    throw std::logic_error("request " + std::to_string(idx) + " holds " +
                           std::to_string(source.size()) + " KV blocks and got " +
                           std::to_string(destination.size()));
  }
  const std::size_t pair =
      static_cast<std::size_t>(prefill) * decode_.size() + static_cast<std::size_t>(decode);
  live_.give(first_thread_ + pair,
             [this, idx, prefill, decode,
              from_blocks = std::vector<std::int32_t>(source.begin(), source.end()),
              to_blocks = std::vector<std::int32_t>(destination.begin(), destination.end())] {
               move(idx, prefill, decode, from_blocks, to_blocks);
             });
}

void LiveTransfers::move(std::int64_t idx, int prefill, int decode,
                         std::span<const std::int32_t> source,
                         std::span<const std::int32_t> destination) {
  Seconds time;
  {
    const Unlocked unlocked(live_.mutex());
    time = mover_.move(prefill, decode, source, destination);
  }
  const Seconds end = clock_.now();
  ended_.push_back(
      {.idx = idx, .prefill = prefill, .decode = decode, .start = end - time, .end = end});
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
