#pragma once

// The line that a check among GPUs prints of a case.

#include <algorithm>
#include <cstdio>
#include <string>

#include "kernels/harness/difference.h"

namespace orrery::tool {

// "ok   " or "FAIL ", what was checked, the largest difference and what else was wrong.
template <typename PeerReport>
void print_report(const PeerReport& report) {
  std::printf("%s %s", report.passes() ? "ok  " : "FAIL", report.what.c_str());
  if (!report.differences.empty()) {
    const Difference& worst = *std::ranges::max_element(report.differences, {}, &Difference::error);
    std::printf("  %s %.2e (<= %.1e)", worst.what.c_str(), worst.error, worst.bound);
  }
  for (const std::string& fault : report.faults) std::printf("  %s", fault.c_str());
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace orrery::tool
