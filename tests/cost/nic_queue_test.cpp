// Messages through a network card with few places, by hand.

#include "sim/cost/nic_queue.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

namespace orrery {
namespace {

// A byte a second, two seconds one way: a message of 3 bytes is on the wire for 3 s, there after 5,
// acknowledged after 7.
constexpr BytesPerSecond kRate(1);
constexpr Seconds kLatency(2);
constexpr Bytes kMessage(3);

std::vector<NicQueue::Message> posted(std::int64_t places, const std::vector<double>& times) {
  NicQueue queue(kRate, kLatency, places);
  std::vector<NicQueue::Message> messages;
  for (const double time : times) messages.push_back(queue.post(Seconds(time), kMessage));
  return messages;
}

TEST(NicQueue, OneAfterTheOtherOnTheWire) {
  const auto messages = posted(0, {0, 0, 10});
  EXPECT_EQ(messages[0].there, Seconds(5));
  EXPECT_EQ(messages[1].accepted, Seconds(0));
  EXPECT_EQ(messages[1].there, Seconds(8));  // 3 s later
  EXPECT_EQ(messages[2].there, Seconds(15));
}

// With one place each waits for the acknowledgement of the one before: 7 s each.
TEST(NicQueue, WaitsForAPlaceWhenItIsFull) {
  const auto messages = posted(1, {0, 0, 0});
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(messages[i].accepted, Seconds(7.0 * static_cast<double>(i)));
    EXPECT_EQ(messages[i].there, messages[i].accepted + Seconds(5));
  }
}

// Of two places the third waits for the first's acknowledgement at 7, the fourth for the second's
// at 10; a fifth that is posted at 20 finds both free.
TEST(NicQueue, PlacesAreFreedInOrder) {
  const auto messages = posted(2, {0, 0, 0, 0, 20});
  EXPECT_EQ(messages[2].accepted, Seconds(7));
  EXPECT_EQ(messages[2].there, Seconds(12));
  EXPECT_EQ(messages[3].accepted, Seconds(10));
  EXPECT_EQ(messages[3].there, Seconds(15));
  EXPECT_EQ(messages[4].accepted, Seconds(20));
}

// 3 s on the wire and 4 of latency: three places keep the wire busy.
TEST(NicQueue, EnoughPlacesAreAsGoodAsAnyNumber) {
  const std::vector<double> times(20);
  EXPECT_EQ(posted(3, times).back().there, posted(0, times).back().there);
  EXPECT_GT(posted(2, times).back().there, posted(3, times).back().there);
}

TEST(NicQueue, CountsThePlacesThatAreTaken) {
  NicQueue any(kRate, kLatency, 0);
  NicQueue four(kRate, kLatency, 4);
  for (int i = 0; i < 9; ++i) {
    any.post(Seconds(0), kMessage);
    four.post(Seconds(0), kMessage);
  }
  EXPECT_EQ(any.most_outstanding(), 9);
  EXPECT_EQ(four.most_outstanding(), 4);
}

TEST(NicQueue, RefusesWhatIsNoCard) {
  EXPECT_THROW(NicQueue(BytesPerSecond(0), kLatency, 1), std::invalid_argument);
  EXPECT_THROW(NicQueue(kRate, Seconds(-1), 1), std::invalid_argument);
  EXPECT_THROW(NicQueue(kRate, kLatency, -1), std::invalid_argument);
}

}  // namespace
}  // namespace orrery
