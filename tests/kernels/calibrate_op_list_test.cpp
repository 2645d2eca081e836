#include <gtest/gtest.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/calibrate/op_list.h"

namespace orrery::calibrate {
namespace {

void expect_error(const std::string& text, const std::string& part) {
  try {
    parse_ops(text, "ops.txt");
    FAIL() << "no error, expected one with: " << part;
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(OpList, ReadsCallsAsPlansWriteThem) {
  const auto ops = parse_ops(
      "# a comment\n\ngemm bf16 m=64 n=4096 k=512\r\n"
      "rope bf16 tokens=64:tokens heads=40:qkv head_dim=128\n",
      "ops.txt");
  ASSERT_EQ(ops.size(), 2U);
  EXPECT_EQ(op_text(ops[0]), "gemm bf16 m=64 n=4096 k=512");
  // Axes are no part of what is measured.
  EXPECT_EQ(op_text(ops[1]), "rope bf16 tokens=64 heads=40 head_dim=128");
  EXPECT_EQ(ops[1].dims.front().axis, "");
}

TEST(OpList, LeavesOutDimsThatNoRowHas) {
  const std::string layer =
      "fused_moe bf16 tokens=64 hidden=256 ffn=128 experts_total=8 topk=2 activation=0 experts=8 "
      "shared=0";
  const auto ops = parse_ops(layer + " capacity_percent=50\n" + layer + "\n", "ops.txt");
  ASSERT_EQ(ops.size(), 1U);
  EXPECT_EQ(op_text(ops[0]), layer);
}

TEST(OpList, TakesEachCallOnce) {
  EXPECT_EQ(
      parse_ops("gemm bf16 m=64 n=4096:qkv k=512\ngemm bf16 m=64 n=4096 k=512\n", "ops.txt").size(),
      1U);
}

TEST(OpList, SaysTheLineOfWhatItCannotRead) {
  expect_error("gemm bf16 m=64 n=4096 k=512\ngem bf16 m=1 n=1 k=1\n", "ops.txt:2: ");
  expect_error("gem bf16 m=1 n=1 k=1\n", "gemm");
  expect_error("gemm bf17 m=1 n=1 k=1\n", "ops.txt:1: unknown dtype \"bf17\"");
  expect_error("gemm bf16 m=1 n=1\n", "ops.txt:1: ");
  expect_error("gemm bf16 m=1 n=1 k=none\n", "the size of dim k");
  expect_error("gemm bf16 m=1 n=0 k=4\n", "ops.txt:1: ");
  expect_error("grouped_gemm bf16 rows=8 n=64 k=64 groups=1 active=1 leaves 24\n",
               "ops.txt:1: the call leaves 24 SMs, expected none");
  expect_error("gemm bf16 m=1 n=64 k=64 leaves 24\n", "gemm leaves 24 SMs, expected none");
  expect_error("# nothing\n", "found no kernel call");
  EXPECT_THROW(read_ops("/nowhere/ops.txt"), std::invalid_argument);
}

// Adds the call to `timed`.
TimePoint writes_down(std::vector<std::string>& timed) {
  return [&timed](const KernelOp& op, std::span<const State> states, bool power) {
    EXPECT_EQ(states.size(), 1U);
    EXPECT_EQ(states.front(), State());
    EXPECT_FALSE(power);
    timed.push_back(op_text(op));
    return std::vector<Row>{
        {.op = op, .state = states.front(), .refusal = {}, .time = Seconds(1e-6), .samples = 3}};
  };
}

TEST(OpList, MeasuresWhatTheJournalDoesNotHold) {
  const auto path = std::filesystem::temp_directory_path() / "orrery_op_list_journal.txt";
  std::filesystem::remove(path);
  const auto ops = parse_ops("gemm bf16 m=1 n=64 k=64\ngemm bf16 m=2 n=64 k=64\n", "ops.txt");
  std::vector<std::string> timed;
  const TimePoint time_point = writes_down(timed);
  std::size_t done = 0;
  {
    Journal journal(path, {{.name = "device", .value = "a GPU", .must_match = true}}, false);
    const auto goes_on = [&](std::size_t count) {
      done = count;
      return true;
    };
    measure_ops({ops.data(), 1}, journal, time_point, goes_on);
    EXPECT_EQ(done, 1U);
    measure_ops(ops, journal, time_point, goes_on);
    EXPECT_EQ(journal.rows().size(), 2U);
  }
  EXPECT_EQ(done, 2U);
  EXPECT_EQ(timed,
            (std::vector<std::string>{"gemm bf16 m=1 n=64 k=64", "gemm bf16 m=2 n=64 k=64"}));
  std::filesystem::remove(path);
}

TEST(OpList, MeasuresFromTheFirstOnWhileThereIsTime) {
  const auto path = std::filesystem::temp_directory_path() / "orrery_op_list_in_time.txt";
  std::filesystem::remove(path);
  const auto ops = parse_ops(
      "gemm bf16 m=1 n=64 k=64\ngemm bf16 m=2 n=64 k=64\ngemm bf16 m=3 n=64 k=64\n", "ops.txt");
  std::vector<std::string> timed;
  {
    Journal journal(path, {{.name = "device", .value = "a GPU", .must_match = true}}, false);
    measure_ops(ops, journal, writes_down(timed), [](std::size_t done) { return done < 2; });
    EXPECT_EQ(journal.rows().size(), 2U);
  }
  EXPECT_EQ(timed.back(), "gemm bf16 m=2 n=64 k=64");
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace orrery::calibrate
