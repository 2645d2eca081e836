#include "sim/serve/phases.h"

#include <gtest/gtest.h>

#include <vector>

namespace orrery {
namespace {

RequestRecord record(double arrival, double finish) {
  return {.arrival = Seconds(arrival), .finish = Seconds(finish)};
}

// One comes every second and takes four: four are in service, and the fourth has left after 7 s.
TEST(Phases, TheRampEndsWhenAsManyHaveLeftAsAreInService) {
  std::vector<RequestRecord> records;
  for (int i = 0; i < 1001; ++i) records.push_back(record(i, i + 4));
  const auto phases = run_phases(records);
  ASSERT_TRUE(phases.has_value());
  EXPECT_EQ(phases->ramp, Seconds(7));
  EXPECT_EQ(phases->ramp_requests, 7);
  EXPECT_EQ(phases->drain, Seconds(4));    // after the last at 1000
  EXPECT_EQ(phases->drained_requests, 4);  // 997 to 1000; 996 left as the last came
  EXPECT_EQ(phases->whole, Seconds(1004));
}

// A closed loop of two: both come at 0, and the ramp ends as the second leaves.
TEST(Phases, OfAClosedLoopTheFirstOfEachClientAreTheRamp) {
  const auto phases =
      run_phases(std::vector{record(0, 3), record(0, 5), record(3, 6), record(5, 8), record(6, 9)});
  ASSERT_TRUE(phases.has_value());
  EXPECT_EQ(phases->ramp, Seconds(5));
  EXPECT_EQ(phases->drain, Seconds(3));
}

// Twice as many come as leave: more are in service than ever left.
TEST(Phases, AServiceThatNeverSettlesIsRampUntilTheLastCame) {
  std::vector<RequestRecord> records;
  for (int i = 0; i < 100; ++i) records.push_back(record(i, 100 + 2 * i));
  const auto phases = run_phases(records);
  ASSERT_TRUE(phases.has_value());
  EXPECT_EQ(phases->ramp, Seconds(99));
  EXPECT_EQ(phases->drain, Seconds(199));
}

TEST(Phases, WhereAllComeAtOnceThereAreNone) {
  EXPECT_FALSE(run_phases({}).has_value());
  EXPECT_FALSE(run_phases(std::vector{record(1, 2), record(1, 3)}).has_value());
}

}  // namespace
}  // namespace orrery
