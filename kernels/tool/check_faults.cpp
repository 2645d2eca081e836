#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
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

// From the failure to the end of the process: what a user waits for at most, with the time that the
// driver takes to end a process that has contexts.
constexpr Seconds kMostSeconds{5.0};
constexpr const char* kOp = "layers.0.down_proj";

struct Case {
  std::string name;
  std::vector<std::string> options;  // after `execute DIR`
  int exit_code = 1;
  std::vector<std::string> says;  // parts of the output
  std::string status;             // how status.txt begins; empty: there is none
  bool has_results = true;        // lines in steps.csv
  std::string mark = kFaultMark;
  std::function<void(int process)> on_mark = [](int) {};
  std::vector<std::string> environment;
};

class FaultCheck {
 public:
  void check(const FaultDirectory& directory, const Case& fault) {
    const fs::path executed = directory.path() / "executed";
    fs::remove_all(executed);
    ChildRun run{.arguments = {"execute", directory.path().string()},
                 .environment = fault.environment,
                 .mark = fault.mark,
                 .on_mark = fault.on_mark};
    run.arguments.insert(run.arguments.end(), fault.options.begin(), fault.options.end());
    const ChildResult child = run_child(run);
    std::vector<std::string> faults;
    if (child.was_killed_by_limit) faults.push_back("did not end");
    if (!child.was_marked) faults.push_back("the failure did not come about");
    if (child.exit_code != fault.exit_code) {
      faults.push_back("exit code " + std::to_string(child.exit_code) + ", expected " +
                       std::to_string(fault.exit_code));
    }
    if (!fault.mark.empty() && child.after_mark > kMostSeconds) faults.push_back("too late");
    for (const std::string& part : fault.says) {
      if (child.output.find(part) == std::string::npos)
        faults.push_back("says no \"" + part + "\"");
    }
    const std::string status = read_text(executed / "status.txt");
    if (fault.status.empty() ? !status.empty() : !status.starts_with(fault.status)) {
      faults.push_back("status \"" + status + "\", expected \"" + fault.status + "…\"");
    }
    const std::string steps = read_text(executed / "steps.csv");
    if (fault.has_results && std::ranges::count(steps, '\n') < 2) faults.push_back("no results");
    report(fault, child, faults);
  }
  [[nodiscard]] CheckCount count() const { return count_; }

 private:
  void report(const Case& fault, const ChildResult& child, const std::vector<std::string>& faults) {
    ++(faults.empty() ? count_.passed : count_.failed);
    std::printf("%s fault %s", faults.empty() ? "ok  " : "FAIL", fault.name.c_str());
    if (!fault.mark.empty()) std::printf("  ended after %.2f s", child.after_mark.value());
    for (const std::string& text : faults) std::printf("  %s", text.c_str());
    std::printf("\n");
    if (!faults.empty()) std::printf("%s\n", child.output.c_str());
    std::fflush(stdout);
  }

  CheckCount count_;
};

std::string fail_option(int rank, const char* how, const char* op, int run) {
  return "rank=" + std::to_string(rank) + ",op=" + op + ",how=" + how +
         ",run=" + std::to_string(run);
}

// Faults of the last rank. An op of four layers comes four times in a step; a prefill step runs 22
// times before the others.
void check_rank_faults(FaultCheck& check, const FaultDirectory& directory, int num_ranks) {
  const int rank = num_ranks - 1;
  const std::string suffix = " on " + std::to_string(num_ranks) + " GPUs";
  const std::string named = "rank " + std::to_string(rank) + ", op " + kOp;
  const std::string status = "failed rank " + std::to_string(rank) + " op " + kOp;
  const auto options = [&](const char* how, const char* op, int run) {
    return std::vector<std::string>{"--no-trace", "--fail", fail_option(rank, how, op, run)};
  };
  const auto with_nccl = [](std::vector<std::string> all) {
    all.push_back("--only-nccl");
    return all;
  };
  constexpr int kInDecodes = 120;
  check.check(directory, {.name = "a rank that throws" + suffix,
                          .options = options("throw", kOp, kInDecodes),
                          .says = {named},
                          .status = status});
  check.check(directory, {.name = "a rank that throws before a graph" + suffix,
                          .options = options("throw", "graph", 3),
                          .says = {"rank " + std::to_string(rank)},
                          .status = "failed rank " + std::to_string(rank)});
  check.check(directory, {.name = "a rank whose thread hangs" + suffix,
                          .options = options("hang", kOp, kInDecodes),
                          .says = {"rank " + std::to_string(rank) + " op " + kOp},
                          .status = status});
  check.check(directory, {.name = "a rank whose thread hangs in its first step" + suffix,
                          .options = options("hang", kOp, 2),
                          .says = {"rank " + std::to_string(rank) + " op " + kOp},
                          .status = status,
                          .has_results = false});
  check.check(directory, {.name = "a rank whose GPU hangs" + suffix,
                          .options = options("stall", kOp, kInDecodes),
                          .says = {"rank " + std::to_string(rank)},
                          .status = "failed rank " + std::to_string(rank)});
  check.check(directory, {.name = "a rank that makes NaN" + suffix,
                          .options = options("nan", kOp, kInDecodes),
                          .says = {named + "#", "not finite"},
                          .status = status + "#",
                          .mark = kFaultMark});
  if (num_ranks == 1) return;
  check.check(directory, {.name = "a rank that throws, NCCL alone," + suffix,
                          .options = with_nccl(options("throw", kOp, kInDecodes)),
                          .says = {named},
                          .status = status});
  check.check(directory, {.name = "a rank whose thread hangs, NCCL alone," + suffix,
                          .options = with_nccl(options("hang", kOp, kInDecodes)),
                          .says = {"rank " + std::to_string(rank) + " op " + kOp},
                          .status = status});
  check.check(directory, {.name = "a call of NCCL that fails" + suffix,
                          .options = options("nccl", kOp, kInDecodes),
                          .says = {named, "invalid argument"},
                          .status = status});
}

// What becomes NaN before a layer of experts that is one kernel, in a step whose tokens nobody
// samples: the layer says so.
void check_faults_of_experts(FaultCheck& check, int num_ranks) {
  const FaultDirectory directory(FaultDirectory::OfExperts(), {.dp = num_ranks, .ep = num_ranks});
  const std::string rank = "rank " + std::to_string(num_ranks - 1);
  constexpr const char* kBefore = "layers.0.o_proj";
  check.check(
      directory,
      {.name = "a rank whose tokens have no scores on " + std::to_string(num_ranks) + " GPUs",
       .options = {"--no-trace", "--fail", fail_option(num_ranks - 1, "nan", kBefore, 2)},
       .says = {rank + ", op " + kBefore + "#", "not finite", "op layers.0.experts#", "scores of ",
                "are no numbers"},
       .status = "failed " + rank + " op " + kBefore + "#",
       .has_results = false});
}

// Of a rank with attention, then of one with FFNs, which wait for each other's rows.
void check_faults_of_sides(FaultCheck& check, const FaultDirectory& directory) {
  for (const auto& [rank, op] : {std::pair{0, "layers.0.o_proj"}, std::pair{1, kOp}}) {
    const std::string number = "rank " + std::to_string(rank);
    const std::string suffix =
        std::string(" with ") + (rank == 0 ? "attention" : "FFNs") + " alone";
    const std::string status = "failed " + number + " op " + op;
    const auto options = [rank = rank, op = op](const char* how, int run) {
      return std::vector<std::string>{"--no-trace", "--fail", fail_option(rank, how, op, run)};
    };
    constexpr int kInDecodes = 120;
    check.check(directory, {.name = "a rank that throws" + suffix,
                            .options = options("throw", kInDecodes),
                            .says = {number, op},
                            .status = status});
    check.check(directory, {.name = "a rank whose thread hangs" + suffix,
                            .options = options("hang", kInDecodes),
                            .says = {number + " op " + op},
                            .status = status});
    check.check(directory, {.name = "a rank that makes NaN" + suffix,
                            .options = options("nan", kInDecodes),
                            .says = {number + ", op " + op + "#", "not finite"},
                            .status = status + "#"});
  }
}

void check_signals(FaultCheck& check, const FaultDirectory& directory) {
  for (const auto& [signal, name] : {std::pair{SIGINT, "SIGINT"}, std::pair{SIGTERM, "SIGTERM"}}) {
    check.check(directory,
                {.name = name,
                 .options = {"--no-trace", "--repeats", "1000000", "--seconds", "30"},
                 .says = {std::string("stopped by ") + name},
                 .status = std::string("failed rank - op -: stopped by ") + name,
                 .mark = "1 of 3",
                 .on_mark = [signal = signal](int process) {
                   std::this_thread::sleep_for(std::chrono::seconds(1));  // it has results then
                   static_cast<void>(kill(process, signal));
                 }});
  }
  check.check(directory, {.name = "a process that is killed",
                          .options = {"--no-trace", "--fail", fail_option(0, "kill", kOp, 120)},
                          .exit_code = -SIGKILL,
                          .status = "unfinished: killed, or still running; it came to phase "});
}

void check_bad_input(FaultCheck& check, const FaultDirectory& directory, int num_gpus) {
  const auto bad = [](std::string name, std::vector<std::string> says) {
    return Case{.name = std::move(name),
                .exit_code = 2,
                .says = std::move(says),
                .has_results = false,
                .mark = ""};
  };
  Case no_gpu = bad("no GPU", {"no GPU to run on"});
  no_gpu.environment = {"CUDA_VISIBLE_DEVICES="};
  check.check(directory, no_gpu);
  Case no_fault = bad("an unknown fault", {"expected one of throw, hang"});
  no_fault.options = {"--fail", "rank=0,op=a,how=explode"};
  check.check(directory, no_fault);
  {
    const FaultDirectory wide({.tp = 2 * std::max(1, num_gpus)});
    Case few = bad("fewer GPUs than ranks", {"GPUs"});
    few.status = "failed rank - op -: ";
    check.check(wide, few);
  }
  directory.change_plans(" kernel silu_mul ", " kernel residual_mul ");
  check.check(directory,
              bad("an unknown kernel", {".plan: line ", "unknown kernel \"residual_mul\""}));
}

// All but a little of the first GPU is taken.
void check_memory_in_use(FaultCheck& check, const FaultDirectory& directory) {
  std::size_t free = 0;
  std::size_t total = 0;
  ORRERY_CUDA(cudaMemGetInfo(&free, &total));
  constexpr std::size_t kLeft = std::size_t{1} << 30;
  const cuda::DeviceBuffer<std::byte> taken(free - std::min(free, kLeft));
  check.check(directory, {.name = "GPU memory in use by others",
                          .options = {"--no-trace", "--num-kv-blocks", "65536"},
                          .says = {"rank 0", "free of", "others hold", "are needed: weights"},
                          .status = "failed rank 0 op -: ",
                          .has_results = false,
                          .mark = ""});
}

}  // namespace

CheckCount check_faults() {
  FaultCheck check;
  const int num_gpus = cuda::device_count();
  {
    const FaultDirectory directory({});
    if (num_gpus < 2) check_rank_faults(check, directory, 1);
    check_faults_of_experts(check, 1);
    check_signals(check, directory);
    check_memory_in_use(check, directory);
  }
  {
    const FaultDirectory directory({});
    check_bad_input(check, directory, num_gpus);
  }
  if (num_gpus < 2) {
    std::printf("skipped: faults among ranks need 2 GPUs, there is %d\n", num_gpus);
    return check.count();
  }
  const FaultDirectory directory({.tp = 2});
  check_rank_faults(check, directory, 2);
  check_faults_of_experts(check, 2);
  const FaultDirectory sides({.ffn_instances = 1});
  check_faults_of_sides(check, sides);
  return check.count();
}

}  // namespace orrery::tool
