#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>
#include <string>

#include "sim/timeline/timeline.h"
#include "tests/timeline/spans.h"

namespace orrery {
namespace {

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

bool has(const std::string& text, const std::string& part) { return count(text, part) > 0; }

Timeline with_link(std::vector<LinkSpan> transfers) {
  Timeline t = timeline_of({kernel_span(0, 1)});
  t.links = {"gpu0.nvlink.up"};
  t.link_spans = std::move(transfers);
  return t;
}

LinkSpan transfer(double start, double end) {
  return {.link = 0, .op = 1, .bytes = Bytes(4096), .start = Seconds(start), .end = Seconds(end)};
}

TEST(Perfetto, HasAProcessPerRankAndAThreadPerStream) {
  const std::string json =
      to_perfetto(timeline_of({kernel_span(0, 1, 0), comm_span(1, 2, 0), kernel_span(0, 1, 3)}));
  EXPECT_EQ(count(json, "\"process_name\""), 2U);
  EXPECT_TRUE(has(json, "\"name\":\"rank 0\""));
  EXPECT_TRUE(has(json, "\"name\":\"rank 3\""));
  EXPECT_EQ(count(json, "\"thread_name\""), 3U);
  EXPECT_EQ(count(json, "\"stream 0\""), 2U);
  EXPECT_EQ(count(json, "\"stream 1\""), 1U);
}

TEST(Perfetto, EventsCarryOpKindBasisAndMicroseconds) {
  Timeline t = timeline_of({kernel_span(12.3e-6, 15e-6, 2, 1)});
  t.spans[0].basis = Basis::kInterpolated;
  t.spans[0].copy = 7;
  EXPECT_TRUE(has(to_perfetto(t),
                  "{\"ph\":\"X\",\"name\":\"gemm\",\"cat\":\"kernel\",\"pid\":2,\"tid\":1,"
                  "\"ts\":12.300,\"dur\":2.700,\"cname\":\"good\","
                  "\"args\":{\"basis\":\"interpolated\",\"op\":0,\"copy\":7}}"));
}

TEST(Perfetto, NeighboursDoNotOverlapAfterRounding) {
  // 0.4 ns and 1.6 ns round to 0 and 2: the first event is [0, 0] and the second starts at 0, so
  // start + duration of one never exceeds the start of the next.
  const std::string json =
      to_perfetto(timeline_of({kernel_span(0, 0.4e-9), kernel_span(0.4e-9, 1.6e-9)}));
  EXPECT_TRUE(has(json, "\"ts\":0.000,\"dur\":0.000"));
  EXPECT_TRUE(has(json, "\"ts\":0.000,\"dur\":0.002"));
}

TEST(Perfetto, NamesAreEscaped) {
  Timeline t = timeline_of({kernel_span(0, 1)});
  t.op_names[0] = "a \"b\" \\ \n";
  EXPECT_TRUE(has(to_perfetto(t), "\"a \\\"b\\\" \\\\ \\u000a\""));
}

TEST(Perfetto, ARankThatStandsForOthersSaysSo) {
  Timeline t = timeline_of({kernel_span(0, 1)});
  t.represented = {{0, 8}};
  EXPECT_TRUE(has(to_perfetto(t), "\"rank 0 (stands for 8)\""));
}

TEST(Perfetto, LinksAreAProcessWithAThreadEach) {
  const std::string json = to_perfetto(with_link({transfer(0, 1), transfer(1, 2)}));
  EXPECT_TRUE(has(json, "\"name\":\"links\""));
  EXPECT_EQ(count(json, "gpu0.nvlink.up"), 1U);
  EXPECT_EQ(count(json, "\"name\":\"all_reduce\",\"cat\":\"link\""), 2U);
  EXPECT_TRUE(has(json, "\"bytes\":4096"));
}

TEST(Perfetto, OverlappingTransfersOfALinkHaveThreadsOfTheirOwn) {
  // The third fits behind the first.
  const std::string json = to_perfetto(with_link({transfer(0, 2), transfer(1, 3), transfer(2, 4)}));
  EXPECT_TRUE(has(json, "\"gpu0.nvlink.up\""));
  EXPECT_TRUE(has(json, "\"gpu0.nvlink.up (2)\""));
  EXPECT_FALSE(has(json, "\"gpu0.nvlink.up (3)\""));
}

TEST(Perfetto, AnIdleLinkHasItsThreadToo) {
  EXPECT_TRUE(has(to_perfetto(with_link({})), "\"gpu0.nvlink.up\""));
}

TEST(Perfetto, OfAnEmptyTimelineHasNoEvents) {
  EXPECT_EQ(to_perfetto({}), "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n]}\n");
}

TEST(Perfetto, BracesAndBracketsAreBalanced) {
  const std::string json = to_perfetto(with_link({transfer(0, 2), transfer(1, 3)}));
  EXPECT_EQ(count(json, "{"), count(json, "}"));
  EXPECT_EQ(count(json, "["), count(json, "]"));
  EXPECT_FALSE(has(json, ",\n]"));
  EXPECT_FALSE(has(json, "}\n{"));
}

TEST(Perfetto, UnknownOpsAndLinksAreErrors) {
  EXPECT_THROW(to_perfetto(timeline_of({kernel_span(0, 1, 0, 0, 3)})), std::invalid_argument);
  EXPECT_THROW(to_perfetto(timeline_of({kernel_span(0, 1, 0, 0, -1)})), std::invalid_argument);
  Timeline t = with_link({transfer(0, 1)});
  t.link_spans[0].link = 1;
  EXPECT_THROW(to_perfetto(t), std::invalid_argument);
}

TEST(Perfetto, TimesBeyondTheNanosecondsOf64BitsOverranABuffer) {
  for (const double end : {4.1e9, 1e10, 1e300, std::numeric_limits<double>::infinity(),
                           std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THROW(to_perfetto(timeline_of({kernel_span(0, end)})), std::invalid_argument) << end;
    EXPECT_THROW(to_perfetto(with_link({transfer(-end, 0)})), std::invalid_argument) << end;
  }
  EXPECT_TRUE(has(to_perfetto(timeline_of({kernel_span(0, 4e9)})), "\"dur\":4000000000000000.000"));
}

}  // namespace
}  // namespace orrery
