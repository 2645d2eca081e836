// orrery-gpu: the GPU side as one program, with neither the simulator nor Python.

#include <cstdio>
#include <exception>
#include <span>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "kernels/tool/commands.h"
#include "kernels/tool/processes.h"

namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

struct Command {
  std::string_view name;
  int (*run)(std::span<const std::string_view> arguments);
};

constexpr Command kCommands[] = {
    {"check", orrery::tool::check},
    {"time", orrery::tool::time},
    {"calibrate", orrery::tool::calibrate},
    {"execute", orrery::tool::execute},
    {"serve", orrery::tool::serve},
    {"moe_trace", orrery::tool::moe_trace},
    {"megakernel", orrery::tool::megakernel},
    {"fused_moe_process", orrery::tool::fused_moe_process},
};

constexpr const char* kUsage = R"(usage:
  orrery-gpu check [KERNEL…] [--cases TEXT]
                                  compare each kernel with its double-precision reference, in calls with TEXT in them
  orrery-gpu check [KERNEL…] --small [--work N] [--list]
                                  only a few small calls that launch all that the host of a kernel may choose, which
                                  --list prints; --calls FILE: only those printed before; --once: no tile is lost;
                                  --seconds S: no call begins later
  orrery-gpu check collectives    the same for communication among the GPUs here
  orrery-gpu check fused_moe_ranks | fused_moe_processes
                                  a layer of experts as one kernel over several GPUs: ranks of this process, and
                                  processes that it starts, one of which it kills
  orrery-gpu check execute        steps of small models beside a double-precision reference
  orrery-gpu check moe            the same of mixtures of experts, in all designs
  orrery-gpu check moe_layers     their layers by themselves
  orrery-gpu check loading        first launches of library kernels, which must not wait for the GPU
  orrery-gpu check faults         how runs end when a rank fails, memory is short, or the input is bad
  orrery-gpu check fault_phases   the same of every command in every phase, some minutes
  orrery-gpu check memory         memory of a deployment against its prediction
  orrery-gpu check host_tier      KV blocks that go to the host's memory and come back
  orrery-gpu check disaggregated  KV caches between instances that split a model alike or unlike
  orrery-gpu check trace          whether each kernel and copy is recorded (needs CUPTI)
  orrery-gpu time [KERNEL…]       time the benchmark shapes of kernels
  orrery-gpu time launch          the costs of launching
  orrery-gpu time trace           what recording each kernel costs (needs CUPTI)
  orrery-gpu time memory          device memory that contexts, libraries, graphs and communicators take
  orrery-gpu time host_link       KV blocks from the host's memory and to it: the rates of a tier
  orrery-gpu time probes          these, streams, events and clocks
  orrery-gpu time corun [LOAD]    pairs of loads side by side
  orrery-gpu time collectives | links | kv_transfer | hops [--gpus N[,N…]] [-o DIR]
                                  communication among GPUs
  orrery-gpu calibrate -o DIR [--kernels A,B] [--quick | --budget SECONDS] [--check [--shapes N] [--seed N]]
                       [--ops FILE] [--device N] [--revision TEXT] [--fresh]
                                  time kernels into tables under DIR, and into DIR/device what launches, clocks and the
                                  power limit cost; a run that was stopped goes on;
                                  --check judges the tables by shapes that they do not hold;
                                  --ops times the calls in FILE alone, one a line: gemm bf16 m=64 n=512 k=512;
                                  those that --budget leaves time for, from the first on
  orrery-gpu execute DIR [--gpus N] [--only NAME,…] [--repeats N] [--seconds S] [--num-kv-blocks N] [--only-nccl]
                     [--trace | --trace-only NAME,… | --no-trace] [--check-finite]
                     [--late US[:US] [--who last|all] [--jitter supercomputer|vm]]
                                  run the steps that `orrery validate --plan-only` wrote, and the layers of experts by
                                  themselves, each N times (20) within S seconds (2), and once more to say when each op
                                  ran; writes DIR/executed; --late makes the last rank, each, or one that is drawn come
                                  late to each layer, and behind the colon to the exchange that brings results back;
                                  --check-finite looks at what each op writes; for tests: --fail
                                  rank=R,op=NAME,how=throw|hang|stall|kill|nan|nccl[,run=N]
  Of check, calibrate, execute, serve: --watch S  a phase ends the run when a rank stands still S seconds in it
                                  (each has its own limit); for tests: --fail rank=R,phase=NAME,how=throw|hang|kill
  orrery-gpu moe_trace -o DIR [--tokens N[,N…]] [--hidden N] [--ffn N] [--experts N] [--topk N] [--shared N]
                       [--dtype bf16|fp8] [--activation swiglu|gelu|relu] [--gpus N]
                                  when the blocks of a layer of experts that is one kernel did what, tokens on each GPU: a file for
                                  each number of them, for orrery trace layer
  orrery-gpu megakernel [--model NAME] [--check] [--schedule NAME] [--instructions DIRECTORY] [--watch S]
                                  decode steps of small, llama-3.2-1b and llama-3.1-8b as one kernel beside the replayed
                                  graph of the same plan: logits, tokens, medians of 60 runs, where SMs' time goes, and
                                  a step of 32 in one launch, whose tokens are those of 32 launches; --check: 10,000
                                  forwards that are to be the same, a value that never arrives, small models beside
                                  double precision; --instructions: their times, for orrery trace instructions
  mpirun -n N orrery-gpu-mpi execute DIR
                                  the same with a process for each of the plan's N ranks, on one host or several
  orrery-gpu serve DIR [--gpus N] [--num-kv-blocks N] [--requests N] [--only-nccl]
                    [--verify N] [--move-by engine|sm] [--tokens]
                                  replay the workload that `orrery validate --plan-only` wrote in real time, its first
                                  N requests; writes DIR/executed, with --tokens the tokens too; --verify: where prefill
                                  and decode are apart, the first N one at a time, their tokens against one instance's
)";

int usage() {
  std::fputs(kUsage, stderr);
  return kExitUsage;
}

int run(std::span<const std::string_view> arguments) {
  if (arguments.empty()) return usage();
  for (const Command& command : kCommands) {
    if (command.name != arguments[0]) continue;
    try {
      return command.run(arguments.subspan(1));
    } catch (const std::invalid_argument& error) {
      std::fprintf(stderr, "orrery-gpu: %s\n", error.what());
      return kExitUsage;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "orrery-gpu: %s\n", error.what());
      return kExitFailed;
    }
  }
  return usage();
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string_view> arguments(argv + 1, argv + argc);
  const int exit_code = run(arguments);
  orrery::tool::end_processes(exit_code);
  return exit_code;
}
