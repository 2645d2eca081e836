#include <cuda_runtime_api.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <functional>
#include <set>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/comm/all_reduce/choice.h"
#include "kernels/comm/processes/sent_text.h"
#include "kernels/comm/processes/socket_processes.h"
#include "kernels/cuda/devices.h"
#include "kernels/execute/executor.h"
#include "kernels/experts/fused_moe/ranks.h"
#include "kernels/tool/arguments.h"
#include "kernels/tool/checks.h"
#include "kernels/tool/child_process.h"
#include "kernels/tool/commands.h"
#include "kernels/tool/peer_report.h"
#include "kernels/tool/persistent_moe.h"

namespace orrery::tool {
namespace {

constexpr std::string_view kAll = "all";
constexpr std::string_view kKilledBefore = "killed-before";  // its first launch
constexpr std::string_view kKilledAmid = "killed-amid";      // replays of all
constexpr std::string_view kSteps = "steps";                 // of a small model
constexpr const char* kReady = "about to replay";

// --- a rank --------------------------------------------------------------------------------------

// A rank's report as it goes to the others: of its differences one, which fails if any does.
struct SentReport {
  bool has_difference = false;
  double error = 0;
  double bound = 0;
  SentText<64> difference;
  SentText<240> faults;
};

SentReport sent(const FusedMoeReport& report) {
  SentReport result;
  std::string faults;
  for (const std::string& fault : report.faults) faults += (faults.empty() ? "" : ", ") + fault;
  result.faults = faults;
  if (report.differences.empty()) return result;
  auto worst =
      std::ranges::find_if(report.differences, [](const Difference& one) { return !one.passes(); });
  if (worst == report.differences.end()) {
    worst = std::ranges::max_element(report.differences, {}, &Difference::error);
  }
  result.has_difference = true;
  result.error = worst->error;
  result.bound = worst->bound;
  result.difference = worst->what;
  return result;
}

// Of all ranks.
FusedMoeReport merged(const ProcessGroup& processes, const FusedMoeReport& report) {
  const SentReport own = sent(report);
  std::vector<SentReport> all(static_cast<std::size_t>(processes.size));
  processes.all_gather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)));
  FusedMoeReport result{.what = report.what + ", processes"};
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const SentReport& of = all[rank];
    if (of.has_difference) {
      result.differences.push_back(
          {.what = std::string(of.difference.view()), .error = of.error, .bound = of.bound});
    }
    if (!of.faults.view().empty()) {
      result.faults.push_back("rank " + std::to_string(rank) + ": " +
                              std::string(of.faults.view()));
    }
  }
  return result;
}

// --- the process that starts them ----------------------------------------------------------------

// A process for each rank, rank by rank; of one that could not be started the output says why.
std::vector<ChildResult> run_processes(int size, std::string_view name,
                                       const std::function<void(int process)>& on_last_ready) {
  constexpr Seconds kLongest{600};
  SocketHub hub(size, /*limit=*/Seconds(120));
  std::vector<ChildResult> results(static_cast<std::size_t>(size));
  std::vector<std::jthread> threads;
  threads.reserve(results.size());
  for (int rank = 0; rank < size; ++rank) {
    ChildRun run{.arguments = {"fused_moe_process", std::to_string(rank), std::to_string(size),
                               std::string(name)},
                 .environment = {},
                 .mark = name == kAll || name == kSteps ? "" : kReady,
                 .limit = kLongest,
                 .socket = hub.take_socket(rank)};
    if (rank == size - 1) run.on_mark = on_last_ready;
    threads.emplace_back([run, &result = results[static_cast<std::size_t>(rank)]] {
      try {
        result = run_child(run);
      } catch (const std::exception& error) {
        result = {.exit_code = 1, .output = error.what()};
      }
    });
  }
  threads.clear();  // joins them
  return results;
}

std::string end_of(const ChildResult& child) {
  if (child.was_killed_by_limit) return "did not end";
  if (child.exit_code < 0) return "ended by signal " + std::to_string(-child.exit_code);
  return "exit code " + std::to_string(child.exit_code);
}

void count_result(CheckCount& count, const std::string& what,
                  const std::vector<std::string>& faults,
                  const std::vector<ChildResult>& children) {
  ++(faults.empty() ? count.passed : count.failed);
  std::printf("%s %s", faults.empty() ? "ok  " : "FAIL", what.c_str());
  for (const std::string& fault : faults) std::printf("  %s", fault.c_str());
  std::printf("\n");
  for (std::size_t rank = 0; rank < children.size() && !faults.empty(); ++rank) {
    std::printf("rank %zu: %s\n", rank, children[rank].output.c_str());
  }
  std::fflush(stdout);
}

// Rank 0 has printed a line per case.
void check_all(int size, CheckCount& count) {
  const std::vector<ChildResult> children = run_processes(size, kAll, [](int) {});
  int cases = 0;
  std::istringstream lines(children.front().output);
  for (std::string line; std::getline(lines, line);) {
    const bool passes = line.starts_with("ok  ");
    if (!passes && !line.starts_with("FAIL")) continue;
    std::printf("%s\n", line.c_str());
    ++cases;
    ++(passes ? count.passed : count.failed);
  }
  std::vector<std::string> faults;
  for (std::size_t rank = 0; rank < children.size(); ++rank) {
    if (children[rank].exit_code == 0 && !children[rank].was_killed_by_limit) continue;
    faults.push_back("rank " + std::to_string(rank) + ": " + end_of(children[rank]));
  }
  if (cases == 0) faults.emplace_back("no case was run");
  count_result(count, "fused_moe " + std::to_string(size) + " processes end", faults, children);
}

std::string steps_line(const ProcessGroup& processes) {
  std::string line = "tokens";
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    for (const std::int32_t token : tokens_of_persistent_moe(processes, dtype)) {
      line += " " + std::to_string(token);
    }
  }
  return line;
}

// Steps of a small model on two processes sample the tokens that they do in one.
void check_steps(CheckCount& count) {
  const std::vector<ChildResult> children = run_processes(2, kSteps, [](int) {});
  std::vector<std::string> faults;
  try {
    const std::string expected = steps_line(ProcessGroup{});
    for (std::size_t rank = 0; rank < children.size(); ++rank) {
      if (children[rank].output.find(expected + "\n") != std::string::npos) continue;
      faults.push_back("rank " + std::to_string(rank) + ": " + end_of(children[rank]) +
                       ", expected " + expected);
    }
  } catch (const std::exception& error) {
    faults.emplace_back(error.what());
  }
  count_result(count, "fused_moe 2 processes, steps of a small model", faults, children);
}

// The last rank is killed; the others say so and end by themselves.
void check_killed(int size, std::string_view name, CheckCount& count) {
  // What kernels wait for, and the time that the driver takes to end processes with contexts.
  constexpr Seconds kMost{5};
  const std::string lost = "rank " + std::to_string(size - 1);
  const std::vector<ChildResult> children = run_processes(size, name, [&](int process) {
    if (name == kKilledAmid) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    static_cast<void>(kill(process, SIGKILL));
  });
  std::vector<std::string> says = {"fused_moe: waited in vain for ", lost + " has ended"};
  if (name == kKilledBefore) says.push_back("the counts of " + lost);
  std::vector<std::string> faults;
  Seconds longest{0};
  for (int rank = 0; rank < size; ++rank) {
    const ChildResult& child = children[static_cast<std::size_t>(rank)];
    const auto fault = [&](const std::string& text) {
      faults.push_back("rank " + std::to_string(rank) + ": " + text);
    };
    if (!child.was_marked) fault("came to no replay");
    if (rank == size - 1) {
      if (child.exit_code != -SIGKILL) fault(end_of(child) + ", expected to be killed");
      continue;
    }
    longest = std::max(longest, child.after_mark);
    if (child.exit_code != 1 || child.was_killed_by_limit) {
      fault(end_of(child) + ", expected exit code 1");
    }
    if (child.after_mark > kMost) fault("too late");
    if (child.output.find(kWaitedTooLong) != std::string::npos) fault("a launch took too long");
    for (const std::string& part : says) {
      if (child.output.find(part) == std::string::npos) fault("says no \"" + part + "\"");
    }
  }
  char time[64];
  std::snprintf(time, sizeof(time), ", others ended after %.2f s", longest.value());
  count_result(count,
               "fused_moe " + std::to_string(size) + " processes, one killed " +
                   (name == kKilledBefore ? "before it launches" : "amid replays") + time,
               faults, children);
}

}  // namespace

CheckCount check_fused_moe_processes() {
  CheckCount count;
  const int gpus = std::min(cuda::device_count(), kMaxRanks);
  if (gpus < 2) {
    std::printf("skipped: needs two GPUs, there is %d\n", gpus);
    return count;
  }
  check_steps(count);
  for (const int size : std::set<int>{2, gpus}) {
    check_all(size, count);
    check_killed(size, kKilledBefore, count);
    check_killed(size, kKilledAmid, count);
  }
  return count;
}

int fused_moe_process(std::span<const std::string_view> arguments) {
  if (arguments.size() != 3) {
    throw std::invalid_argument(
        "fused_moe_process: expected RANK RANKS CASE, as check "
        "fused_moe_processes gives them");
  }
  const int size = Value{.name = "RANKS", .text = arguments[1]}.small(2, kMaxRanks);
  const int rank = Value{.name = "RANK", .text = arguments[0]}.small(0, size - 1);
  const std::string_view name = arguments[2];
  if (name != kAll && name != kSteps && name != kKilledBefore && name != kKilledAmid) {
    throw std::invalid_argument("fused_moe_process: no case \"" + std::string(name) + "\"");
  }
  set_execute_environment();
  const SocketProcesses processes(kChildSocket, rank, size);
  require_gpu();
  ORRERY_CUDA(cudaSetDevice(rank));
  if (name == kAll) {
    check_fused_moe_process(processes.group(), rank, [&](const FusedMoeReport& report) {
      const FusedMoeReport all = merged(processes.group(), report);
      if (rank == 0) print_report(all);
    });
    return 0;
  }
  if (name == kSteps) {
    std::printf("%s\n", steps_line(processes.group()).c_str());
    return 0;
  }
  const bool launches = name == kKilledAmid || rank != size - 1;
  replay_until_rank_is_lost(processes.group(), rank, launches, [] {
    std::printf("%s\n", kReady);
    std::fflush(stdout);
  });
  return 0;
}

}  // namespace orrery::tool
