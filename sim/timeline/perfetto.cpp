#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <utility>

#include "sim/timeline/timeline.h"
#include "sim/units/parse.h"

namespace orrery {
namespace {

using Json = nlohmann::ordered_json;

// Reserved colour names of the trace viewer, by SpanKind: green, orange, grey.
constexpr std::array<std::string_view, 3> kColours{"good", "bad", "generic_work"};

// Nanoseconds of it, and of the difference of two, fit 64 bits.
constexpr Seconds kLatest(4e9);

std::int64_t nanoseconds(Seconds time) {
  if (!(time <= kLatest) || !(time >= kLatest * -1.0)) {
    throw std::invalid_argument("a span of the timeline starts or ends at " + to_text(time) +
                                ", expected at most " + to_text(kLatest));
  }
  return std::llround(time.value() * 1e9);
}

// Exact to the nanosecond up to 2^53 of them, 104 days.
double microseconds(std::int64_t ns) { return static_cast<double>(ns) / 1000; }

// What most of a trace's up to millions of events are: one object whose values are replaced, which
// takes a third of the time that objects of their own do.
struct SpanEvent {
  explicit SpanEvent(const Json& more) : json(object(more)) {}
  SpanEvent(const SpanEvent&) = delete;
  SpanEvent& operator=(const SpanEvent&) = delete;

  static Json object(const Json& more) {
    Json event = {{"ph", "X"}, {"name", ""}, {"cat", ""}, {"pid", 0},
                  {"tid", 0},  {"ts", 0},    {"dur", 0}};
    event.update(more);
    return event;
  }
  // Rounding start and end alike keeps neighbours from overlapping.
  void set(const std::string& op, std::string_view kind, int process, int stream, Seconds start,
           Seconds end) {
    const std::int64_t start_ns = nanoseconds(start);
    name = op;
    category = kind;
    pid = process;
    tid = stream;
    ts = microseconds(start_ns);
    dur = microseconds(nanoseconds(end) - start_ns);
  }
  static std::string& text(Json& value) { return value.get_ref<std::string&>(); }

  Json json;
  std::string& name = text(json["name"]);
  std::string& category = text(json["cat"]);
  Json& pid = json["pid"];
  Json& tid = json["tid"];
  Json& ts = json["ts"];
  Json& dur = json["dur"];
};

class Writer {
 public:
  explicit Writer(const Timeline& timeline) : timeline_(timeline) {
    // About the length of an event.
    out_.reserve(160 * (timeline.spans.size() + timeline.link_spans.size()) + 1024);
  }

  std::string write() && {
    out_ = R"({"displayTimeUnit":"ns","traceEvents":[)";
    write_ranks();
    if (!timeline_.links.empty()) write_links();
    out_ += "\n]}\n";
    return std::move(out_);
  }

 private:
  void write_ranks() {
    const std::map<int, int> represented(timeline_.represented.begin(),
                                         timeline_.represented.end());
    std::set<std::pair<int, int>> threads;
    for (const Span& span : timeline_.spans) threads.emplace(span.rank, span.stream);
    int named_rank = -1;
    for (const auto& [rank, stream] : threads) {
      if (rank != named_rank) {
        const auto found = represented.find(rank);
        const int count = found == represented.end() ? 1 : found->second;
        name_process(rank, "rank " + std::to_string(rank) +
                               (count > 1 ? " (stands for " + std::to_string(count) + ")" : ""));
        named_rank = rank;
      }
      name_thread(rank, stream, "stream " + std::to_string(stream));
    }
    SpanEvent event({{"cname", ""}, {"args", {{"basis", ""}, {"op", 0}, {"copy", 0}}}});
    Json& args = event.json["args"];
    std::string& colour = SpanEvent::text(event.json["cname"]);
    std::string& basis = SpanEvent::text(args["basis"]);
    Json& op = args["op"];
    Json& copy = args["copy"];
    for (const Span& span : timeline_.spans) {
      event.set(op_name(span.op), to_text(span.kind), span.rank, span.stream, span.start, span.end);
      colour = kColours.at(static_cast<std::size_t>(span.kind));
      basis = to_text(span.basis);
      op = span.op;
      copy = span.copy;
      add(event.json);
    }
  }

  // Transfers of one link that overlap go to lanes of their own, each to the first that is free.
  void write_links() {
    int process = 0;
    for (const Span& span : timeline_.spans) process = std::max(process, span.rank + 1);
    name_process(process, "links");
    std::vector<std::vector<std::size_t>> by_link(timeline_.links.size());
    for (std::size_t i = 0; i < timeline_.link_spans.size(); ++i) {
      const int link = timeline_.link_spans[i].link;
      if (link < 0 || static_cast<std::size_t>(link) >= by_link.size()) {
        throw std::invalid_argument("a transfer is on link " + std::to_string(link) +
                                    ", expected one of the timeline's " +
                                    std::to_string(by_link.size()) + " links");
      }
      by_link[static_cast<std::size_t>(link)].push_back(i);
    }
    int thread = 0;
    SpanEvent event(Json{{"args", nullptr}});
    for (std::size_t link = 0; link < by_link.size(); ++link) {
      std::ranges::stable_sort(by_link[link], {},
                               [&](std::size_t i) { return timeline_.link_spans[i].start; });
      std::vector<Seconds> lane_ends;
      for (const std::size_t i : by_link[link]) {
        const LinkSpan& transfer = timeline_.link_spans[i];
        const auto is_free = [&](Seconds end) { return end <= transfer.start; };
        const auto free = std::ranges::find_if(lane_ends, is_free);
        const auto lane = free - lane_ends.begin();
        if (free == lane_ends.end()) {
          name_lane(process, thread + static_cast<int>(lane), timeline_.links[link], lane);
          lane_ends.emplace_back();
        }
        lane_ends[static_cast<std::size_t>(lane)] = transfer.end;
        event.set(op_name(transfer.op), "link", process, thread + static_cast<int>(lane),
                  transfer.start, transfer.end);
        event.json["args"] = {{"op", transfer.op}, {"bytes", transfer.bytes.value()}};
        add(event.json);
      }
      if (lane_ends.empty()) name_lane(process, thread, timeline_.links[link], 0);
      thread += static_cast<int>(std::max<std::size_t>(lane_ends.size(), 1));
    }
  }

  void name_lane(int process, int thread, const std::string& link, std::int64_t lane) {
    name_thread(process, thread, lane == 0 ? link : link + " (" + std::to_string(lane + 1) + ")");
  }

  void name_process(int process, const std::string& name) {
    add({{"ph", "M"}, {"name", "process_name"}, {"pid", process}, {"args", {{"name", name}}}});
    add({{"ph", "M"},
         {"name", "process_sort_index"},
         {"pid", process},
         {"args", {{"sort_index", process}}}});
  }

  void name_thread(int process, int thread, const std::string& name) {
    add({{"ph", "M"},
         {"name", "thread_name"},
         {"pid", process},
         {"tid", thread},
         {"args", {{"name", name}}}});
  }

  void add(const Json& entry) {
    out_ += is_first_ ? "\n" : ",\n";
    // Names come from files, whose bytes need not be UTF-8.
    out_ += entry.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
    is_first_ = false;
  }

  [[nodiscard]] const std::string& op_name(OpId op) const {
    if (op < 0 || static_cast<std::size_t>(op) >= timeline_.op_names.size()) {
      throw std::invalid_argument("a span has op " + std::to_string(op) +
                                  ", expected one of the timeline's " +
                                  std::to_string(timeline_.op_names.size()) + " ops");
    }
    return timeline_.op_names[static_cast<std::size_t>(op)];
  }

  const Timeline& timeline_;
  std::string out_;
  bool is_first_ = true;
};

}  // namespace

std::string to_perfetto(const Timeline& timeline) { return Writer(timeline).write(); }

}  // namespace orrery
