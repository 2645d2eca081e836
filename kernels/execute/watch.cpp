#include "kernels/execute/watch.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "kernels/execute/interrupt.h"
#include "kernels/kernel_spec.h"

namespace orrery {
namespace {

constexpr std::chrono::milliseconds kPeriod{5};
// Ranks that have been told to stop leave the call they are in; then their communicators are
// aborted.
constexpr Seconds kLeave{0.2};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Whether `is_true` becomes true within `time`.
template <typename Predicate>
bool comes_true(Seconds time, const Predicate& is_true) {
  const double end = now() + time.value();
  while (!is_true()) {
    if (now() > end) return false;
    std::this_thread::sleep_for(kPeriod);
  }
  return true;
}

std::string status_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return failure_status(known);
  }
}

std::string seconds(Seconds time) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f s", time.value());
  return text;
}

}  // namespace

RankError stall_error(std::span<const RankPlace> ranks, Seconds taken, RunPhase phase) {
  const std::string name = "phase " + std::string(to_text(phase));
  // A thread that is stuck keeps its GPU from going on, so it comes first.
  const auto later = [](const RankPlace& a, const RankPlace& b) {
    if (a.phase != b.phase) return a.phase == RankPhase::kEnqueueing;
    return a.progress < b.progress;
  };
  std::vector<int> busy;
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    if (ranks[static_cast<std::size_t>(rank)].phase != RankPhase::kIdle) busy.push_back(rank);
  }
  if (busy.empty()) return {0, {}, name + " has not ended after " + seconds(taken)};
  const auto state = [&](int rank) -> const RankPlace& {
    return ranks[static_cast<std::size_t>(rank)];
  };
  const int worst =
      *std::ranges::min_element(busy, [&](int a, int b) { return later(state(a), state(b)); });
  const bool is_thread = state(worst).phase == RankPhase::kEnqueueing;
  std::string message = std::string("its ") + (is_thread ? "thread" : "GPU") +
                        " has not gone on; " + name + " has taken " + seconds(taken);
  for (const int rank : busy) {
    if (rank == worst || state(rank).reached.empty()) continue;
    message += "; rank " + std::to_string(rank) + " waits in " + state(rank).reached;
  }
  return {worst, is_thread ? state(worst).op : state(worst).reached, message};
}

Seconds step_limit(const Plan& plan) {
  constexpr Seconds kLeast{3};
  constexpr FlopsPerSecond kFlops{5e13};
  constexpr BytesPerSecond kMemory{4e11};
  constexpr BytesPerSecond kLinks{2e10};
  Seconds limit = kLeast;
  for (OpId id = 0; id < static_cast<OpId>(plan.ops().size()); ++id) {
    const Op& op = plan.ops()[static_cast<std::size_t>(id)];
    Seconds time;
    if (const auto* kernel = std::get_if<KernelOp>(&op.body); kernel != nullptr) {
      const Work work = work_of(*kernel);
      time = work.flops / kFlops + (work.bytes_read + work.bytes_written) / kMemory;
    } else if (const auto* comm = std::get_if<CommOp>(&op.body); comm != nullptr) {
      time = comm->bytes_per_rank / kLinks;
    }
    limit += time * static_cast<double>(plan.multiplicity(id));
  }
  return limit;
}

Watch::Watch(Setup setup)
    : setup_(std::move(setup)),
      ranks_(std::make_unique<Rank[]>(static_cast<std::size_t>(setup_.num_ranks))),
      thread_([this](const std::stop_token& stop) { look(stop); }) {}

Watch::~Watch() = default;

void Watch::retire() {
  const std::scoped_lock lock(mutex_);
  is_retired_ = true;
}

template <typename Callback, typename... Arguments>
auto Watch::call(const Callback& callback, Arguments&&... arguments)
    -> decltype(callback(std::forward<Arguments>(arguments)...)) {
  using Result = decltype(callback(std::forward<Arguments>(arguments)...));
  const std::scoped_lock lock(mutex_);
  if (is_retired_ || !callback) return Result();
  return callback(std::forward<Arguments>(arguments)...);
}

void Watch::begin(Seconds limit, Seconds most, RunPhase phase) {
  if (setup_.heeds_signals) throw_if_interrupted();
  const bool is_new = !has_begun_ || phase_.load(std::memory_order_relaxed) != phase;
  has_begun_ = true;
  if (is_new && setup_.phase_begun) setup_.phase_begun(phase);
  phase_.store(phase, std::memory_order_relaxed);
  const double begun = now();
  limit_.store(limit.value(), std::memory_order_relaxed);
  begun_.store(begun, std::memory_order_relaxed);
  deadline_.store(begun + most.value(), std::memory_order_release);
}

void Watch::end() { deadline_.store(0, std::memory_order_release); }

void Watch::fail(std::exception_ptr error) {
  const std::scoped_lock lock(failure_mutex_);
  failure_ = std::move(error);
}

std::exception_ptr Watch::failure() {
  const std::scoped_lock lock(failure_mutex_);
  return failure_;
}

void Watch::look(const std::stop_token& stop) {
  std::uint64_t moves = 0;
  double last_move = 0;
  while (!stop.stop_requested()) {
    std::this_thread::sleep_for(kPeriod);
    const double deadline = deadline_.load(std::memory_order_acquire);
    const double time = now();
    if (const std::uint64_t found = num_moves(); found != moves) {
      moves = found;
      last_move = time;
    }
    const double since = std::max(last_move, begun_.load(std::memory_order_relaxed));
    const bool is_stalled =
        deadline != 0 && (time > deadline || time > since + limit_.load(std::memory_order_relaxed));
    const std::exception_ptr error = find_trouble(deadline != 0);
    if (error || is_stalled) {
      stop_ranks(stop, error);
      return;
    }
  }
}

std::exception_ptr Watch::find_trouble(bool is_in_step) {
  if (std::exception_ptr error = failure(); error) return error;
  const bool is_together = is_in_step && !is_apart(phase_.load(std::memory_order_relaxed));
  if (is_together) {
    if (std::exception_ptr error = call(setup_.first_error); error) return error;
  }
  if (setup_.heeds_signals && interrupt_signal() != nullptr) {
    try {
      throw_if_interrupted();
    } catch (const std::exception&) {
      return std::current_exception();
    }
  }
  return is_together ? call(setup_.find_problem) : nullptr;
}

std::exception_ptr Watch::stall(bool looks) {
  std::vector<RankPlace> states(static_cast<std::size_t>(setup_.num_ranks));
  for (int rank = 0; rank < setup_.num_ranks; ++rank) {
    const Rank& place = ranks_[static_cast<std::size_t>(rank)];
    RankPlace& state = states[static_cast<std::size_t>(rank)];
    state.phase = place.phase.load(std::memory_order_acquire);
    const std::string* const op = place.op.load(std::memory_order_acquire);
    if (state.phase == RankPhase::kEnqueueing) {
      if (op != nullptr) state.op = *op;
      state.progress = place.ops.load(std::memory_order_relaxed);
    }
    if (looks && state.phase == RankPhase::kWaiting) call(setup_.look_at, rank, state);
  }
  return std::make_exception_ptr(
      stall_error(states, Seconds(now() - begun_.load(std::memory_order_relaxed)),
                  phase_.load(std::memory_order_relaxed)));
}

std::uint64_t Watch::num_moves() const {
  std::uint64_t moves = 0;
  for (const Rank& rank : std::span(ranks_.get(), static_cast<std::size_t>(setup_.num_ranks))) {
    moves += rank.moves.load(std::memory_order_relaxed);
  }
  return moves;
}

bool Watch::is_enqueueing() const {
  return std::ranges::any_of(
      std::span(ranks_.get(), static_cast<std::size_t>(setup_.num_ranks)),
      [](const Rank& rank) { return rank.phase.load() == RankPhase::kEnqueueing; });
}

void Watch::stop_ranks(const std::stop_token& stop, std::exception_ptr error) {
  const bool is_stalled = !error;
  if (is_stalled) error = stall(false);
  std::atomic<bool> is_done{false};
  // By a thread of its own: asking a GPU or aborting may hang as the step does.
  std::thread worker([&, is_stalled] {
    if (is_stalled) {
      std::exception_ptr seen = stall(true);
      const std::scoped_lock lock(failure_mutex_);
      failure_ = std::move(seen);
    }
    call(setup_.fail, is_stalled ? failure() : error);
    static_cast<void>(comes_true(kLeave, [&] { return !is_enqueueing(); }));
    call(setup_.abort);
    is_done.store(true);
  });
  const bool have_stopped = comes_true(setup_.grace, [&] {
    return is_done.load() && (deadline_.load() == 0 || stop.stop_requested());
  });
  if (have_stopped && comes_true(setup_.teardown, [&] { return stop.stop_requested(); })) {
    worker.join();
    return;
  }
  if (is_stalled && failure()) error = failure();
  if (setup_.last_words) setup_.last_words(status_of(error));
  if (setup_.end_process) {
    setup_.end_process();
    worker.join();
  } else {
    std::_Exit(EXIT_FAILURE);
  }
}

}  // namespace orrery
