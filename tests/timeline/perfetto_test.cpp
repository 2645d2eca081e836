#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "sim/timeline/timeline.h"
#include "tests/timeline/spans.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

// Events of a phase: "X" are spans and transfers, "M" names of rows.
std::vector<Json> events(const Timeline& timeline, const std::string& phase = "X") {
  const Json trace = Json::parse(to_perfetto(timeline));
  std::vector<Json> found;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") == phase) found.push_back(event);
  }
  return found;
}

// Names of processes ("process_name") or of threads ("thread_name").
std::vector<std::string> names(const Timeline& timeline, const std::string& kind) {
  std::vector<std::string> found;
  for (const Json& event : events(timeline, "M")) {
    if (event.at("name") == kind) found.push_back(event.at("args").at("name"));
  }
  return found;
}

using Names = std::vector<std::string>;

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
  const Timeline t = timeline_of({kernel_span(0, 1, 0), comm_span(1, 2, 0), kernel_span(0, 1, 3)});
  EXPECT_EQ(names(t, "process_name"), (Names{"rank 0", "rank 3"}));
  EXPECT_EQ(names(t, "thread_name"), (Names{"stream 0", "stream 1", "stream 0"}));
}

TEST(Perfetto, EventsCarryOpKindBasisAndMicroseconds) {
  Timeline t = timeline_of({kernel_span(12.3e-6, 15e-6, 2, 1)});
  t.spans[0].basis = Basis::kInterpolated;
  t.spans[0].copy = 7;
  const Json expected = {{"ph", "X"},
                         {"name", "gemm"},
                         {"cat", "kernel"},
                         {"pid", 2},
                         {"tid", 1},
                         {"ts", 12.3},
                         {"dur", 2.7},
                         {"cname", "good"},
                         {"args", {{"basis", "interpolated"}, {"op", 0}, {"copy", 7}}}};
  EXPECT_EQ(events(t), std::vector<Json>{expected});
}

TEST(Perfetto, NeighboursDoNotOverlapAfterRounding) {
  // 0.4 ns and 1.6 ns round to 0 and 2: the first event is [0, 0] and the second starts at 0, so
  // start + duration of one never exceeds the start of the next.
  const auto found = events(timeline_of({kernel_span(0, 0.4e-9), kernel_span(0.4e-9, 1.6e-9)}));
  EXPECT_EQ(found.at(0).at("ts"), 0);
  EXPECT_EQ(found.at(0).at("dur"), 0);
  EXPECT_EQ(found.at(1).at("ts"), 0);
  EXPECT_EQ(found.at(1).at("dur"), 0.002);
}

TEST(Perfetto, NamesAreEscaped) {
  Timeline t = timeline_of({kernel_span(0, 1)});
  t.op_names[0] = "a \"b\" \\ \n";
  EXPECT_EQ(events(t).at(0).at("name"), t.op_names[0]);
}

TEST(Perfetto, BytesThatAreNotUtf8AreReplaced) {
  Timeline t = timeline_of({kernel_span(0, 1)});
  t.op_names[0] = "a\xff";
  EXPECT_EQ(events(t).at(0).at("name"), "a\xef\xbf\xbd");  // U+FFFD
}

TEST(Perfetto, ARankThatStandsForOthersSaysSo) {
  Timeline t = timeline_of({kernel_span(0, 1)});
  t.represented = {{0, 8}};
  EXPECT_EQ(names(t, "process_name"), Names{"rank 0 (stands for 8)"});
}

TEST(Perfetto, LinksAreAProcessWithAThreadEach) {
  const Timeline t = with_link({transfer(0, 1), transfer(1, 2)});
  EXPECT_EQ(names(t, "process_name"), (Names{"rank 0", "links"}));
  EXPECT_EQ(names(t, "thread_name"), (Names{"stream 0", "gpu0.nvlink.up"}));
  const auto found = events(t);
  ASSERT_EQ(found.size(), 3U);  // a kernel and two transfers
  for (const Json& event : {found[1], found[2]}) {
    EXPECT_EQ(event.at("name"), "all_reduce");
    EXPECT_EQ(event.at("cat"), "link");
    EXPECT_EQ(event.at("args"), (Json{{"op", 1}, {"bytes", 4096}}));
  }
}

TEST(Perfetto, OverlappingTransfersOfALinkHaveThreadsOfTheirOwn) {
  // The third fits behind the first.
  EXPECT_EQ(names(with_link({transfer(0, 2), transfer(1, 3), transfer(2, 4)}), "thread_name"),
            (Names{"stream 0", "gpu0.nvlink.up", "gpu0.nvlink.up (2)"}));
}

TEST(Perfetto, AnIdleLinkHasItsThreadToo) {
  EXPECT_EQ(names(with_link({}), "thread_name"), (Names{"stream 0", "gpu0.nvlink.up"}));
}

TEST(Perfetto, OfAnEmptyTimelineHasNoEvents) {
  EXPECT_EQ(Json::parse(to_perfetto({})),
            (Json{{"displayTimeUnit", "ns"}, {"traceEvents", Json::array()}}));
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
  EXPECT_EQ(events(timeline_of({kernel_span(0, 4e9)})).at(0).at("dur"), 4e15);
}

}  // namespace
}  // namespace orrery
