#include "kernels/calibrate/gpu_timer.h"

#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <thread>
#include <utility>

#include "kernels/cuda/launch.h"
#include "kernels/harness/measure.h"
#include "kernels/harness/today.h"
#include "kernels/kernel_spec.h"

namespace orrery::calibrate {
namespace {

using Clock = std::chrono::steady_clock;

Seconds since(Clock::time_point begin) {
  return Seconds(std::chrono::duration<double>(Clock::now() - begin).count());
}

// Of the current device, if the driver's management library knows it.
std::optional<cuda::Board> current_board() {
  int device = 0;
  ORRERY_CUDA(cudaGetDevice(&device));
  try {
    return cuda::Board::of_device(device);
  } catch (const std::runtime_error&) {
    return std::nullopt;  // facts() says so
  }
}

// 13000 as "13.0".
std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

GpuTimer::GpuTimer() : monitor_(current_board()) {}

std::vector<Fact> GpuTimer::facts(const std::string& revision) const {
  const std::optional<cuda::Board>& board = monitor_.board();
  int driver = 0;
  int runtime = 0;
  ORRERY_CUDA(cudaDriverGetVersion(&driver));
  ORRERY_CUDA(cudaRuntimeGetVersion(&runtime));
  std::vector<Fact> found = {
      {.name = "device_name", .value = cuda::device_properties().name, .must_match = true},
      {.name = "driver",
       .value = board ? board->driver() : "for CUDA " + version_text(driver),
       .must_match = true},
      {.name = "cuda", .value = version_text(runtime), .must_match = true},
      {.name = "revision", .value = revision, .must_match = true},
      {.name = "date", .value = today()}};
  if (board) {
    found.push_back({.name = "sm_clock_mhz_max",
                     .value = std::to_string(static_cast<int>(board->max_sm_clock_mhz()))});
    found.push_back({.name = "power_limit_w",
                     .value = std::to_string(static_cast<int>(board->power_limit_watts()))});
  } else {
    found.push_back({.name = "nvml", .value = "not available: no clocks, power or throttling"});
  }
  return found;
}

// What ran before may have brought the board to its power limit, which lowers the clock for tens of
// milliseconds: after a rest a short call runs at its own.
Row GpuTimer::measure_rested(KernelCase& kernel_case, const KernelOp& op, State state) {
  constexpr int kTries = 3;
  constexpr double kFullClock = 0.98;
  constexpr std::chrono::milliseconds kRest{80};
  Row best = measure_state(kernel_case, op, state);
  const double full = monitor_.board() ? kFullClock * monitor_.board()->max_sm_clock_mhz() : 0;
  for (int i = 1; i < kTries && best.power_capped && best.sm_clock_mhz < full; ++i) {
    std::this_thread::sleep_for(kRest);
    Row next = measure_state(kernel_case, op, state);
    if (next.time < best.time) best = std::move(next);
  }
  return best;
}

Row GpuTimer::measure_state(KernelCase& kernel_case, const KernelOp& op, State state) {
  constexpr Seconds kGpuTime{0.03};
  constexpr int kMinSamples = 5;
  ClockState clocks;
  const MeasureOptions options{.l2 = state.l2,
                               .mode = state.mode,
                               .min_samples = kMinSamples,
                               .budget = kGpuTime,
                               .keep_sample = [&] {
                                 clocks = monitor_.clocks();
                                 return !clocks.is_throttled;
                               }};
  const Measurement measured = measure(kernel_case, options);
  return {.op = op,
          .state = state,
          .time = measured.median,
          .spread = measured.spread,
          .samples = measured.samples,
          .discarded = measured.discarded,
          .sm_clock_mhz = clocks.sm_mhz,
          .power_capped = clocks.is_power_capped};
}

// The energy counter moves in steps, so the window runs from one step to another. Of the launches
// it is known within some milliseconds how many were finished at a step.
std::optional<Sustained> GpuTimer::measure_power(KernelCase& kernel_case) {
  constexpr Seconds kSettle{0.1};  // clocks follow the power within some tens of ms
  constexpr Seconds kWindow{0.3};
  constexpr Seconds kGiveUp{1.5};
  const Clock::time_point begin = Clock::now();
  struct Mark {
    EnergyStep step;
    Seconds at;  // of the count
    std::int64_t launches = 0;
  };
  std::optional<Mark> first;
  std::optional<Mark> last;
  std::optional<EnergyStep> known;
  run_sustained(kernel_case, [&](std::int64_t launches) {
    const Seconds now = since(begin);
    const std::optional<EnergyStep> step = monitor_.energy();
    const bool is_new = step && (!known || step->at != known->at);
    known = step;
    if (now >= kSettle && is_new) {
      const Mark mark{.step = *step, .at = now, .launches = launches};
      if (!first) {
        first = mark;
      } else if (now - first->at >= kWindow) {
        last = mark;
      }
    }
    return !last && now < kGiveUp;
  });
  if (!last) return std::nullopt;
  const double seconds = std::chrono::duration<double>(last->step.at - first->step.at).count();
  return Sustained{
      .power = Watts((last->step.joules - first->step.joules) / seconds),
      .time = (last->at - first->at) / static_cast<double>(last->launches - first->launches)};
}

std::vector<Row> GpuTimer::time_point(const KernelOp& op, std::span<const State> states,
                                      bool power) {
  Clock::time_point begin = Clock::now();
  std::vector<Row> rows;
  const auto refuse = [&](const char* why) {
    rows.clear();
    for (const State state : states) rows.push_back({.op = op, .state = state, .refusal = why});
    rows.front().cost = since(begin);
  };
  try {
    const Work work = work_of(op);
    const auto kernel_case = gpu_kernel(op.kernel).make_case(
        op, {.sets = sets_for(work.bytes_read + work.bytes_written)});
    for (const State state : states) {
      rows.push_back(measure_rested(*kernel_case, op, state));
      if (power && rows.size() == 1) rows.back().sustained = measure_power(*kernel_case);
      rows.back().cost = since(begin);
      begin = Clock::now();
    }
  } catch (const cuda::Error& error) {
    if (error.code() != cudaErrorMemoryAllocation) throw;
    refuse("out of memory");
  } catch (const std::invalid_argument& error) {  // the kernel does not take it
    refuse(error.what());
  } catch (const std::runtime_error& error) {  // a library does not
    refuse(error.what());
  }
  return rows;
}

}  // namespace orrery::calibrate
