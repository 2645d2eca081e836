#pragma once

// One persistent host thread per rank with its device current, so that a step is started on all
// ranks at once: launches on one rank may wait for those on another.

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/order_event.h"

namespace orrery {

// What a rank throws that gave up because another one failed; never the first error.
class RankAbandoned : public std::runtime_error {
 public:
  RankAbandoned() : std::runtime_error("another rank failed") {}
};

class RankTeam {
 public:
  // A thread for each of `ranks`, those that this process has, on the device of the same place.
  // Throws std::invalid_argument for a device that does not exist or is named twice.
  RankTeam(std::vector<int> ranks, std::vector<int> devices);
  ~RankTeam();
  RankTeam(const RankTeam&) = delete;
  RankTeam& operator=(const RankTeam&) = delete;
  [[nodiscard]] int size() const { return static_cast<int>(devices_.size()); }
  [[nodiscard]] const std::vector<int>& ranks() const { return ranks_; }
  // work(rank) in the thread of each rank; returns when all have, and throws what the first that
  // failed threw, or what was given to fail() since the last run. From then on failed() is true and
  // a further run() throws std::runtime_error. One caller at a time.
  void run(const std::function<void(int rank)>& work);
  // The same for work in which no rank waits for another (binding, allocating): all can go on after
  // an error.
  void run_apart(const std::function<void(int rank)>& work);
  // Whether a rank has failed: what waits for other ranks asks this meanwhile (any thread).
  [[nodiscard]] bool failed() const { return failed_.load(std::memory_order_relaxed); }
  // What the first that failed threw, or null (any thread).
  [[nodiscard]] std::exception_ptr error();
  // Makes failed() true, as if a rank had thrown `error` (any thread).
  void fail(std::exception_ptr error);
  // Returns once the GPU has passed `event`, by asking for it again and again (in under a
  // microsecond, where a blocking wait takes tens). Throws RankAbandoned when another rank fails
  // meanwhile, cuda::Error.
  void wait(const cuda::OrderEvent& event) const;
  // Returns once `is_done()`, which is asked again and again, is true: of what ranks of this team
  // tell each other. Throws RankAbandoned likewise.
  void wait_until(const std::function<bool()>& is_done) const;

 private:
  void serve(std::size_t place);
  void start_and_join(const std::function<void(int rank)>& work);
  void throw_error();

  std::vector<int> ranks_;
  std::vector<int> devices_;
  std::function<void(int)> const* work_ = nullptr;  // written before, read after round_ changes
  std::atomic<std::uint32_t> round_{0};
  std::atomic<int> num_busy_{0};
  std::atomic<bool> stops_{false};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::exception_ptr error_;           // the first; guarded by mutex_
  bool is_thrown_ = false;             // error_, to a caller; guarded by mutex_
  std::vector<std::jthread> threads_;  // last: they use the above
};

}  // namespace orrery
