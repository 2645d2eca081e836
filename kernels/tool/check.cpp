#include "kernels/harness/check.h"

#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cuda/devices.h"
#include "kernels/execute/device_memory.h"
#include "kernels/execute/executor.h"
#include "kernels/tool/arguments.h"
#include "kernels/tool/checks.h"
#include "kernels/tool/commands.h"
#include "kernels/tool/selection.h"

namespace orrery::tool {
namespace {

struct Group {
  std::string_view name;
  CheckCount (*run)();
};
constexpr Group kGroups[] = {
    {"loading", check_loading}, {"collectives", check_peers}, {"trace", check_trace_records},
    {"execute", check_execute}, {"moe", check_moe},           {"moe_layers", check_moe_layers},
    {"mla", check_mla},         {"faults", check_faults},     {"memory", check_memory},
};

struct Options {
  std::vector<std::string_view> names;  // of kernels and groups; none: all
  std::string_view cases;               // what the text of each call has in it
};

// Throws std::invalid_argument for another option than --cases, and for --cases without a value.
Options parse(std::span<const std::string_view> arguments) {
  Options options;
  std::vector<std::string_view> flags;
  for (const std::string_view word : arguments) {
    const bool is_value = flags.size() % 2 == 1;
    (is_value || word.starts_with('-') ? flags : options.names).push_back(word);
  }
  const Option cases{"--cases", [&](const Value& value) { options.cases = value.text; }};
  read_arguments("check", flags, {&cases, 1});
  return options;
}

CheckCount check_kernel(const GpuKernel& kernel, std::string_view cases) {
  CheckCount count;
  for (const KernelOp& op : kernel.check_ops()) {
    const std::string text = describe(op);
    if (text.find(cases) == std::string::npos) continue;
    const CheckReport report = check_case(kernel, op);
    ++(report.passes() ? count.passed : count.failed);
    std::printf("%s %s", report.passes() ? "ok  " : "FAIL", text.c_str());
    for (const Difference& difference : report.differences) {
      std::printf("  %s %.2e (<= %.1e)", difference.what.c_str(), difference.error,
                  difference.bound);
    }
    for (const std::string& tile : report.unnoticed) {
      std::printf("  loss of %s not noticed", tile.c_str());
    }
    std::printf("\n");
    std::fflush(stdout);
  }
  return count;
}

}  // namespace

int check(std::span<const std::string_view> arguments) {
  const Options options = parse(arguments);
  std::vector<std::string_view> names = options.names;
  std::vector<const Group*> groups;
  for (const Group& group : kGroups) {
    if (options.names.empty() || std::erase(names, group.name) > 0) groups.push_back(&group);
  }
  const bool only_groups = names.empty() && !options.names.empty();
  if (!options.cases.empty()) {
    if (only_groups) throw std::invalid_argument("check: --cases goes with kernels");
    groups.clear();
  }
  const auto kernels = only_groups ? std::vector<const GpuKernel*>() : select_kernels(names);
  set_execute_environment();  // check_execute runs ranks that wait for each other
  require_gpu();
  // Before anything of this process is there, which check_memory must not count as others'.
  for (int device = 0; device < cuda::device_count(); ++device) {
    static_cast<void>(held_by_others(device));
  }
  CheckCount sum;
  const auto add = [&](const CheckCount& count) {
    sum.passed += count.passed;
    sum.failed += count.failed;
  };
  for (const GpuKernel* kernel : kernels) add(check_kernel(*kernel, options.cases));
  for (const Group* group : groups) add(group->run());
  std::printf("%d passed, %d failed\n", sum.passed, sum.failed);
  if (sum.passed + sum.failed == 0) {
    throw std::invalid_argument("check: no call has '" + std::string(options.cases) + "' in it");
  }
  return sum.failed == 0 ? 0 : 1;
}

}  // namespace orrery::tool
