#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/comm/processes/process_group.h"

namespace orrery {
namespace {

const ProcessGroup* processes = nullptr;

TEST(MpiProcesses, AreNumberedAndEachKnowsItsPlaceOnThisHost) {
  ASSERT_EQ(processes->size, 3);
  EXPECT_EQ(processes->rank_on_host, processes->rank);  // one host
  EXPECT_EQ(launched_processes(), 3);
}

TEST(MpiProcesses, GetWhatTheRootHas) {
  std::array<std::int32_t, 4> values{};
  if (processes->rank == 1) values = {7, -1, 3, 9};
  processes->broadcast(std::as_writable_bytes(std::span(values)), 1);
  EXPECT_EQ(values, (std::array<std::int32_t, 4>{7, -1, 3, 9}));
}

TEST(MpiProcesses, GatherEachOthersValuesInOrder) {
  const std::array<std::int32_t, 1> own{10 + processes->rank};
  std::vector<std::int32_t> all(3);
  processes->all_gather(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
  EXPECT_EQ(all, (std::vector<std::int32_t>{10, 11, 12}));
  processes->barrier();
}

}  // namespace
}  // namespace orrery

int main(int argc, char** argv) {
  const orrery::MpiProcesses started;
  orrery::processes = &started.group();
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
