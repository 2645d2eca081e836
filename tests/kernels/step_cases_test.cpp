#include "kernels/execute/step_cases.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace orrery {
namespace {

namespace fs = std::filesystem;

// A directory of prepared steps, removed with the test.
class StepCases : public testing::Test {
 protected:
  StepCases() {
    fs::remove_all(directory_);
    fs::create_directories(directory_ / "steps");
  }
  ~StepCases() override { fs::remove_all(directory_); }

  void write(const std::string& file, const std::string& text) const {
    std::ofstream(directory_ / "steps" / file) << text;
  }
  // A decode step whose plan has `rows` rows.
  void write_case(const std::string& name, int decodes, int context, int rows) const {
    write(name + ".step",
          "mode graph\ndecodes " + std::to_string(decodes) + " " + std::to_string(context) + "\n");
    const std::string plan =
        "group g0 0\ntensor t0 hidden activation bf16 [tokens=" + std::to_string(rows) +
        ",hidden=8] g0\n";
    write(name + ".plan", plan);
  }
  std::string error() const {
    try {
      read_step_cases(directory_);
    } catch (const std::invalid_argument& found) {
      return found.what();
    }
    return "";
  }

  const fs::path directory_ =
      fs::temp_directory_path() /
      (std::string("step_cases_") + testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(StepCases, AreReadByNameOrAsAskedFor) {
  write_case("b", 1, 10, 1);
  write_case("a", 3, 70, 4);
  const std::vector<StepCase> all = read_step_cases(directory_);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].name, "a");
  EXPECT_EQ(all[0].step.batch.num_decodes, 3);
  EXPECT_EQ(all[0].plan.tensors().at(0).axes.at(0).size, 4);
  EXPECT_EQ(all[1].name, "b");
  const std::vector<std::string> only = {"b"};
  EXPECT_EQ(read_step_cases(directory_, only).size(), 1U);
}

TEST_F(StepCases, LimitsCountPaddedRows) {
  write_case("a", 3, 70, 4);
  write_case("b", 1, 200, 1);
  const StepLimits limits = limits_of(read_step_cases(directory_), 64);
  EXPECT_EQ(limits.rows, 4);
  EXPECT_EQ(limits.sequences, 3);
  EXPECT_EQ(limits.context, 200);
  EXPECT_EQ(limits.kv_blocks, 6);  // 3 sequences of 2 blocks, against one of 4
  EXPECT_EQ(limits_of(read_step_cases(directory_), 64, 2).kv_blocks, 4);  // two of them on a rank
}

TEST_F(StepCases, WhatIsMissingOrMalformedIsNamed) {
  const std::string steps = (directory_ / "steps").string();
  EXPECT_EQ(error(), steps + ": no steps; expected <name>.step as orrery validate writes them");
  write("a.step", "mode eager\ndecodes 1 1\n");
  EXPECT_EQ(error(), steps + "/a.plan: cannot be read; expected a plan");
  write("a.plan", "group g0 0\nnonsense\n");
  EXPECT_TRUE(error().starts_with(steps + "/a.plan: "));
  EXPECT_NE(error().find("2"), std::string::npos);
}

TEST_F(StepCases, LayersCountAsTheyRun) {
  write_case("a", 3, 70, 4);
  write("layers.step", "mode eager\nlayers 2 64\n");
  write("layers.plan", "group g0 0\ntensor t0 x input bf16 [tokens=64,hidden=8] g0\n");
  const std::vector<StepCase> all = read_step_cases(directory_);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(num_layers(all[0]), 0);
  EXPECT_EQ(num_tokens(all[0]), 3);
  EXPECT_EQ(num_layers(all[1]), 2);
  EXPECT_EQ(num_tokens(all[1]), 64);
  // They need no sequences and no KV blocks, and their rows are not a step's.
  EXPECT_EQ(limits_of(all, 64).rows, 4);
}

// Two ops of three layers, and a whole step's.
TEST_F(StepCases, APlanThatIsNotSoManyLayersIsNamed) {
  write("a.step", "mode eager\nlayers 3 64\n");
  write("a.plan", "group g0 0\nop o0 a host d2h_sync g0 s0\nop o1 b host d2h_sync g0 s0\n");
  EXPECT_NE(error().find("a.step: found 3 layers, but the plan has 2 ops"), std::string::npos)
      << error();
  write("a.step", "mode eager\nlayers 1 64\n");
  write("a.plan",
        "group g0 0\ntensor t0 ids input int32 [tokens=4] g0\n"
        "tensor t1 table weight bf16 [vocab=8,hidden=8] g0\n"
        "tensor t2 out activation bf16 [tokens=4,hidden=8] g0\n"
        "op o0 embedding kernel embedding bf16 tokens=4 vocab=8 hidden=8 g0 s0 "
        "ids=t0 table=t1 -> y=t2\n");
  EXPECT_NE(error().find("a.step: found layers, but the plan is a whole step's"), std::string::npos)
      << error();
}

}  // namespace
}  // namespace orrery
