#include "sim/megakernel/program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "sim/parallel/parallel.h"
#include "tests/megakernel/decoders.h"
#include "tests/model/small_models.h"

namespace orrery::megakernel {
namespace {

using orrery::testing::SmallDecoder;

std::int64_t weight_bytes(const Instruction& in) {
  if (in.opcode == Opcode::kAttention || in.opcode == Opcode::kPick) return 0;
  return std::int64_t{2} * in.num_rows * in.width * (in.opcode == Opcode::kGateUp ? 2 : 1);
}

std::int64_t most_bytes(const Program& program) {
  std::int64_t most = 0;
  for (const auto& own : program.instructions) {
    std::int64_t bytes = 0;
    for (const Instruction& in : own) bytes += weight_bytes(in);
    most = std::max(most, bytes);
  }
  return most;
}

std::string refusal(const Plan& plan) {
  try {
    static_cast<void>(compile(plan, {}));
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "taken";
}

TEST(MegakernelProgram, HasEachRowOfEachWeightOnce) {
  const Plan plan = SmallDecoder{.batch = 2}.plan(200);
  for (const int num_sms : {1, 13, 132, 400}) {
    const Program program = compile(plan, {.num_sms = num_sms});
    std::map<std::int32_t, std::set<std::int32_t>> rows;  // by weight
    for (const auto& own : program.instructions) {
      for (const Instruction& in : own) {
        for (std::int32_t i = 0; weight_bytes(in) > 0 && i < in.num_rows; ++i) {
          EXPECT_TRUE(rows[in.weight].insert(in.first_row + i).second);
        }
      }
    }
    ASSERT_EQ(rows.size(), 2U * 4 + 1);  // two layers, the head
    for (const auto& [weight, own] : rows) {
      const auto& tensor = plan.tensors()[static_cast<std::size_t>(
          program.weights[static_cast<std::size_t>(weight)].tensor)];
      const bool is_gate_up = tensor.name.find("gate_up") != std::string::npos;
      EXPECT_EQ(static_cast<std::int64_t>(own.size()), tensor.axes[0].size / (is_gate_up ? 2 : 1))
          << tensor.name;
      EXPECT_EQ(*own.rbegin() + 1, static_cast<std::int32_t>(own.size()));
    }
  }
}

TEST(MegakernelProgram, ReadsTheDecoder) {
  const Program program = compile(SmallDecoder{.type = "qwen3", .head_dim = 128}.plan(300), {});
  const ModelShape expected{.batch = 1,
                            .layers = 2,
                            .hidden = 256,
                            .heads = 2,
                            .kv_heads = 1,
                            .head_dim = 128,
                            .ffn = 512,
                            .vocab = 302,
                            .context = 300,
                            .has_head_norms = true};
  EXPECT_EQ(program.shape, expected);
  EXPECT_EQ(program.attention_parts, 2);  // pages of 64 keys, four in a part
  for (const auto& own : program.instructions) {
    ASSERT_FALSE(own.empty());
    EXPECT_EQ(own.back().opcode, Opcode::kEnd);
  }
}

TEST(MegakernelProgram, RowsLeftOverGoRoundAllSms) {
  const Plan plan = SmallDecoder{}.plan(64);
  const auto most = [&](Schedule schedule) {
    return most_bytes(compile(plan, {.num_sms = 50, .schedule = schedule}));
  };
  const std::int64_t in_order = most(Schedule::kRoundRobin);
  EXPECT_LT(most(Schedule::kZigZag), in_order);
  EXPECT_LT(most(Schedule::kWave), in_order);
  EXPECT_LT(most(Schedule::kLeastBytes), in_order);
}

// Most rows of a weight that one SM has.
std::int64_t most_rows(const Plan& plan, Schedule schedule, Opcode opcode) {
  std::int64_t most = 0;
  const Program program = compile(plan, {.num_sms = 20, .schedule = schedule});
  for (const auto& own : program.instructions) {
    for (const Instruction& in : own) {
      if (in.opcode == opcode) most = std::max<std::int64_t>(most, in.num_rows);
    }
  }
  return most;
}

TEST(MegakernelProgram, APoolHandsOutBlocksAndTheCriticalPathRows) {
  const Plan plan = SmallDecoder{}.plan(64);
  // 256 rows are 16 blocks for 20 SMs, or 13 rows each; of gate and up a block has 8 rows of each,
  // so that 512 rows are 64 blocks: 4 for the SM that has most, or 26 rows.
  EXPECT_EQ(most_rows(plan, Schedule::kPool, Opcode::kOutput), 16);
  EXPECT_EQ(most_rows(plan, Schedule::kCriticalPath, Opcode::kOutput), 14);
  EXPECT_EQ(most_rows(plan, Schedule::kPool, Opcode::kGateUp), 32);
  EXPECT_EQ(most_rows(plan, Schedule::kCriticalPath, Opcode::kGateUp), 26);
}

TEST(MegakernelProgram, NamesTheNearestSchedule) {
  EXPECT_EQ(parse_schedule("zig_zag"), Schedule::kZigZag);
  try {
    static_cast<void>(parse_schedule("zigzag"));
    FAIL() << "taken";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("nearest is \"zig_zag\""), std::string::npos);
  }
}

std::string refusal_to_run(const Plan& plan) {
  try {
    require_runs(plan);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "runs";
}

TEST(MegakernelProgram, SaysWhatTheKernelRuns) {
  EXPECT_EQ(refusal_to_run(SmallDecoder{.batch = 8}.plan(64)), "runs");
  EXPECT_NE(refusal_to_run(SmallDecoder{.batch = 3}.plan(64)).find("nearest is 4"),
            std::string::npos);
  EXPECT_NE(refusal_to_run(SmallDecoder{.batch = 9}.plan(64)).find("expected 1 to 8"),
            std::string::npos);
  // Llama-3.1-8B's shared memory, as its launch counts it: five pages, too few for four sequences.
  ModelShape shape{.batch = 1,
                   .layers = 32,
                   .hidden = 4096,
                   .heads = 32,
                   .kv_heads = 8,
                   .head_dim = 128,
                   .ffn = 14336,
                   .vocab = 128256};
  EXPECT_EQ(num_pages(shape), 5);
  shape.batch = 4;
  EXPECT_THROW(static_cast<void>(num_pages(shape)), std::invalid_argument);
}

TEST(MegakernelProgram, RefusesWhatHasNoInstruction) {
  const SmallDecoder decoder;
  EXPECT_EQ(refusal(decoder.plan(64)), "taken");
  const std::string narrow = refusal(decoder.plan(64, DType::kFp8));
  EXPECT_NE(narrow.find("256 columns, expected a multiple of 512"), std::string::npos) << narrow;
  const std::string block = refusal(decoder.plan(64, DType::kFp8Block));
  EXPECT_NE(block.find("fp8_block, expected bf16 or fp8"), std::string::npos) << block;
  EXPECT_NE(refusal(parallelize(decoder.plan(64), {.tp = 2})).find("a plan of 2 ranks"),
            std::string::npos);
  EXPECT_NE(refusal(SmallDecoder{.batch = 9}.plan(64)).find("9 tokens, expected 1 to 8"),
            std::string::npos);
  EXPECT_NE(refusal(SmallDecoder{.vocab = 303}.plan(64)).find("vocab 303, expected an even"),
            std::string::npos);
  const std::string bias = refusal(SmallDecoder{.type = "qwen2"}.plan(64));
  EXPECT_NE(bias.find("no instruction adds a bias"), std::string::npos) << bias;
  Batch prompt;
  prompt.prefill = {{.query = 5, .context = 0}};
  EXPECT_NE(
      refusal(lower(decoder.model(), prompt, {}))
          .find("op \"layers.0.attn_prefill\": no instruction for \"attention_prefill\" here"),
      std::string::npos)
      << refusal(lower(decoder.model(), prompt, {}));
  EXPECT_THROW(static_cast<void>(compile(decoder.plan(64), {.num_sms = 0})), std::invalid_argument);
}

// What a plan of fp8 quantises beside its weights stays as it is; a tied head is bf16.
TEST(MegakernelProgram, TakesWeightsOfFp8) {
  for (const bool is_fused : {true, false}) {
    const Program program =
        compile(SmallDecoder{.hidden = 512}.plan(64, DType::kFp8, is_fused), {});
    for (const auto& own : program.instructions) {
      for (const Instruction& in : own) {
        const bool has_fp8 = in.opcode == Opcode::kQkv || in.opcode == Opcode::kOutput ||
                             in.opcode == Opcode::kGateUp || in.opcode == Opcode::kDown;
        EXPECT_EQ(in.weight_bytes, has_fp8 ? 1 : 2) << describe(in);
      }
    }
  }
}

TEST(MegakernelProgram, DescribesItsInstructions) {
  EXPECT_EQ(describe({.opcode = Opcode::kGateUp, .layer = 3, .first_row = 62, .num_rows = 62}),
            "layers.3 gate_up rows 62..124");
  EXPECT_EQ(describe({.opcode = Opcode::kAttention,
                      .layer = 1,
                      .first_row = 2,
                      .num_rows = 5,
                      .part = 1,
                      .parts = 4}),
            "layers.1 attention of sequence 2, kv head 5, part 1 of 4");
}

}  // namespace
}  // namespace orrery::megakernel
