// Layers of a KV cache that move while later ones are computed: who waits for which.

#include "kernels/serve/layer_events.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/kernels/fake_cuda.h"

namespace orrery {
namespace {

using testing::enqueue_call;
using testing::set_stream_timing;
using testing::StreamTiming;

constexpr std::int64_t kNumLayers = 4;

class LayerEventsTest : public ::testing::Test {
 protected:
  LayerEventsTest() {
    set_stream_timing(StreamTiming::kLazy);
    const std::vector<int> devices{0};
    const std::vector<std::int64_t> layers{kNumLayers};
    events_.open(devices, layers);
  }
  // Enqueues layers [first, last) of the step.
  void compute(std::int64_t first, std::int64_t last) {
    for (std::int64_t layer = first; layer < last; ++layer) {
      events_.begin_layer(0, layer, compute_);
      enqueue_call(compute_.get(), [this, layer] { log_ += "w" + std::to_string(layer) + " "; });
    }
  }
  void copy(std::int64_t step, std::int64_t layer) {
    events_.hold(copy_, step, 0, layer);
    enqueue_call(copy_.get(), [this, layer] { log_ += "c" + std::to_string(layer) + " "; });
  }
  // hold() in a thread of its own, which must not return before `then` has run.
  template <typename Then>
  void expect_waits(std::int64_t step, std::int64_t layer, const Then& then) {
    std::atomic<bool> has_returned = false;
    std::jthread holder([&] {
      events_.hold(copy_, step, 0, layer);
      has_returned = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(has_returned);
    then();
    holder.join();
    EXPECT_TRUE(has_returned);
  }

  LayerEvents events_;
  cuda::Stream compute_;
  cuda::Stream copy_;
  std::string log_;
};

TEST_F(LayerEventsTest, ALayerIsCopiedBehindItselfAndBeforeLaterOnes) {
  {
    const LayerEvents::Step step(events_);
    EXPECT_EQ(events_.num_steps(), 1);
    compute(0, 2);
    copy(1, 0);
    copy_.synchronize();  // layer 1 need not be computed for it
    EXPECT_EQ(log_, "w0 c0 ");
    compute(2, kNumLayers);
    events_.end_step(0, compute_);
  }
  for (std::int64_t layer = 1; layer < kNumLayers; ++layer) copy(1, layer);
  copy_.synchronize();
  EXPECT_EQ(log_, "w0 c0 w1 c1 w2 c2 w3 c3 ");
}

TEST_F(LayerEventsTest, AHostThatIsAheadWaitsUntilTheLayerIsEnqueued) {
  std::optional<LayerEvents::Step> step;
  expect_waits(1, 1, [&] {
    step.emplace(events_);
    compute(0, 3);
  });
  // The last layer has no later one that says so: the step's end does.
  compute(3, kNumLayers);
  expect_waits(1, kNumLayers - 1, [&] { events_.end_step(0, compute_); });
}

TEST_F(LayerEventsTest, LayersOfAStepBeforeAreNotThoseOfTheNext) {
  {
    const LayerEvents::Step first(events_);
    compute(0, kNumLayers);
    events_.end_step(0, compute_);
  }
  copy(1, 2);
  const LayerEvents::Step second(events_);
  expect_waits(2, 0, [&] { compute(0, 2); });
}

// Whoever copies for it goes on, to find that the run has ended.
TEST_F(LayerEventsTest, AStepThatFailsKeepsNobodyWaiting) {
  std::optional<LayerEvents::Step> step(std::in_place, events_);
  compute(0, 2);
  expect_waits(1, 3, [&] { step.reset(); });
}

}  // namespace
}  // namespace orrery
