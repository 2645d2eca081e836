#include "sim/megakernel/interpreter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "kernels/execute/reference/interpreted.h"
#include "kernels/execute/reference/model.h"
#include "tests/megakernel/decoders.h"

namespace orrery::megakernel {
namespace {

using orrery::reference::interpreter_setup;
using orrery::testing::SmallDecoder;

constexpr std::int32_t kBlockSize = 16;
constexpr double kTolerance = 1e-6;        // of logits about 1: the plan's rotary tables are fp32
constexpr std::int64_t kMostTokens = 320;  // two pages of keys and more

std::int32_t token_of(std::int64_t sequence, std::int64_t step) {
  return static_cast<std::int32_t>((131 * step * step + 17 * step + 29 * sequence + 5) % 302);
}

StepInput input_of(std::int64_t batch, std::int64_t step) {
  StepInput input;
  for (std::int64_t i = 0; i < batch; ++i) {
    SequenceTokens& one = input.decodes.emplace_back();
    one.tokens = {token_of(i, step)};
    one.context = step;
    for (std::int64_t block = 0; block * kBlockSize <= step; ++block) {
      one.blocks.push_back(static_cast<std::int32_t>(block * batch + i));
    }
  }
  return input;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

// A decoder's tokens one after the other, by the program and by the plan's own reference, which
// knows neither SMs nor boards nor parts.
struct Conversation {
  SmallDecoder decoder;
  CompileOptions options;
  std::int64_t steps = 12;
  std::int64_t context = kMostTokens;  // that the program is made for
  DType dtype = DType::kBf16;
  double tolerance = kTolerance;

  void expect_agreement() const {
    const Plan plan = decoder.plan(context, dtype);
    const Program program = compile(plan, options);
    EXPECT_EQ(program.attention_parts > 1, options.num_sms > 1);
    Interpreter interpreter(program, interpreter_setup(plan));
    reference::Model model({.numbers = {.rope_theta = 500000, .head_dim = decoder.head_dim},
                            .num_kv_blocks = decoder.batch * kMostTokens / kBlockSize,
                            .block_size = kBlockSize});
    for (std::int64_t step = 0; step < steps; ++step) {
      std::vector<NewToken> tokens;
      tokens.reserve(static_cast<std::size_t>(decoder.batch));
      for (std::int64_t i = 0; i < decoder.batch; ++i) {
        tokens.push_back({.token = token_of(i, step), .context = step});
      }
      const Forward found = interpreter.run(tokens);
      const auto expected = model.run(plan, input_of(decoder.batch, step));
      ASSERT_EQ(found.logits.size(), expected.logits.size());
      ASSERT_LT(largest_difference(found.logits, expected.logits), tolerance) << "step " << step;
      if (dtype != DType::kBf16) continue;  // the plan rounds activations, which may change a token
      ASSERT_EQ(found.next_tokens, expected.next_tokens) << "step " << step;
    }
  }
};

TEST(MegakernelInterpreter, AgreesWithThePlanUnderEverySchedule) {
  for (const std::string_view name : kSchedules) {
    for (const int num_sms : {1, 7, 132}) {
      SCOPED_TRACE(std::string(name) + ", " + std::to_string(num_sms) + " SMs");
      const Schedule schedule = parse_schedule(name);
      Conversation{.options = {.num_sms = num_sms, .schedule = schedule, .pages_of_part = 1}}
          .expect_agreement();
    }
  }
}

TEST(MegakernelInterpreter, AgreesBeyondAPageOfKeys) {
  Conversation{.options = {.num_sms = 24, .pages_of_part = 1}, .steps = 270}.expect_agreement();
}

TEST(MegakernelInterpreter, AgreesOfSeveralSequencesAndNormsOfHeads) {
  Conversation{.decoder = {.batch = 3}, .options = {.num_sms = 40, .pages_of_part = 1}}
      .expect_agreement();
  Conversation{.decoder = {.type = "qwen3", .head_dim = 128, .batch = 2},
               .options = {.num_sms = 40, .pages_of_part = 1},
               .steps = 80}
      .expect_agreement();
}

// But for the activations, which the plan rounds to fp8 and the program does not.
TEST(MegakernelInterpreter, AgreesOfWeightsOfFp8) {
  constexpr double kOfRounding = 0.3;  // of logits of about 1 to 3: 3 bits of each activation
  Conversation{.decoder = {.hidden = 512},
               .options = {.num_sms = 40, .pages_of_part = 1},
               .dtype = DType::kFp8,
               .tolerance = kOfRounding}
      .expect_agreement();
}

TEST(MegakernelInterpreter, NamesWhoWaitsForWhatNeverComes) {
  const SmallDecoder decoder;
  const Plan plan = decoder.plan(64);
  Program program = compile(plan, {.num_sms = 4, .pages_of_part = 1});
  auto& own = program.instructions[2];
  const auto lost = std::ranges::find(own, Opcode::kGateUp, &Instruction::opcode);
  ASSERT_NE(lost, own.end());
  own.erase(lost);
  Interpreter interpreter(program, interpreter_setup(plan));
  const std::vector<NewToken> tokens{{.token = 3}};
  try {
    static_cast<void>(interpreter.run(tokens));
    FAIL() << "ran on";
  } catch (const std::logic_error& error) {
    EXPECT_NE(std::string(error.what()).find("SM 0 waits for ever in layers.0 down rows 0.."),
              std::string::npos)
        << error.what();
  }
}

TEST(MegakernelInterpreter, RefusesAUnitOfTwoWriters) {
  const SmallDecoder decoder;
  const Plan plan = decoder.plan(64);
  Program program = compile(plan, {.num_sms = 4, .pages_of_part = 1});
  auto& own = program.instructions[1];
  own.insert(own.begin(), own.front());
  Interpreter interpreter(program, interpreter_setup(plan));
  const std::vector<NewToken> tokens{{.token = 3}};
  EXPECT_THROW(static_cast<void>(interpreter.run(tokens)), std::logic_error);
}

TEST(MegakernelInterpreter, RefusesTokensThatDoNotFollow) {
  const SmallDecoder decoder;
  const Plan plan = decoder.plan(64);
  Interpreter interpreter(compile(plan, {.num_sms = 4, .pages_of_part = 1}),
                          interpreter_setup(plan));
  const std::vector<NewToken> two{{.token = 3}, {.token = 4}};
  EXPECT_THROW(static_cast<void>(interpreter.run(two)), std::invalid_argument);
  const std::vector<NewToken> late{{.token = 3, .context = 5}};
  EXPECT_THROW(static_cast<void>(interpreter.run(late)), std::invalid_argument);
}

}  // namespace
}  // namespace orrery::megakernel
