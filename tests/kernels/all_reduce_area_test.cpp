#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "kernels/comm/all_reduce/choice.h"
#include "sim/memory/footprint.h"

namespace orrery {
namespace {

// What kernels/comm/all_reduce allocates for messages of up to `largest` bytes: two halves, each as
// large as the algorithm that needs more of it (AllReduceOptions: one-shot up to 3 MiB, two-shot 64
// MiB).
double allocated(std::int64_t largest, int num_ranks) {
  const auto half = [&](AllReduceAlgorithm algorithm, std::int64_t most) {
    return all_reduce_slot_bytes(algorithm, std::min(largest, most), num_ranks);
  };
  return 2.0 *
         static_cast<double>(std::max(half(AllReduceAlgorithm::kOneShot, std::int64_t{3} << 20),
                                      half(AllReduceAlgorithm::kTwoShot, std::int64_t{64} << 20)));
}

TEST(AllReduceArea, IsWhatTheKernelsTakeForAnyMessageAndNumberOfRanks) {
  for (const std::int64_t largest :
       {std::int64_t{2}, std::int64_t{8190}, std::int64_t{1} << 20, std::int64_t{3} << 20,
        (std::int64_t{64} << 20) - 2, std::int64_t{1} << 30}) {
    for (int ranks = 2; ranks <= kMaxRanks; ++ranks) {
      EXPECT_EQ(all_reduce_area(largest, ranks).value(), allocated(largest, ranks))
          << largest << " bytes, " << ranks << " ranks";
    }
  }
}

}  // namespace
}  // namespace orrery
