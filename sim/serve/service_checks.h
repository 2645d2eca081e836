#pragma once

// What a service refuses before it starts. All throw std::invalid_argument that says what was found
// and what is expected.

#include <concepts>
#include <stdexcept>
#include <string>

#include "sim/serve/serve.h"

namespace orrery {

// 2^53 ns, about 104 days: up to here a double in seconds tells nanoseconds apart, so what a
// request takes is not lost beside when it came.
constexpr Seconds kLongestSpan(9007199.254740992);
// What is wrong with an arrival so long after the first.
std::string too_late(Seconds arrival);

// Throws unless `holds`.
void require(bool holds, const std::string& message);
// The same where it is asked of each request: the message is made for those that are refused alone.
template <std::invocable Message>
void require(bool holds, const Message& message) {
  if (!holds) throw std::invalid_argument(message());
}
// The tiers behind the KV blocks: their settings, and that each has room for any request's prefix.
void check_kv_tiers(const ServiceConfig& config, const Workload& workload);
// Settings, and what the workload asks of them.
void check_service(const ServiceConfig& config, const Workload& workload);
// The same, and each request: that its arrival is in order and that it can ever run.
void check_requests(const Workload& workload, const ServiceConfig& config);

}  // namespace orrery
