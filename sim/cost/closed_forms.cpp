// Collective times on links of one rate and latency. Thakur, Rabenseifner, Gropp, "Optimization of
// Collective Communication Operations in MPICH", IJHPCA 19(1), 2005.

#include <stdexcept>
#include <string>

#include "sim/cost/cost.h"

namespace orrery {
namespace {

void check(Bytes bytes, int ranks, BytesPerSecond rate, Seconds latency) {
  const auto found = [](double value) { return "; found " + std::to_string(value); };
  if (ranks < 2) {
    throw std::invalid_argument("a collective needs at least 2 ranks; found " +
                                std::to_string(ranks));
  }
  if (!(rate.value() > 0)) {
    throw std::invalid_argument("the link rate must be above 0" + found(rate.value()));
  }
  if (!(bytes.value() >= 0)) {
    throw std::invalid_argument("bytes must be 0 or more" + found(bytes.value()));
  }
  if (!(latency.value() >= 0)) {
    throw std::invalid_argument("latency must be 0 or more" + found(latency.value()));
  }
}

}  // namespace

Seconds ring_all_reduce_time(Bytes buffer, int ranks, BytesPerSecond rate, Seconds latency) {
  check(buffer, ranks, rate, latency);
  return 2.0 * (ranks - 1) * (latency + buffer / ranks / rate);
}

Seconds ring_all_gather_time(Bytes contribution, int ranks, BytesPerSecond rate, Seconds latency) {
  check(contribution, ranks, rate, latency);
  return static_cast<double>(ranks - 1) * (latency + contribution / rate);
}

Seconds ring_reduce_scatter_time(Bytes input, int ranks, BytesPerSecond rate, Seconds latency) {
  check(input, ranks, rate, latency);
  return static_cast<double>(ranks - 1) * (latency + input / ranks / rate);
}

Seconds direct_all_to_all_time(Bytes sent, int ranks, BytesPerSecond rate, Seconds latency) {
  check(sent, ranks, rate, latency);
  return latency + sent * (static_cast<double>(ranks - 1) / ranks) / rate;
}

Seconds one_shot_all_reduce_time(Bytes buffer, int ranks, BytesPerSecond rate, Seconds latency) {
  check(buffer, ranks, rate, latency);
  return latency + buffer * static_cast<double>(ranks - 1) / rate;
}

Seconds pipelined_broadcast_time(Bytes buffer, int ranks, BytesPerSecond rate, Seconds latency) {
  check(buffer, ranks, rate, latency);
  return static_cast<double>(ranks - 1) * latency + buffer / rate;
}

}  // namespace orrery
