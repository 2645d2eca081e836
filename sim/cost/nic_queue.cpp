#include "sim/cost/nic_queue.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace orrery {

NicQueue::NicQueue(BytesPerSecond rate, Seconds latency, std::int64_t places)
    : rate_(rate), latency_(latency), places_(places) {
  if (rate.value() > 0 && latency >= Seconds(0) && places >= 0) return;
  throw std::invalid_argument("network card of " + std::to_string(rate.value()) +
                              " bytes a second, a latency of " + std::to_string(latency.value()) +
                              " s and " + std::to_string(places) +
                              " messages; expected a rate of more than 0 and nothing negative");
}

NicQueue::Message NicQueue::post(Seconds time, Bytes bytes) {
  accepted_ = std::max(accepted_, time);
  if (places_ > 0 && std::ssize(acknowledged_) == places_) {
    accepted_ = std::max(accepted_, acknowledged_.front());
  }
  while (!acknowledged_.empty() && acknowledged_.front() <= accepted_) acknowledged_.pop_front();
  free_ = std::max(free_, accepted_) + bytes / rate_;
  acknowledged_.push_back(free_ + 2 * latency_);
  most_ = std::max<std::int64_t>(most_, std::ssize(acknowledged_));
  return {.accepted = accepted_, .there = free_ + latency_};
}

}  // namespace orrery
