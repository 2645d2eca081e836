// Each bad input of the room and what its error says.

#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>
#include <string>

#include "tests/des/step_builder.h"

namespace orrery::test {
namespace {

template <typename Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(Errors, MoreRanksThanGpus) {
  StepBuilder step;
  step.kernel(range(0, 5), 10);
  expect_contains(message_of([&] { makespan_us(step, nvswitch_machine(4), StepLevel::kHeap); }),
                  "plan has 5 ranks; machine 'node' has 4 GPUs");
}

TEST(Errors, ClosedFormOfSeveralStreams) {
  StepBuilder step;
  step.kernel({0}, 10, 0);
  step.kernel({0}, 10, 1);
  const std::string message =
      message_of([&] { makespan_us(step, nvswitch_machine(1), StepLevel::kClosedForm); });
  expect_contains(message, "op 'o1' runs on stream 1 and earlier ones on stream 0");
  expect_contains(message, "use level heap");
  const PricedPlan priced = des::assemble(step.plan, step.times);
  EXPECT_FALSE(priced.is_chain);
  EXPECT_THROW((void)des::closed_form(priced, LaunchMode::kGraph, {}), std::invalid_argument);
}

TEST(Errors, ClosedFormOfAHostOpThatWaitsForAnEarlierKernel) {
  StepBuilder step;
  const TensorId x = step.tensor({0});
  step.kernel({0}, 10, 0, {}, {x});
  step.kernel({0}, 10, 0);
  step.host(HostKind::kSampling, {0}, 5, {x});
  expect_contains(
      message_of([&] { makespan_us(step, nvswitch_machine(1), StepLevel::kClosedForm); }),
      "op 'o2' on the host waits for an op that is not the one just before it");
  // The heap has no such limit: the host works 10..15 beside the second kernel.
  EXPECT_DOUBLE_EQ(makespan_us(step, nvswitch_machine(1), StepLevel::kHeap), 20);
}

TEST(Errors, ClosedFormOfAHostOpThatReadsFromTheCopyBefore) {
  StepBuilder step;
  const TensorId x = step.tensor({0});
  step.host(HostKind::kSampling, {0}, 5, {x});
  step.kernel({0}, 10, 0, {}, {x});
  step.repeat(0, 3);
  expect_contains(
      message_of([&] { makespan_us(step, nvswitch_machine(1), StepLevel::kClosedForm); }),
      "reads what the copy before it wrote");
  EXPECT_DOUBLE_EQ(makespan_us(step, nvswitch_machine(1), StepLevel::kHeap), 45);
}

TEST(Errors, AfterAnOpOfAnotherRank) {
  StepBuilder step;
  const OpId a = step.kernel({0}, 10);
  step.kernel({1}, 10, 0, {}, {}, {a});
  expect_contains(message_of([&] { makespan_us(step, nvswitch_machine(2), StepLevel::kHeap); }),
                  "between ranks use a communication op");
}

TEST(Errors, SlowdownOfTheWrongSizeOrValue) {
  StepBuilder step;
  step.kernel({0, 1}, 10);
  const Machine machine = nvswitch_machine(2);
  expect_contains(message_of([&] { makespan_us(step, machine, StepLevel::kHeap, {}, {1, 1, 1}); }),
                  "rank_slowdown has 3 factors; expected one for each of the 2 ranks");
  expect_contains(message_of([&] { makespan_us(step, machine, StepLevel::kHeap, {}, {1, 0}); }),
                  "rank_slowdown of rank 1");
  EXPECT_NE(message_of([&] {
              makespan_us(step, machine, StepLevel::kHeap, {},
                          {1, std::numeric_limits<double>::quiet_NaN()});
            }),
            "no error");
}

TEST(Errors, NegativeCommSms) {
  StepBuilder step;
  step.kernel({0}, 10);
  expect_contains(message_of([&] { run(step, nvswitch_machine(1), {.comm_sms = -1}); }),
                  "comm_sms is -1");
}

TEST(Errors, TimesThatAreMissingOrNoNumbers) {
  StepBuilder step;
  step.kernel({0}, 10);
  EXPECT_THROW((void)des::assemble(step.plan, {}), std::invalid_argument);
  step.times.front().time = Seconds(-1);
  EXPECT_THROW((void)des::assemble(step.plan, step.times), std::invalid_argument);
  step.times.front().time = Seconds(std::numeric_limits<double>::infinity());
  EXPECT_THROW((void)des::assemble(step.plan, step.times), std::invalid_argument);
}

TEST(Errors, UnknownLevelNamesTheNearest) {
  expect_contains(message_of([] { (void)parse_step_level("closedform"); }),
                  "did you mean 'closed_form'?");
  EXPECT_EQ(parse_step_level("all_ranks"), StepLevel::kAllRanks);
  EXPECT_EQ(to_text(StepLevel::kRepresentative), "representative");
}

TEST(Errors, AnEmptyPlanTakesNoTime) {
  const StepBuilder step;
  for (const StepLevel level : {StepLevel::kClosedForm, StepLevel::kHeap}) {
    EXPECT_EQ(makespan_us(step, nvswitch_machine(1), level), 0);
  }
}

#ifdef ORRERY_NO_SIMGRID
TEST(Errors, SimGridLevelsSayThatTheBuildHasNone) {
  StepBuilder step;
  step.kernel({0}, 10);
  for (const StepLevel level : {StepLevel::kRepresentative, StepLevel::kAllRanks}) {
    expect_contains(message_of([&] { makespan_us(step, nvswitch_machine(1), level); }),
                    "ORRERY_SIMGRID=OFF");
  }
}
#endif

}  // namespace
}  // namespace orrery::test
