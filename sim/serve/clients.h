#pragma once

// Who sends which request when: at its arrival, or in a closed loop when a client has its answer;
// and turns of sessions, each after the answer of the one before.
//
// Not thread safe.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <span>
#include <utility>
#include <vector>

#include "sim/serve/serve.h"
#include "sim/units/units.h"

namespace orrery {

class Clients {
 public:
  // `workload` outlives it.
  explicit Clients(const Workload& workload) : workload_(workload) {}

  // `arrivals`: indices of the requests to send, ascending, all turns of a session or none. In a
  // closed loop the first `closed_loop_concurrency` requests or sessions begin at 0.
  void begin(std::span<const std::int64_t> arrivals);
  // When the next request is sent; kNever: none until another is answered.
  [[nodiscard]] Seconds next() const;
  // The request that is sent then. REQUIRES: next() < kNever.
  std::int64_t send();
  // The client has the last token of request `idx` at `now`.
  void answer(std::int64_t idx, Seconds now);
  // How many have been sent.
  [[nodiscard]] std::int64_t num_sent() const { return num_sent_; }

 private:
  using Due = std::pair<Seconds, std::int64_t>;

  [[nodiscard]] const Request& request(std::int64_t idx) const {
    return workload_.requests[static_cast<std::size_t>(idx)];
  }
  [[nodiscard]] bool is_closed() const { return workload_.closed_loop_concurrency > 0; }
  // When the next of `firsts_` is sent.
  [[nodiscard]] Seconds next_first() const;

  const Workload& workload_;
  std::span<const std::int64_t> firsts_;  // those that no other one comes before
  std::vector<std::int64_t> own_firsts_;  // of sessions
  std::size_t next_ = 0;                  // into firsts_
  std::int64_t num_sent_ = 0;
  std::priority_queue<Seconds, std::vector<Seconds>, std::greater<>> free_;  // of a closed loop
  std::priority_queue<Due, std::vector<Due>, std::greater<>> turns_;         // later ones
};

}  // namespace orrery
