#include "kernels/harness/check.h"

#include <cstdio>
#include <vector>

#include "kernels/cuda/devices.h"
#include "kernels/execute/device_memory.h"
#include "kernels/execute/executor.h"
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

}  // namespace

int check(std::span<const std::string_view> arguments) {
  std::vector<std::string_view> names(arguments.begin(), arguments.end());
  std::vector<const Group*> groups;
  for (const Group& group : kGroups) {
    if (arguments.empty() || std::erase(names, group.name) > 0) groups.push_back(&group);
  }
  const bool only_groups = names.empty() && !arguments.empty();
  const auto kernels = only_groups ? std::vector<const GpuKernel*>() : select_kernels(names);
  set_execute_environment();  // check_execute runs ranks that wait for each other
  require_gpu();
  // Before anything of this process is there, which check_memory must not count as others'.
  for (int device = 0; device < cuda::device_count(); ++device) {
    static_cast<void>(held_by_others(device));
  }
  int passed = 0;
  int failed = 0;
  for (const GpuKernel* kernel : kernels) {
    for (const KernelOp& op : kernel->check_ops()) {
      const CheckReport report = check_case(*kernel, op);
      ++(report.passes() ? passed : failed);
      std::printf("%s %s", report.passes() ? "ok  " : "FAIL", describe(op).c_str());
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
  }
  for (const Group* group : groups) {
    const CheckCount count = group->run();
    passed += count.passed;
    failed += count.failed;
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace orrery::tool
