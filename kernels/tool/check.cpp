#include "kernels/harness/check.h"

#include <cstdio>
#include <vector>

#include "kernels/tool/commands.h"
#include "kernels/tool/peers.h"
#include "kernels/tool/selection.h"

namespace orrery::tool {

int check(std::span<const std::string_view> arguments) {
  constexpr std::string_view kPeers = "collectives";
  std::vector<std::string_view> names(arguments.begin(), arguments.end());
  const bool with_peers = names.empty() || std::erase(names, kPeers) > 0;
  const bool only_peers = names.empty() && !arguments.empty();
  const auto kernels = only_peers ? std::vector<const GpuKernel*>() : select_kernels(names);
  require_gpu();
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
  if (with_peers) {
    const CheckCount peers = check_peers();
    passed += peers.passed;
    failed += peers.failed;
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace orrery::tool
