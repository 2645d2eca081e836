#include "sim/megakernel/timing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "sim/megakernel/interpreter.h"
#include "tests/megakernel/decoders.h"

namespace orrery::megakernel {
namespace {

using orrery::testing::SmallDecoder;

// As scenarios/engines/orrery.yaml has them.
constexpr MachineTimes kMeasured{.hbm_rate = BytesPerSecond(4.71e12),
                                 .hbm_latency = Seconds(1.11e-6),
                                 .page = Seconds(0.371e-6),
                                 .fp8_page = Seconds(0.74e-6),
                                 .key_page = Seconds(0.67e-6),
                                 .read = Seconds(1.2e-6),
                                 .merge = Seconds(1.9e-6),
                                 .store = Seconds(0.6e-6),
                                 .hop = Seconds(2.02e-6),
                                 .instruction = Seconds(0.13e-6)};
// Nothing takes time but the products.
constexpr MachineTimes kProductsAlone{.hbm_rate = BytesPerSecond(1e30),
                                      .page = Seconds(1e-6),
                                      .fp8_page = Seconds(1e-6),
                                      .key_page = Seconds(5e-6)};

struct MeasuredDecoder {
  const char* name;
  std::int64_t hidden, layers, head_dim, ffn;
  bool is_tied;
};
constexpr MeasuredDecoder kLlama1b{"llama-3.2-1b", 2048, 16, 64, 8192, true};
constexpr MeasuredDecoder kLlama8b{"llama-3.1-8b", 4096, 32, 128, 14336, false};

// A step of `batch` sequences that the cache has `context` tokens of each.
Plan plan_of(const MeasuredDecoder& decoder, std::int64_t context, DType dtype = DType::kBf16,
             std::int64_t batch = 1) {
  const ConfigFields fields{{"model_type", std::string("llama")},
                            {"hidden_size", decoder.hidden},
                            {"vocab_size", std::int64_t{128256}},
                            {"num_hidden_layers", decoder.layers},
                            {"num_attention_heads", std::int64_t{32}},
                            {"num_key_value_heads", std::int64_t{8}},
                            {"head_dim", decoder.head_dim},
                            {"intermediate_size", decoder.ffn},
                            {"tie_word_embeddings", decoder.is_tied}};
  LoweringOptions options;
  options.precision.weights = options.precision.activations = dtype;
  return lower(model_config(decoder.name, fields),
               {.num_decodes = batch, .decode_context = batch * (context + 1)}, options);
}

double error_of(const MeasuredDecoder& decoder, std::int64_t context, double measured_us,
                DType dtype = DType::kBf16, std::int64_t batch = 1) {
  const Program program = compile(plan_of(decoder, context, dtype, batch), {});
  return simulate_forward(program, kMeasured).duration.value() * 1e6 / measured_us - 1;
}

// Forwards of an H200 (docs/kernels/megakernel.md). The first is the one that the times are from.
TEST(MegakernelTiming, IsWithinItsErrorOfMeasuredForwards) {
  EXPECT_NEAR(error_of(kLlama1b, 512, 664.7), 0, 0.005);
  EXPECT_NEAR(error_of(kLlama1b, 32, 650.8), 0, 0.035);
  EXPECT_NEAR(error_of(kLlama1b, 158, 654.4), 0, 0.025);
  EXPECT_NEAR(error_of(kLlama1b, 2048, 739.8), 0, 0.07);
  EXPECT_NEAR(error_of(kLlama1b, 16384, 836.4), 0, 0.02);
  EXPECT_NEAR(error_of(kLlama8b, 512, 3766.7), 0, 0.05);
  EXPECT_NEAR(error_of(kLlama1b, 158, 557.3, DType::kFp8), 0, 0.055);
  EXPECT_NEAR(error_of(kLlama8b, 512, 2361.4, DType::kFp8), 0, 0.06);
  EXPECT_NEAR(error_of(kLlama1b, 512, 798.5, DType::kBf16, 4), 0, 0.055);
}

// One SM with all rows: 5 pages of keys and values that nobody waits for, and of each weight its
// blocks of 16 rows times its pages of 1,024 columns; 256 and 512 columns are one page.
TEST(MegakernelTiming, OneSmTakesTheProductsOfItsPages) {
  const Program program = compile(SmallDecoder{}.plan(1), {.num_sms = 1});
  const double blocks_of_layer = 32 + 16 + 64 + 16;  // qkv 512, output 256, gate_up 512, down 256
  const double blocks = 2 * blocks_of_layer + 19;    // vocab 302
  EXPECT_NEAR(simulate_forward(program, kProductsAlone).duration.value(), blocks * 1e-6, 1e-12);
}

// fp8 rows are half as long: one page of a block where bf16 has two.
TEST(MegakernelTiming, RowsOfFp8TakeHalfThePages) {
  MachineTimes times = kProductsAlone;
  times.fp8_page = Seconds(3e-6);
  const auto time_of = [&](DType dtype) {
    const Program program = compile(plan_of(kLlama1b, 0, dtype), {.num_sms = 1});
    return simulate_forward(program, times).duration.value();
  };
  const double head = 128256.0 / 16 * 2;  // pages; tied, so bf16
  const double layer = (3072.0 / 16 + 2048.0 / 16 + 8192.0 / 8) * 2 + 2048.0 / 16 * 8;
  EXPECT_NEAR(time_of(DType::kBf16), (16 * layer + head) * 1e-6, 1e-9);
  EXPECT_NEAR(time_of(DType::kFp8), (16 * layer / 2 * 3 + head) * 1e-6, 1e-9);
}

TEST(MegakernelTiming, KeysArePagesOfThePartsThatHaveThem) {
  // 256 cached keys in pages of 128, two kv heads, two layers.
  const auto with_keys = [](std::int64_t pages_of_part, int num_sms) {
    const Plan plan = SmallDecoder{}.plan(257);
    const Program program = compile(plan, {.num_sms = num_sms, .pages_of_part = pages_of_part});
    return simulate_forward(program, kProductsAlone).duration.value();
  };
  const Program none = compile(SmallDecoder{}.plan(1), {.num_sms = 1});
  const double without = simulate_forward(none, kProductsAlone).duration.value();
  EXPECT_NEAR(with_keys(4, 1) - without, 2 * 2 * 2 * 5e-6, 1e-12);
}

TEST(MegakernelTiming, BytesComeAtTheRateOfTheMemory) {
  MachineTimes slow = kProductsAlone;
  slow.page = Seconds(1e-15);
  slow.hbm_rate = BytesPerSecond(1e9);
  // All weights but the embedding once, in bf16.
  const double layer = 512 * 256 + 256 * 256 + 2 * 512 * 256 + 256 * 512;
  const double bytes = 2 * (2 * layer + 302 * 256);
  for (const int num_sms : {1, 4}) {
    const Program program = compile(SmallDecoder{}.plan(1), {.num_sms = num_sms});
    const double time = simulate_forward(program, slow).duration.value();
    EXPECT_GT(time, bytes / 1e9 * (1 - 1e-6));
    EXPECT_LT(time, bytes / 1e9 * 1.05);
  }
}

TEST(MegakernelTiming, EachPhaseWaitsAHop) {
  MachineTimes far = kProductsAlone;
  const Program program = compile(SmallDecoder{}.plan(1), {.num_sms = 8});
  const Seconds near = simulate_forward(program, far).duration;
  far.hop = Seconds(1e-3);
  // Five phases of each layer, the logits and the pick; the first reads the token alone.
  const Seconds later = simulate_forward(program, far).duration - near;
  EXPECT_NEAR(later.value(), (2 * 5 + 2 - 1) * 1e-3, 1e-5);
}

TEST(MegakernelTiming, NamesWhoWaitsForEver) {
  Program program = compile(SmallDecoder{}.plan(64), {.num_sms = 4});
  auto& own = program.instructions[2];
  const auto lost = std::ranges::find(own, Opcode::kGateUp, &Instruction::opcode);
  ASSERT_NE(lost, own.end());
  // Its rows are counted where another SM has them, too late: behind the end of all it waits for.
  const Instruction moved = *lost;
  own.erase(lost);
  auto& last = program.instructions[3];
  last.insert(last.end() - 1, moved);
  EXPECT_THROW(static_cast<void>(simulate_forward(program, kMeasured)), std::logic_error);
}

TEST(MegakernelTiming, SchedulesAreRanked) {
  const auto ranked = rank_schedules(plan_of(kLlama1b, 512), 132, kMeasured);
  ASSERT_EQ(ranked.size(), kSchedules.size());
  EXPECT_TRUE(std::ranges::is_sorted(ranked, {}, &RankedSchedule::duration));
  // Left-over rows by bytes leave some SMs with one block more in a phase, which all wait for.
  const auto place = [&](Schedule schedule) {
    return std::ranges::find(ranked, schedule, &RankedSchedule::schedule) - ranked.begin();
  };
  EXPECT_LT(place(Schedule::kRoundRobin), place(Schedule::kLeastBytes));
}

}  // namespace
}  // namespace orrery::megakernel
