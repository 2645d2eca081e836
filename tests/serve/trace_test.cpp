#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "sim/serve/workload.h"

namespace orrery {
namespace {

class TraceTest : public ::testing::Test {
 protected:
  ~TraceTest() override { std::filesystem::remove(file_); }

  const std::filesystem::path& write(const std::string& text) {
    std::ofstream(file_) << text;
    return file_;
  }
  // The message with which reading `text` as CSV or Mooncake JSONL fails.
  std::string refusal(const std::string& text, bool is_mooncake = false) {
    write(text);
    try {
      static_cast<void>(is_mooncake ? read_mooncake_trace(file_) : read_csv_trace(file_));
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "(read)";
  }
  void expect_refusal(const std::string& text, const std::string& part, bool is_mooncake = false) {
    const std::string message = refusal(text, is_mooncake);
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_EQ(message.find(file_.string()), 0U) << message;
  }

 private:
  std::filesystem::path file_ = std::filesystem::temp_directory_path() /
                                (std::string("orrery_trace_") +
                                 ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

constexpr auto kAzureHeader = "TIMESTAMP,ContextTokens,GeneratedTokens\n";

TEST_F(TraceTest, AzureTimesStartAtZeroAndKeepTheirFraction) {
  const Workload workload =
      read_csv_trace(write(std::string(kAzureHeader) + "2023-11-16 23:59:59.7500000,374,44\r\n"
                                                       "2023-11-17 00:00:01.2500000,396,109\r\n"));
  ASSERT_EQ(workload.requests.size(), 2U);
  EXPECT_EQ(workload.requests[0].arrival, Seconds(0));
  EXPECT_DOUBLE_EQ(workload.requests[1].arrival.value(), 1.5);  // over midnight
  EXPECT_EQ(workload.requests[1].prompt_tokens, 396);
  EXPECT_EQ(workload.requests[1].output_tokens, 109);
}

TEST_F(TraceTest, ColumnsMayComeInAnyOrderAndPlainSecondsWork) {
  const Workload workload =
      read_csv_trace(write("prompt_tokens,other,output_tokens,arrival_s\n5,x,6,1.5\n7,y,8,2\n"));
  EXPECT_EQ(workload.requests[1].prompt_tokens, 7);
  EXPECT_DOUBLE_EQ(workload.requests[1].arrival.value(), 0.5);
}

TEST_F(TraceTest, OnlyTheFirstRequestsAreReadWhenAsked) {
  const auto& file = write("arrival_s,prompt_tokens,output_tokens\n0,1,1\n1,1,1\n2,1,1\n");
  EXPECT_EQ(read_csv_trace(file, 2).requests.size(), 2U);
}

TEST_F(TraceTest, AMissingColumnIsNamed) {
  expect_refusal("TIMESTAMP,ContextTokens\n", "without GeneratedTokens");
  expect_refusal("arrival_s,prompt_tokens\n", "without output_tokens");
}

TEST_F(TraceTest, BadFieldsNameTheirLine) {
  const std::string header = "arrival_s,prompt_tokens,output_tokens\n";
  expect_refusal(header + "0,1,1\nabc,1,1\n", ":3: arrival_s is \"abc\"");
  expect_refusal(header + "nan,1,1\n", ":2: the timestamp is not finite");
  expect_refusal(header + "inf,1,1\n", ":2: the timestamp is not finite");
  expect_refusal(header + "5,1,1\n4,1,1\n", ":3: the timestamp is before");
  expect_refusal(header + "0,1,0\n", ":2: output_tokens is \"0\"");
  expect_refusal(header + "0,-3,1\n", ":2: prompt_tokens is \"-3\"");
  expect_refusal(header + "0,1.5,1\n", ":2: prompt_tokens is \"1.5\"");
  expect_refusal(header + "0,1e300,1\n", ":2: prompt_tokens is \"1e300\"");
  expect_refusal(header + "0,1\n", ":2: found 2 fields");
  expect_refusal(std::string(kAzureHeader) + "2023-13-16 18:15:46,1,1\n", ":2: TIMESTAMP is");
  expect_refusal(std::string(kAzureHeader) + "yesterday,1,1\n", ":2: TIMESTAMP is");
}

TEST_F(TraceTest, WhatWouldLetItPassIsNamed) {
  const std::string header = "arrival_s,prompt_tokens,output_tokens\n";
  expect_refusal(header + "5,1,1\n4,1,1\n", "expected ascending ones, or sort: true");
  expect_refusal(header + "0,1,0\n", "or drop_invalid: true");
}

TEST_F(TraceTest, WholeNumbersMayHaveADecimalPointAsDataFramesWriteThem) {
  const Workload workload =
      read_csv_trace(write("arrival_s,prompt_tokens,output_tokens\n0,128.0,64.0\n"));
  EXPECT_EQ(workload.requests[0].prompt_tokens, 128);
  EXPECT_EQ(workload.requests[0].output_tokens, 64);
}

TEST_F(TraceTest, ARowWithMoreOrFewerCellsThanTheHeaderIsRefused) {
  const std::string header = "arrival_s,prompt_tokens,output_tokens\n";
  // "1,5" was meant as 1.5: without the check arrival 1, prompt 5, output 10.
  expect_refusal(header + "1,5,10,10\n", ":2: found 4 fields, expected the 3 of the header");
  expect_refusal("arrival_s,prompt_tokens,output_tokens,note\n1,5,10\n",
                 ":2: found 3 fields, expected the 4 of the header");
  expect_refusal("arrival_s,prompt_tokens,output_tokens,prompt_tokens\n0,1,1,2\n",
                 ":1: found the column prompt_tokens twice");
}

TEST_F(TraceTest, DatesAndTimesThatNoCalendarHasAreRefused) {
  for (const char* stamp :
       {"2023-02-30 18:00:00", "2023-02-29 18:00:00", "1900-02-29 18:00:00", "2023-04-31 18:00:00",
        "2023-11-16 -1:00:00", "2023-11-16 18:-5:00", "2023-11-16 18:00:-9", "-123-11-16 18:00:00",
        "2023-11-00 18:00:00", "2023-11-16 24:00:00", "2023-11-16 18:60:00"}) {
    expect_refusal(std::string(kAzureHeader) + stamp + ",1,1\n", ":2: TIMESTAMP is");
  }
  for (const char* stamp : {"2024-02-29 18:00:00", "2000-02-29 18:00:00", "2016-12-31 23:59:60"}) {
    EXPECT_EQ(refusal(std::string(kAzureHeader) + stamp + ",1,1\n"), "(read)") << stamp;
  }
}

TEST_F(TraceTest, FewerRequestsThanAskedForAreRefused) {
  const auto& file = write("arrival_s,prompt_tokens,output_tokens\n0,1,1\n1,1,1\n");
  EXPECT_EQ(read_csv_trace(file, 2).requests.size(), 2U);
  EXPECT_THROW(static_cast<void>(read_csv_trace(file, 3)), std::invalid_argument);
}

// Beside 1e17 s a double knows 16 s and no less: requests would seem to take no time.
TEST_F(TraceTest, ArrivalsWhereADoubleLosesTimeAreRefused) {
  const std::string header = "arrival_s,prompt_tokens,output_tokens\n";
  expect_refusal(header + "0,1,1\n1e17,1,1\n", ":3: the timestamp is 1e+17 s");
  expect_refusal(header + "0,1,1\n9007200,1,1\n", ":3: arrives 9007000 s after the first");
  EXPECT_EQ(refusal(header + "1.7e9,1,1\n1709007199,1,1\n"), "(read)");
}

TEST_F(TraceTest, FilesThatAreNoPlainTextAreNamedForWhatTheyAre) {
  expect_refusal("\x1f\x8b\x08....", "is compressed by gzip");
  expect_refusal("\x1f\x8b\x08....", "is compressed by gzip", true);
  expect_refusal(
      "\xff\xfe"
      "a",
      "is UTF-16 text");
  EXPECT_THROW(static_cast<void>(read_csv_trace("/dev/zero")), std::invalid_argument);
  EXPECT_THROW(static_cast<void>(read_csv_trace(".")), std::invalid_argument);
  const std::string row = "arrival_s,prompt_tokens,output_tokens\n0,1,1\n";
  EXPECT_EQ(refusal("\xef\xbb\xbf" + row), "(read)");  // UTF-8 with a mark, as spreadsheets write
}

TEST_F(TraceTest, WhatIsQuotedOfARowIsShort) {
  const std::string header = "arrival_s,prompt_tokens,output_tokens\n";
  EXPECT_LT(refusal(header + "0," + std::string(6'000'000, 'x') + ",1\n").size(), 500U);
  EXPECT_LT(refusal(std::string(6'000'000, 'x') + "\n").size(), 700U);
  expect_refusal(header + "\x1b[31m,1,1\n", "\\x1b[31m");
}

TEST_F(TraceTest, LinesLongerThanAPieceOfTheFileAreReadWhole) {
  std::string text = "arrival_s,prompt_tokens,output_tokens,note\n";
  for (int i = 0; i < 3; ++i) {
    text += std::to_string(i) + ",7,8," + std::string(1'500'000, 'x') + (i < 2 ? "\r\n" : "");
  }
  const Workload workload = read_csv_trace(write(text));
  ASSERT_EQ(workload.requests.size(), 3U);
  EXPECT_EQ(workload.requests[2].arrival, Seconds(2));
}

TEST_F(TraceTest, AnEmptyTraceAndAMissingFileAreErrors) {
  expect_refusal("arrival_s,prompt_tokens,output_tokens\n", "holds no request");
  EXPECT_THROW(static_cast<void>(read_csv_trace("/nowhere/trace.csv")), std::invalid_argument);
}

TEST_F(TraceTest, TimesMayNameTheirZone) {
  // One moment, said in UTC, two hours ahead of it and half an hour behind: all arrive at 0; the
  // last comes 1.5 s after.
  const Workload workload =
      read_csv_trace(write(std::string(kAzureHeader) + "2023-11-16T23:30:00.5Z,1,1\n"
                                                       "2023-11-17 01:30:00.5+02:00,2,1\n"
                                                       "2023-11-16 23:00:00.5-0030,3,1\n"
                                                       "2023-11-17T00:30:02+01,4,1\n"));
  ASSERT_EQ(workload.requests.size(), 4U);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(workload.requests[i].arrival, Seconds(0)) << i;
  EXPECT_DOUBLE_EQ(workload.requests[3].arrival.value(), 1.5);
}

TEST_F(TraceTest, WhatIsNoZoneIsRefused) {
  for (const char* zone : {"z", "+", "+1", "+24:00", "+01:60", "+01:0", "+01:000", "UTC", "Z+01"}) {
    expect_refusal(std::string(kAzureHeader) + "2023-11-16 23:30:00" + zone + ",1,1\n",
                   ":2: TIMESTAMP is");
  }
}

TEST_F(TraceTest, MooncakeWithoutHashesSharesNoBlocks) {
  const Workload workload = read_mooncake_trace(
      write("{\"timestamp\": 0, \"input_length\": 1100, \"output_length\": 6}\n"));
  ASSERT_EQ(workload.requests.size(), 1U);
  EXPECT_TRUE(workload.requests[0].block_hashes.empty());
}

TEST_F(TraceTest, MooncakeKeepsOnlyHashesOfFullBlocks) {
  // 1100 tokens hold two full blocks of 512; the third hash stands for the rest.
  const Workload workload = read_mooncake_trace(write(
      R"({"timestamp": 1500, "input_length": 1100, "output_length": 6, "hash_ids": [1, 2, 3]})"
      "\n"
      R"({"timestamp": 2000, "input_length": 512, "output_length": 1, "hash_ids": [1]})"
      "\n"));
  ASSERT_EQ(workload.requests.size(), 2U);
  EXPECT_EQ(workload.hash_block_tokens, 512);
  EXPECT_DOUBLE_EQ(workload.requests[1].arrival.value(), 0.5);
  EXPECT_EQ(workload.requests[0].block_hashes, (std::vector<std::uint64_t>{1, 2}));
  EXPECT_EQ(workload.requests[1].block_hashes, (std::vector<std::uint64_t>{1}));
}

// alibaba-edu/qwen-bailian-usagetraces-anon: seconds, blocks of 16; 40 tokens hold two full ones.
TEST_F(TraceTest, QwensServicesCountSecondsAndBlocksOf16) {
  const std::string line =
      R"({"chat_id": 1, "parent_chat_id": -1, "timestamp": 1.5, "input_length": 40, )"
      R"("output_length": 6, "type": "text", "turn": 1, "hash_ids": [1, 2, 3]})"
      "\n";
  const Workload workload = read_mooncake_trace(write(
      line +
      R"({"chat_id": 2, "parent_chat_id": 1, "timestamp": 4, "input_length": 16, "output_length": 1, "hash_ids": [1]})"
      "\n"));
  ASSERT_EQ(workload.requests.size(), 2U);
  EXPECT_EQ(workload.hash_block_tokens, 16);
  EXPECT_DOUBLE_EQ(workload.requests[1].arrival.value(), 2.5);
  EXPECT_EQ(workload.requests[0].block_hashes, (std::vector<std::uint64_t>{1, 2}));
  std::string more = line;
  more.replace(more.find("[1, 2, 3]"), 9, "[1, 2, 3, 4]");
  expect_refusal(more, "expected one for each of 3 blocks of 16", true);
}

TEST_F(TraceTest, MooncakeErrorsNameTheirLine) {
  expect_refusal("{\"timestamp\": 1}\n", ":1: expected an object with timestamp", true);
  expect_refusal("{broken\n", ":1:", true);
  expect_refusal(R"({"timestamp": 1, "input_length": 1, "output_length": 0, "hash_ids": []})"
                 "\n",
                 "expected at least 1", true);
  expect_refusal(R"({"timestamp": 2, "input_length": 1, "output_length": 1, "hash_ids": []})"
                 "\n"
                 R"({"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": []})"
                 "\n",
                 ":2: the timestamp is before", true);
}

TEST_F(TraceTest, MooncakeNumbersMustBeWhole) {
  const auto row = [](const std::string& input, const std::string& hashes) {
    return R"({"timestamp": 1, "output_length": 1, "input_length": )" + input +
           R"(, "hash_ids": )" + hashes + "}\n";
  };
  expect_refusal(row("3.7", "[]"), ":1: input_length is 3.7", true);
  expect_refusal(row("true", "[]"), ":1: input_length is true", true);
  expect_refusal(row("-3", "[]"), "expected at least 1", true);
  expect_refusal(row("600", "[-1]"), ":1: hash_ids has -1", true);
  expect_refusal(row("600", "[0.5]"), ":1: hash_ids is 0.5", true);
  expect_refusal(row("600", "7"), ":1: hash_ids is 7", true);
  expect_refusal(row("99999999999999999999", "[]"), ":1: input_length is", true);
}

TEST_F(TraceTest, DeeplyNestedJsonIsRefused) {
  const auto nested = [](int depth) {
    return R"({"timestamp": 1, "input_length": 600, "output_length": 1, "hash_ids": )" +
           std::string(static_cast<std::size_t>(depth), '[') +
           std::string(static_cast<std::size_t>(depth), ']') + "}\n";
  };
  expect_refusal(nested(200'000), ":1: found lists or objects nested more than 8 deep", true);
  expect_refusal(nested(3), ":1: hash_ids is a list, expected a whole number", true);
}

TEST_F(TraceTest, MooncakeRowsThatContradictThemselvesAreRefused) {
  const std::string row = R"({"timestamp": 1, "output_length": 1, "input_length": 1100, )";
  expect_refusal(row + R"("hash_ids": [1, 2, 3, 4]})"
                       "\n",
                 ":1: found 4 hash_ids for 1100 tokens, expected one for each of 3 blocks", true);
  expect_refusal(row + R"("hash_ids": [1], "hash_ids": [2]})"
                       "\n",
                 ":1: found the key \"hash_ids\" twice", true);
}

TEST_F(TraceTest, TheShippedTraceIsRead) {
  const std::filesystem::path traces = std::filesystem::path(ORRERY_SOURCE_DIR) / "data/traces";
  const Workload azure = read_csv_trace(traces / "azure_llm_2023_conv.csv");
  EXPECT_EQ(azure.requests.size(), 19366U);
  // 18:15:46.6805900 to 19:14:08.4025270.
  EXPECT_NEAR(azure.requests.back().arrival.value(), 3501.721937, 1e-6);
  EXPECT_EQ(azure.requests.front().prompt_tokens, 374);
  EXPECT_EQ(azure.requests.back().output_tokens, 183);
}

}  // namespace
}  // namespace orrery
