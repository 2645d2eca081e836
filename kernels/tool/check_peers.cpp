#include <algorithm>
#include <cstdio>
#include <numeric>
#include <set>
#include <vector>

#include "kernels/comm/all_reduce/choice.h"
#include "kernels/comm/collectives/check.h"
#include "kernels/comm/kv_transfer/check.h"
#include "kernels/cuda/devices.h"
#include "kernels/experts/fused_moe/ranks.h"
#include "kernels/tool/checks.h"
#include "kernels/tool/peer_report.h"

namespace orrery::tool {
namespace {

// Counts and prints what `run` reports of the GPUs here; with fewer than two, that it is skipped.
template <typename Run>
CheckCount reported(const Run& run) {
  CheckCount count;
  const int gpus = std::min(cuda::device_count(), kMaxRanks);
  if (gpus < 2) {
    std::printf("skipped: needs 2 GPUs, there is %d\n", gpus);
    return count;
  }
  const auto report = [&](const auto& result) {
    print_report(result);
    ++(result.passes() ? count.passed : count.failed);
  };
  for (const int size : std::set<int>{2, gpus}) {
    std::vector<int> devices(static_cast<std::size_t>(size));
    std::iota(devices.begin(), devices.end(), 0);
    run(devices, report);
  }
  return count;
}

}  // namespace

CheckCount check_peers() {
  return reported([](const std::vector<int>& devices, const auto& report) {
    check_collectives(devices, report);
    if (devices.size() == 2) check_kv_transfer(devices, report);
  });
}

// On one GPU ranks share its SMs: what they tell each other is the same.
CheckCount check_fused_moe() {
  if (cuda::device_count() != 1) {
    return reported([](const std::vector<int>& devices, const auto& report) {
      check_fused_moe_ranks(devices, report);
      check_traced_fused_moe(devices, report);
    });
  }
  CheckCount count;
  const auto report = [&](const auto& result) {
    print_report(result);
    ++(result.passes() ? count.passed : count.failed);
  };
  for (const std::size_t ranks : {2, 4}) {
    std::printf("%zu ranks on one GPU\n", ranks);
    check_fused_moe_ranks(std::vector<int>(ranks), report);
  }
  check_traced_fused_moe(std::vector{0}, report);
  return count;
}

CheckCount check_small_fused_moe() {
  return reported([](const std::vector<int>& devices, const auto& report) {
    if (devices.size() == 2) check_small_fused_moe_ranks(devices, report);
  });
}

CheckCount check_small_peers() {
  return reported([](const std::vector<int>& devices, const auto& report) {
    if (devices.size() != 2) return;
    check_small_collectives(devices, report);
    check_kv_transfer(devices, report, /*small=*/true);
  });
}

}  // namespace orrery::tool
