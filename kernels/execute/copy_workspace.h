#pragma once

// Exchanges of rows among GPUs of one process by copies, which take no SMs: each rank copies into
// the memory of the others, and events between their streams say when.
//
//   begin()   ready: what is written is free, what is read is there   | all threads meet
//   send()    behind `ready` of each rank that it writes to: copies   |
//             copied: behind its own copies                           | all threads meet
//   end()     behind `copied` of each rank that writes to it
//
// Threads meet twice as an event can be waited for once it has been recorded; no stream or device
// is waited for.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cuda/order_event.h"
#include "kernels/execute/exchange_board.h"

namespace orrery {

// What one rank gives and gets, rows one behind the other in the order of the ranks.
struct CopiedRows {
  const std::byte* from = nullptr;
  const float* from_scales = nullptr;  // null: none
  std::byte* to = nullptr;
  float* to_scales = nullptr;
  std::int64_t row_bytes = 0;
};

// For the ranks of one group and one stream of each. Its functions are called in the thread of the
// rank at `place`, in their order, each time with is_met() before the next. Throw cuda::Error.
class CopyWorkspace {
 public:
  // `devices` reach each other's memory. Throws cuda::Error.
  explicit CopyWorkspace(std::span<const int> devices);
  void begin(int place, const cuda::Stream& stream, const CopiedRows& rows,
             std::vector<std::int64_t> received);
  [[nodiscard]] bool is_met(int place) const { return board_.is_met(place); }
  // Throws std::runtime_error as row_copies().
  void send(int place, const cuda::Stream& stream, const CopiedRows& rows,
            std::span<const std::int64_t> sent);
  void end(int place, const cuda::Stream& stream);

 private:
  struct Events {
    cuda::OrderEvent ready;
    cuda::OrderEvent copied;
  };
  [[nodiscard]] const Events& at(int place) const {
    return events_[static_cast<std::size_t>(place)];
  }

  ExchangeBoard board_;
  std::vector<Events> events_;  // by place
};

}  // namespace orrery
