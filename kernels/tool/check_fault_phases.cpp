#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/cuda/devices.h"
#include "kernels/execute/fault.h"
#include "kernels/tool/checks.h"
#include "kernels/tool/child_process.h"
#include "kernels/tool/fault_directory.h"

namespace orrery::tool {
namespace {

namespace fs = std::filesystem;

constexpr int kWatch = 8;  // seconds that a rank may stand still
// After the fault: the watch's time where a rank hangs, a second for ranks to stop and one to be
// taken down, and what a driver takes to end a process while others run.
constexpr Seconds kToEnd{6};

// A command on so many ranks, each of the phases with each of the faults.
struct Row {
  std::string_view command;
  int gpus = 1;
  bool prefill_apart = false;
  int rank = 0;  // that fails
  std::vector<std::string_view> phases;
  std::vector<std::string_view> kinds = {"throw", "hang", "kill"};
};

std::vector<Row> rows_for(int num_gpus) {
  std::vector<Row> rows = {{.command = "execute",
                            .phases = {"start", "weights", "prepare", "warm_up", "capture", "step",
                                       "results", "teardown"}},
                           {.command = "serve",
                            .phases = {"weights", "capture", "step", "results", "teardown"},
                            .kinds = {"throw", "hang"}},
                           {.command = "check", .phases = {"start", "call"}},
                           {.command = "calibrate", .phases = {"start", "call", "results"}}};
  if (num_gpus < 2) return rows;
  rows.push_back(
      {.command = "execute",
       .gpus = 2,
       .rank = 1,
       .phases = {"start", "communicators", "weights", "prepare", "warm_up", "capture", "step"}});
  rows.push_back({.command = "serve",
                  .gpus = 2,
                  .rank = 1,
                  .phases = {"communicators", "step"},
                  .kinds = {"throw", "hang"}});
  rows.push_back(
      {.command = "serve", .gpus = 2, .prefill_apart = true, .rank = 0, .phases = {"transfer"}});
  rows.push_back({.command = "serve",
                  .gpus = 2,
                  .prefill_apart = true,
                  .rank = 1,
                  .phases = {"weights", "step"},
                  .kinds = {"throw", "hang"}});
  return rows;
}

struct PhaseCase {
  Row row;
  std::string phase;
  std::string kind;
  std::string faults;  // what is wrong with how it ended; empty: nothing
  std::string output;
  Seconds took;
};

bool has_status(std::string_view command) { return command == "execute" || command == "serve"; }

std::vector<std::string> arguments_of(const PhaseCase& one, const fs::path& directory) {
  const std::string path = directory.string();
  std::vector<std::string> words;
  if (has_status(one.row.command)) {
    words = {std::string(one.row.command), path};
    if (one.row.command == "execute") words.push_back("--no-trace");
  } else if (one.row.command == "check") {
    words = {"check", "residual_add"};
  } else {
    write_file(directory / "ops", "residual_add bf16 tokens=8 hidden=512\n");
    words = {"calibrate", "-o", path + "/tables", "--ops", path + "/ops"};
  }
  words.insert(words.end(), {"--watch", std::to_string(kWatch), "--fail",
                             "rank=" + std::to_string(one.row.rank) + ",phase=" + one.phase +
                                 ",how=" + one.kind});
  return words;
}

// What the output has to say, and how the status begins.
struct Expected {
  int exit_code = 1;
  std::vector<std::string> says;
  std::string status;
};

Expected expected_of(const PhaseCase& one) {
  const std::string rank = "rank " + std::to_string(one.row.rank);
  // The program's own start comes before there is a place for results.
  const bool has_place = has_status(one.row.command) && (one.phase != "start" || one.row.rank > 0);
  if (one.kind == "kill") {
    return {.exit_code = -SIGKILL,
            .says = {},
            .status = has_place ? "unfinished: killed, or still running; it came to phase " : ""};
  }
  const std::string status = has_place ? "failed " + rank + " op " : "";
  if (one.kind == "throw") {
    return {.says = {rank, "in phase " + one.phase + ": " + kFaultMark}, .status = status};
  }
  return {.says = {"failed " + rank + " op ", "phase " + one.phase + " has taken"},
          .status = status};
}

void run_case(PhaseCase& one, const std::string& devices) {
  const FaultDirectory directory({.tp = one.row.prefill_apart ? 1 : one.row.gpus},
                                 one.row.prefill_apart);
  const ChildResult child = run_child({.arguments = arguments_of(one, directory.path()),
                                       .environment = {"CUDA_VISIBLE_DEVICES=" + devices},
                                       .mark = kFaultMark});
  const Expected expected = expected_of(one);
  const auto fault = [&](const std::string& text) { one.faults += "  " + text; };
  if (child.was_killed_by_limit) fault("did not end");
  if (!child.was_marked) fault("the failure did not come about");
  if (child.exit_code != expected.exit_code) {
    fault("exit code " + std::to_string(child.exit_code) + ", expected " +
          std::to_string(expected.exit_code));
  }
  for (const std::string& part : expected.says) {
    if (child.output.find(part) == std::string::npos) fault("says no \"" + part + "\"");
  }
  const std::string status = read_text(directory.path() / "executed" / "status.txt");
  if (expected.status.empty() ? !status.empty() : !status.starts_with(expected.status)) {
    fault("status \"" + status + "\", expected \"" + expected.status + "…\"");
  }
  const Seconds most = kToEnd + Seconds(one.kind == "hang" ? kWatch : 0);
  if (child.after_mark > most) fault("too late");
  one.took = child.after_mark;
  one.output = child.output;
}

// `jobs` at a time, each on the next GPUs.
void run_cases(std::vector<PhaseCase*> cases, int jobs, int num_gpus) {
  std::atomic<std::size_t> next{0};
  std::vector<std::jthread> threads;
  threads.reserve(static_cast<std::size_t>(jobs));
  for (int job = 0; job < jobs; ++job) {
    threads.emplace_back([&] {
      for (std::size_t i = next++; i < cases.size(); i = next++) {
        PhaseCase& one = *cases[i];
        try {
          run_case(one, one.row.gpus > 1 ? "0,1" : std::to_string(static_cast<int>(i) % num_gpus));
        } catch (const std::exception& error) {
          one.faults = std::string("  ") + error.what();
        }
      }
    });
  }
}

}  // namespace

CheckCount check_fault_phases() {
  const int num_gpus = cuda::device_count();
  std::vector<PhaseCase> cases;
  for (const Row& row : rows_for(num_gpus)) {
    for (const std::string_view phase : row.phases) {
      for (const std::string_view kind : row.kinds) {
        cases.push_back({.row = row, .phase = std::string(phase), .kind = std::string(kind)});
      }
    }
  }
  // Ranks that wait for each other want their GPUs at the same time: fewer of them at once.
  constexpr int kAlone = 8;
  constexpr int kTogether = 4;
  for (const int gpus : {1, 2}) {
    std::vector<PhaseCase*> some;
    for (PhaseCase& one : cases) {
      if (one.row.gpus == gpus) some.push_back(&one);
    }
    run_cases(std::move(some), gpus == 1 ? kAlone : kTogether, num_gpus);
  }
  CheckCount count;
  for (const PhaseCase& one : cases) {
    const bool passes = one.faults.empty();
    ++(passes ? count.passed : count.failed);
    std::printf("%s fault %-9s %d GPU%s%s rank %d %-13s %-5s ended after %5.2f s%s\n",
                passes ? "ok  " : "FAIL", std::string(one.row.command).c_str(), one.row.gpus,
                one.row.gpus > 1 ? "s" : " ", one.row.prefill_apart ? " apart" : "      ",
                one.row.rank, one.phase.c_str(), one.kind.c_str(), one.took.value(),
                one.faults.c_str());
    if (!passes) std::printf("%s\n", one.output.c_str());
  }
  if (num_gpus < 2) std::printf("skipped: faults among ranks need 2 GPUs, there is %d\n", num_gpus);
  return count;
}

}  // namespace orrery::tool
