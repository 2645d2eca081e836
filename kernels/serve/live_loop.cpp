#include "kernels/serve/live_loop.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace orrery {

LiveLoop::LiveLoop(const LiveClock& clock, std::size_t num_threads) : clock_(clock) {
  for (std::size_t i = 0; i < num_threads; ++i) workers_.push_back(std::make_unique<Worker>());
}

void LiveLoop::run(ServiceLoop& loop, std::span<const std::int64_t> arrivals,
                   const std::function<bool()>& is_stopped) {
  loop_ = &loop;
  num_requests_ = std::ssize(arrivals);
  {
    std::unique_lock lock(mutex_);
    keep_error([&] {
      loop.begin(arrivals);
      for (const auto& worker : workers_) {
        worker->thread = std::jthread([this, &at = *worker] { work_until_stopped(at); });
      }
      turn_until_done(lock, is_stopped);
    });
    stop();
  }
  for (const auto& worker : workers_) {
    if (worker->thread.joinable()) worker->thread.join();
  }
}

void LiveLoop::give(std::size_t thread, Work work) {
  if (is_stopped_) return;
  workers_[thread]->work.push_back(std::move(work));
  workers_[thread]->woken.notify_one();
}

void LiveLoop::work_until_stopped(Worker& worker) {
  std::unique_lock lock(mutex_);
  keep_error([&] {
    while (true) {
      worker.woken.wait(lock, [&] { return is_stopped_ || !worker.work.empty(); });
      if (is_stopped_) return;
      const Work work = std::move(worker.work.front());
      worker.work.pop_front();
      work();
      if (!error_) turn();
    }
  });
}

void LiveLoop::turn_until_done(std::unique_lock<std::mutex>& lock,
                               const std::function<bool()>& is_stopped) {
  while (true) {
    turn();
    if (is_stopped_ || loop_->num_finished() == num_requests_) return;
    wait(lock);
    const Unlocked unlocked(mutex_);
    if (is_stopped && is_stopped()) return;
  }
}

void LiveLoop::turn() {
  Seconds next = loop_->next();
  for (; next <= clock_.now(); next = loop_->next()) loop_->turn(next);
  const bool is_sooner = next < due_.load();
  due_ = next;
  if (is_sooner || loop_->num_finished() == num_requests_) changed_.notify_one();
}

void LiveLoop::wait(std::unique_lock<std::mutex>& lock) {
  constexpr Seconds kGlance(0.02);
  constexpr Seconds kCoarse(200e-6);  // sleeping is coarser than this
  const Seconds due = due_;
  const Seconds left = due - clock_.now();
  if (left > kCoarse) {
    const Seconds asleep = std::min(left - kCoarse, kGlance);
    changed_.wait_for(lock, std::chrono::duration<double>(asleep.value()));
    return;
  }
  const Unlocked unlocked(mutex_);
  while (clock_.now() < std::min(due, due_.load())) std::this_thread::yield();
}

void LiveLoop::stop() {
  is_stopped_ = true;
  for (const auto& worker : workers_) worker->woken.notify_one();
  changed_.notify_one();
}

template <typename Call>
void LiveLoop::keep_error(const Call& call) {
  try {
    call();
  } catch (...) {  // whoever started the run asks for it
    if (!error_) error_ = std::current_exception();
    stop();
  }
}

}  // namespace orrery
