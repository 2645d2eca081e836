#include "kernels/execute/rank_team.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <utility>

#include "kernels/cuda/devices.h"

namespace orrery {
namespace {

// How long a thread tries before it sleeps, since one that sleeps wakes up 40 to 60 us late
// (measured on an H200 host): a rank, longer than a serving loop takes between two steps; who waits
// for the ranks, longer than a step.
constexpr std::chrono::milliseconds kIdle{2};
constexpr std::chrono::seconds kJoin{1};

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Until `value` is no longer `old`; sleeps after `time`.
template <typename T>
void wait_for_change(const std::atomic<T>& value, T old, std::chrono::steady_clock::duration time) {
  constexpr int kTries = 64;  // between looks at the clock
  const auto end = std::chrono::steady_clock::now() + time;
  do {
    for (int i = 0; i < kTries; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  value.wait(old, std::memory_order_acquire);
}

void check_devices(const std::vector<int>& devices) {
  const int count = cuda::device_count();
  if (devices.empty()) throw std::invalid_argument("no devices, expected one for each rank");
  if (static_cast<int>(devices.size()) > count) {
    throw std::invalid_argument("a plan on " + std::to_string(devices.size()) +
                                " ranks needs as many GPUs, there are " + std::to_string(count));
  }
  for (const int device : devices) {
    if (device < 0 || device >= count) {
      throw std::invalid_argument("no GPU " + std::to_string(device) + "; there are " +
                                  std::to_string(count));
    }
    if (std::ranges::count(devices, device) != 1) {
      throw std::invalid_argument("GPU " + std::to_string(device) + " is named twice");
    }
  }
}

}  // namespace

RankTeam::RankTeam(std::vector<int> ranks, std::vector<int> devices)
    : ranks_(std::move(ranks)), devices_(std::move(devices)) {
  check_devices(devices_);
  threads_.reserve(devices_.size());
  for (std::size_t place = 0; place < devices_.size(); ++place) {
    threads_.emplace_back([this, place] { serve(place); });
  }
}

RankTeam::~RankTeam() {
  stops_.store(true, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
}

void RankTeam::serve(std::size_t place) {
  const int rank = ranks_[place];
  try {
    ORRERY_CUDA(cudaSetDevice(devices_[place]));
  } catch (...) {  // thrown by the next run()
    fail(std::current_exception());
  }
  for (std::uint32_t round = 0;; ++round) {
    wait_for_change(round_, round, kIdle);
    if (stops_.load(std::memory_order_relaxed)) return;
    try {
      (*work_)(rank);
    } catch (const RankAbandoned&) {
      assert(failed());  // the one that failed has said why
    } catch (...) {      // carried to the caller's thread
      fail(std::current_exception());
    }
    if (num_busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) num_busy_.notify_all();
  }
}

void RankTeam::fail(std::exception_ptr error) {
  const std::scoped_lock lock(mutex_);
  if (!error_) error_ = std::move(error);
  failed_.store(true, std::memory_order_relaxed);
}

std::exception_ptr RankTeam::error() {
  const std::scoped_lock lock(mutex_);
  return error_;
}

void RankTeam::start_and_join(const std::function<void(int rank)>& work) {
  if (failed()) {
    throw_error();
    throw std::runtime_error("a rank failed before; the executor can run nothing more");
  }
  work_ = &work;
  num_busy_.store(size(), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (int busy = size(); busy != 0; busy = num_busy_.load(std::memory_order_acquire)) {
    wait_for_change(num_busy_, busy, kJoin);
  }
}

void RankTeam::run(const std::function<void(int rank)>& work) {
  start_and_join(work);
  if (failed()) throw_error();
}

// What failed, once: of a Ctrl-C between two runs the second one tells.
void RankTeam::throw_error() {
  const std::scoped_lock lock(mutex_);
  if (error_ && !std::exchange(is_thrown_, true)) std::rethrow_exception(error_);
}

void RankTeam::run_apart(const std::function<void(int rank)>& work) {
  start_and_join(work);
  if (!failed()) return;
  const std::scoped_lock lock(mutex_);
  failed_.store(false, std::memory_order_relaxed);
  std::rethrow_exception(std::exchange(error_, nullptr));
}

void RankTeam::wait(const cuda::OrderEvent& event) const {
  wait_until([&] {
    const cudaError_t code = cudaEventQuery(event.get());
    if (code != cudaErrorNotReady) ORRERY_CUDA(code);
    return code == cudaSuccess;
  });
}

void RankTeam::wait_until(const std::function<bool()>& is_done) const {
  while (!is_done()) {
    if (failed()) throw RankAbandoned();
    pause();
  }
}

}  // namespace orrery
