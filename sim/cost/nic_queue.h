#pragma once

// A network card that sends one message after the other and has a place for so many of them:
//
//   posted ...... accepted ...... on the wire ...... there .............. acknowledged
//     waits for a place     bytes / rate     latency          latency
//
// A message holds its place from when it is accepted to when it is acknowledged. Who posts waits
// until it is accepted: nothing is lost.

#include <cstdint>
#include <deque>

#include "sim/units/units.h"

namespace orrery {

class NicQueue {
 public:
  struct Message {
    Seconds accepted;
    Seconds there;
  };

  // `places` of 0: as many as there are messages. Throws std::invalid_argument for a rate that is
  // not positive, and a latency or places that are negative.
  NicQueue(BytesPerSecond rate, Seconds latency, std::int64_t places);

  // Messages are posted, and accepted, in order: `time` never decreases.
  Message post(Seconds time, Bytes bytes);
  // Places taken at once, at most, so far.
  [[nodiscard]] std::int64_t most_outstanding() const { return most_; }

 private:
  BytesPerSecond rate_;
  Seconds latency_;
  std::int64_t places_;
  Seconds accepted_;                  // the last message
  Seconds free_;                      // the wire
  std::deque<Seconds> acknowledged_;  // of messages that hold a place, ascending
  std::int64_t most_ = 0;
};

}  // namespace orrery
