// orrery-gpu: the GPU side as one program, with neither the simulator nor Python.

#include <cstdio>
#include <exception>
#include <span>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "kernels/tool/commands.h"

namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

struct Command {
  std::string_view name;
  std::string_view usage;
  int (*run)(std::span<const std::string_view> arguments);
};

constexpr Command kCommands[] = {
    {"check", "check [KERNEL…]         compare each kernel with its double-precision reference",
     orrery::tool::check},
    {"time",
     "time [KERNEL…] | launch | probes | corun [LOAD]\n"
     "                             time the benchmark shapes of kernels, the costs of launching, "
     "the\n"
     "                             GPU's streams, events and clocks, pairs of loads side by side",
     orrery::tool::time},
    {"calibrate",
     "calibrate -o DIR [--kernels A,B] [--quick | --budget SECONDS] [--check [--shapes N] [--seed "
     "N]]\n"
     "                       [--device N] [--revision TEXT] [--fresh]\n"
     "                           time kernels into tables under DIR; a run that was stopped goes "
     "on;\n"
     "                           --check judges the tables by shapes that they do not hold",
     orrery::tool::calibrate},
};

int usage() {
  std::fprintf(stderr, "usage:\n");
  for (const Command& command : kCommands) {
    std::fprintf(stderr, "  orrery-gpu %.*s\n", static_cast<int>(command.usage.size()),
                 command.usage.data());
  }
  return kExitUsage;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string_view> arguments(argv + 1, argv + argc);
  if (arguments.empty()) return usage();
  for (const Command& command : kCommands) {
    if (command.name != arguments[0]) continue;
    try {
      return command.run(std::span(arguments).subspan(1));
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
