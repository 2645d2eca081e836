#include "kernels/tool/arguments.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace orrery::tool {
namespace {

// What stands on a command line, as a command with one flag, two options and a directory reads it.
struct Line {
  std::string read(const std::vector<std::string_view>& arguments,
                   std::string_view operand = "a directory") {
    const std::vector<Option> options = {
        {"--quick", [&] { is_quick = true; }},
        {"--gpus", [&](const Value& value) { gpus = value.small(1, 8); }},
        {"--only", [&](const Value& value) { only = split(value.text, ','); }}};
    return std::string(read_arguments("run", arguments, options, operand));
  }
  std::string refusal(const std::vector<std::string_view>& arguments,
                      std::string_view operand = "a directory") {
    try {
      static_cast<void>(read(arguments, operand));
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  }
  bool is_quick = false;
  int gpus = 0;
  std::vector<std::string_view> only;
};

TEST(Arguments, FlagsOptionsAndTheOperandStandInAnyOrder) {
  Line line;
  EXPECT_EQ(line.read({"--gpus", "2", "dir", "--quick", "--only", "a,b"}), "dir");
  EXPECT_TRUE(line.is_quick);
  EXPECT_EQ(line.gpus, 2);
  EXPECT_EQ(line.only, (std::vector<std::string_view>{"a", "b"}));
}

TEST(Arguments, TheLastOfAnOptionGivenTwiceCounts) {
  Line line;
  static_cast<void>(line.read({"--gpus", "2", "dir", "--gpus", "3"}));
  EXPECT_EQ(line.gpus, 3);
}

TEST(Arguments, AValueMayLookLikeAnOption) {
  Line line;
  static_cast<void>(line.read({"dir", "--only", "--quick"}));
  EXPECT_EQ(line.only, std::vector<std::string_view>{"--quick"});
  EXPECT_FALSE(line.is_quick);
}

TEST(Arguments, WhatIsWrongIsNamedWithItsCommand) {
  Line line;
  EXPECT_EQ(line.refusal({"dir", "--gpu", "2"}),
            "run: unknown option '--gpu', nearest is '--gpus'");
  EXPECT_EQ(line.refusal({"dir", "--gpus"}), "run: --gpus needs a value");
  EXPECT_EQ(line.refusal({}), "run: needs a directory");
  EXPECT_EQ(line.refusal({"dir", "other"}), "run: found 'other'; expected only a directory");
  EXPECT_EQ(line.refusal({"dir"}, ""), "run: found 'dir'; expected options alone");
}

TEST(Arguments, AWholeNumberIsAllOfItsTextAndWithinItsLimits) {
  EXPECT_EQ((Value{.name = "n", .text = "0"}.whole(0)), 0);
  EXPECT_EQ((Value{.name = "n", .text = "9223372036854775807"}.whole(0)), INT64_MAX);
  for (const std::string_view text :
       {"", "1x", " 1", "1.0", "-1", "0", "9", "9223372036854775808"}) {
    try {
      static_cast<void>(Value{.name = "n", .text = text}.whole(1, 8));
      ADD_FAILURE() << text;
    } catch (const std::invalid_argument& error) {
      EXPECT_EQ(error.what(),
                "n: found '" + std::string(text) + "'; expected a whole number from 1 to 8");
    }
  }
}

TEST(Arguments, OneIsNoPlural) {
  EXPECT_EQ(counted(1, "GPU"), "1 GPU");
  EXPECT_EQ(counted(0, "GPU") + ", " + counted(2, "rank"), "0 GPUs, 2 ranks");
}

TEST(Arguments, WordsHaveNoEmptyOnesAmongThem) {
  EXPECT_EQ(split("a,,b,", ','), (std::vector<std::string_view>{"a", "b"}));
  EXPECT_TRUE(split("", ' ').empty());
}

}  // namespace
}  // namespace orrery::tool
