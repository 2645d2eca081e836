#include <gtest/gtest.h>

#include <string>

#include "kernels/kernel_spec.h"
#include "kernels/launch_gpu.h"
#include "sim/cost/cost.h"
#include "sim/cost/roofline.h"
#include "tests/cost/cost_testing.h"

namespace orrery {
namespace {

KernelOp decode(std::int64_t batch, std::int64_t context, std::int64_t kv_heads = 8) {
  return {.kernel = "attention_decode",
          .dtype = DType::kBf16,
          .dims = {{.name = "batch", .size = batch, .axis = {}},
                   {.name = "context", .size = context, .axis = {}},
                   {.name = "heads", .size = 32, .axis = {}},
                   {.name = "kv_heads", .size = kv_heads, .axis = {}},
                   {.name = "head_dim", .size = 128, .axis = {}},
                   {.name = "window", .size = 1 << 30, .axis = {}}}};
}

// Rows of one sequence: 10 us where blocks and rows begin together (256 and 1,024 tokens), 18 us
// where not (300 tokens).
Provider rows_of(const testing::TableDirectory& directory, const std::string& provider) {
  std::filesystem::create_directories(directory.path() / provider);
  directory.write(provider + "/attention_decode.csv",
                  "dtype,batch,context,heads,kv_heads,head_dim,window,time_us\n"
                  "bf16,1,256,32,8,128,0,10\nbf16,1,300,32,8,128,0,18\n"
                  "bf16,1,1024,32,8,128,0,10\n");
  return Provider::load(directory.path() / provider);
}

double time_us(const Provider& provider, std::int64_t context) {
  const Machine machine = make_machine(testing::node_spec());
  return 1e6 * CostModel(machine, &provider, nullptr, {}).kernel(decode(1, context)).time.value();
}

TEST(KernelWays, OwnCallsAreInterpolatedBetweenRowsOfTheirWay) {
  const testing::TableDirectory directory;
  const Provider own = rows_of(directory, "orrery");
  // Between 256 and 1,024 tokens alone: with a work model in proportion to the tokens 10 us.
  EXPECT_NEAR(time_us(own, 512), 10, 1);
  EXPECT_NEAR(time_us(own, 300), 18, 1e-9);  // its own row
  // Uneven calls, and all of other engines' kernels, lie between the nearest rows.
  EXPECT_GT(time_us(own, 330), 15);
  EXPECT_GT(time_us(rows_of(directory, "another"), 384), 13);
  EXPECT_NEAR(time_us(own, 384), 10, 1);
}

TEST(KernelWays, CallsOutsideOfTheRowsOfTheirWayAreAnsweredByAll) {
  // 16,384 tokens beyond the last row: eight KV heads read 67 MB more, some 14 us. Uneven splits of
  // so many tokens (16,400) take a merge more.
  const testing::TableDirectory directory;
  const Provider own = rows_of(directory, "orrery");
  EXPECT_GT(time_us(own, 16384), 18);
  EXPECT_LT(time_us(own, 16384), 32);
  EXPECT_GT(time_us(own, 16400), time_us(own, 16384));
}

// 4 KV heads have an uneven row alone (300 tokens, 40 us); 8 have an even one, at 0.9 of what the
// model of its launch says.
TEST(KernelWays, WithoutRowsOfTheirWayCallsAreAnsweredByThoseOfOtherKvHeads) {
  const testing::TableDirectory directory;
  std::filesystem::create_directories(directory.path() / "orrery");
  const auto launch_us = [](std::int64_t kv_heads) {
    const KernelOp op = decode(1, 512, kv_heads);
    const KernelSpec& spec = kernel_spec(op.kernel);
    return 1e6 * work_model_time(spec.prior, work_of(op), FlopsPerSecond(1e15),
                                 BytesPerSecond(4.8e12),
                                 spec.prior.launch(op.dtype, op.dims, launch::kNumSms))
                     .value();
  };
  directory.write("orrery/attention_decode.csv",
                  "dtype,batch,context,heads,kv_heads,head_dim,window,time_us\n"
                  "bf16,1,300,32,4,128,0,40\nbf16,1,700,32,4,128,0,40\n"
                  "bf16,1,512,32,8,128,0," +
                      std::to_string(0.9 * launch_us(8)) + "\n");
  const Provider own = Provider::load(directory.path() / "orrery");
  const Machine machine = make_machine(testing::node_spec());
  const CostModel cost(machine, &own, nullptr, {});
  const Estimate found = cost.kernel(decode(1, 512, 4));
  EXPECT_NEAR(1e6 * found.time.value() / launch_us(4), 0.9, 1e-3);
  EXPECT_EQ(found.basis, Basis::kRoofline);                               // rows of one side alone
  EXPECT_NEAR(1e6 * cost.kernel(decode(1, 400, 4)).time.value(), 40, 1);  // uneven, as its rows
}

KernelOp norm(std::int64_t tokens) {
  return {.kernel = "rms_norm",
          .dtype = DType::kBf16,
          .dims = {{.name = "tokens", .size = tokens, .axis = {}},
                   {.name = "hidden", .size = 1000, .axis = {}}}};
}

TEST(WarmOperands, SavePartOfWhatCallsDoThatWereMeasuredBothWays) {
  const testing::TableDirectory directory;
  // Warm 0.5 of the cold time at 100 tokens, 0.8 at 10,000: 0.65 at 1,000 in between, in log-bytes;
  // 0.4 of what that saves.
  directory.write("rms_norm.csv",
                  "dtype,tokens,hidden,time_us,l2,mode\n"
                  "bf16,100,1000,2,cold,graph\nbf16,100,1000,1,warm,graph\n"
                  "bf16,1000,1000,8,cold,graph\n"
                  "bf16,10000,1000,40,cold,graph\nbf16,10000,1000,32,warm,graph\n");
  const Provider provider = Provider::load(directory.path());
  const Machine machine = make_machine(testing::node_spec());
  const CostModel cost(machine, &provider, nullptr, {});
  const auto time_us = [&](std::int64_t tokens) {
    return 1e6 * cost.kernel(norm(tokens)).time.value();
  };
  EXPECT_NEAR(time_us(100), 2 * (1 - 0.4 * 0.5), 1e-9);
  EXPECT_NEAR(time_us(1000), 8 * (1 - 0.4 * 0.35), 1e-2);  // the weights count among the bytes
  EXPECT_NEAR(time_us(10000), 40 * (1 - 0.4 * 0.2), 1e-9);
}

TEST(WarmOperands, AreNotWeights) {
  const testing::TableDirectory directory;
  directory.write("gemm.csv",
                  "dtype,m,n,k,time_us,l2,mode\nbf16,1,1024,1024,4,cold,graph\n"
                  "bf16,1,1024,1024,2,warm,graph\n");
  const Provider provider = Provider::load(directory.path());
  const Machine machine = make_machine(testing::node_spec());
  const CostModel cost(machine, &provider, nullptr, {});
  EXPECT_NEAR(1e6 * cost.kernel(testing::gemm(1, 1024, 1024)).time.value(), 4, 1e-9);
}

TEST(LongGemms, OfOurOwnAreNotReadWhereTheClockFellWhileTheyWereTimed) {
  const testing::TableDirectory directory;
  // Twice the rows take twice as long up to 4 ms; then the clock fell, or fell now and then.
  const std::string rows =
      "dtype,m,n,k,time_us,spread\nbf16,1024,16384,16384,1000,0.001\n"
      "bf16,4096,16384,16384,4000,0.001\nbf16,4608,16384,16384,5000,0.1\n"
      "bf16,8192,16384,16384,9500,0.001\n";
  std::filesystem::create_directories(directory.path() / "orrery");
  std::filesystem::create_directories(directory.path() / "another");
  directory.write("orrery/gemm.csv", rows);
  directory.write("another/gemm.csv", rows);
  const Machine machine = make_machine(testing::node_spec());
  const auto time_ms = [&](const std::string& provider, std::int64_t m) {
    const Provider tables = Provider::load(directory.path() / provider);
    return 1e3 * CostModel(machine, &tables, nullptr, {})
                     .kernel(testing::gemm(m, 16384, 16384))
                     .time.value();
  };
  EXPECT_NEAR(time_ms("orrery", 4096), 4, 1e-9);
  EXPECT_NEAR(time_ms("orrery", 4608), 4.5, 0.1);
  EXPECT_NEAR(time_ms("orrery", 8192), 8, 0.2);
  EXPECT_NEAR(time_ms("another", 4608), 5, 1e-9);
  EXPECT_NEAR(time_ms("another", 8192), 9.5, 1e-9);
}

TEST(WholeRounds, AreWhatGemmsOfFp8AreInterpolatedBy) {
  // 32 tiles of 128 x 128 for each 128 rows: up to 512 rows one round of 132 SMs, up to 1,024 two.
  const testing::TableDirectory directory;
  const std::string rows =
      "dtype,m,n,k,time_us\nfp8,128,4096,4096,14\nfp8,512,4096,4096,14.6\n"
      "fp8,1024,4096,4096,25.6\n";
  std::filesystem::create_directories(directory.path() / "orrery");
  std::filesystem::create_directories(directory.path() / "another");
  directory.write("orrery/gemm.csv", rows);
  directory.write("another/gemm.csv", rows);
  const Machine machine = make_machine(testing::node_spec());
  const auto time_us = [&](const std::string& provider, std::int64_t m) {
    const Provider tables = Provider::load(directory.path() / provider);
    KernelOp op = testing::gemm(m, 4096, 4096);
    op.dtype = DType::kFp8;
    return 1e6 * CostModel(machine, &tables, nullptr, {}).kernel(op).time.value();
  };
  EXPECT_NEAR(time_us("orrery", 300), 14.3, 0.3);
  EXPECT_NEAR(time_us("orrery", 513), 24.5, 1.5);  // measured 23.4
  EXPECT_NEAR(time_us("orrery", 900), 25.4, 1.5);
  EXPECT_NEAR(time_us("another", 513), 14.6, 0.2);  // whose tiles are not known
}

TEST(StreamedWeights, HideWhatRunsBeforeThem) {
  const testing::TableDirectory directory;
  std::filesystem::create_directories(directory.path() / "orrery");
  directory.write("orrery/add_rms_norm.csv",
                  "dtype,tokens,hidden,time_us\nbf16,1,4096,1\nbf16,64,4096,2\nbf16,128,4096,3\n");
  const Provider own = Provider::load(directory.path() / "orrery");
  const Machine machine = make_machine(testing::node_spec());
  const CostModel cost(machine, &own, nullptr, {});
  const auto norm_us = [&](std::int64_t tokens) {
    const KernelOp op{.kernel = "add_rms_norm",
                      .dtype = DType::kBf16,
                      .dims = {{.name = "tokens", .size = tokens, .axis = {}},
                               {.name = "hidden", .size = 4096, .axis = {}}}};
    return 1e6 * cost.kernel(op).time.value();
  };
  EXPECT_NEAR(norm_us(1), 1, 1e-9);  // shorter than until the weights are asked for
  EXPECT_NEAR(norm_us(64), 1.3, 1e-9);
  EXPECT_NEAR(norm_us(128), 3, 1e-9);  // gemms of more rows wait
}

}  // namespace
}  // namespace orrery
