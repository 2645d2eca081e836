#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include "sim/timeline/timeline.h"
#include "sim/units/parse.h"
#include "sim/units/text.h"

namespace orrery {
namespace {

// Reserved colour names of the trace viewer, by SpanKind: green, orange, grey.
constexpr std::array<std::string_view, 3> kColours{"good", "bad", "generic_work"};

constexpr std::string_view kHex = "0123456789abcdef";

std::string json_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20) {
      out += "\\u00";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out += '"';
}

// Nanoseconds of it, and of the difference of two, fit 64 bits.
constexpr Seconds kLatest(4e9);

std::int64_t nanoseconds(Seconds time) {
  if (!(time <= kLatest) || !(time >= kLatest * -1.0)) {
    throw std::invalid_argument("a span of the timeline starts or ends at " + to_text(time) +
                                ", expected at most " + to_text(kLatest));
  }
  return std::llround(time.value() * 1e9);
}

// Nanoseconds as microseconds: "12.345".
void append_us(std::string& out, std::int64_t ns) {
  if (ns < 0) out += '-';
  const std::int64_t size = std::abs(ns);
  out += std::to_string(size / 1000) + ".";
  const std::string rest = std::to_string(size % 1000);
  out.append(3 - rest.size(), '0').append(rest);
}

class Writer {
 public:
  explicit Writer(const Timeline& timeline) : timeline_(timeline) {
    // About the length of an event.
    out_.reserve(160 * (timeline.spans.size() + timeline.link_spans.size()) + 1024);
    names_.reserve(timeline.op_names.size());
    for (const std::string& name : timeline.op_names) names_.push_back(json_text(name));
  }

  std::string write() && {
    out_ = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[";
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
    for (const Span& span : timeline_.spans) {
      const auto kind = static_cast<std::size_t>(span.kind);
      begin_event(op_name(span.op), to_text(span.kind), span.rank, span.stream, span.start,
                  span.end);
      out_.append(",\"cname\":\"").append(kColours.at(kind)).append("\",\"args\":{\"basis\":\"");
      out_.append(to_text(span.basis)).append("\",\"op\":").append(std::to_string(span.op));
      out_ += ",\"copy\":" + std::to_string(span.copy) + "}}";
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
        write_transfer(process, thread + static_cast<int>(lane), transfer);
      }
      if (lane_ends.empty()) name_lane(process, thread, timeline_.links[link], 0);
      thread += static_cast<int>(std::max<std::size_t>(lane_ends.size(), 1));
    }
  }

  void write_transfer(int process, int thread, const LinkSpan& transfer) {
    begin_event(op_name(transfer.op), "link", process, thread, transfer.start, transfer.end);
    out_ += ",\"args\":{\"op\":" + std::to_string(transfer.op) +
            ",\"bytes\":" + format_number(transfer.bytes.value()) + "}}";
  }

  void name_lane(int process, int thread, const std::string& link, std::int64_t lane) {
    name_thread(process, thread, lane == 0 ? link : link + " (" + std::to_string(lane + 1) + ")");
  }

  void name_process(int process, const std::string& name) {
    begin_entry();
    out_ += "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":" + std::to_string(process) +
            ",\"args\":{\"name\":" + json_text(name) + "}}";
    begin_entry();
    out_ += "{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":" + std::to_string(process) +
            ",\"args\":{\"sort_index\":" + std::to_string(process) + "}}";
  }

  void name_thread(int process, int thread, const std::string& name) {
    begin_entry();
    out_ += "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":" + std::to_string(process) +
            ",\"tid\":" + std::to_string(thread) + ",\"args\":{\"name\":" + json_text(name) + "}}";
  }

  // An event up to its arguments. Rounding start and end alike keeps neighbours from overlapping.
  void begin_event(std::string_view name, std::string_view category, int process, int thread,
                   Seconds start, Seconds end) {
    begin_entry();
    out_.append("{\"ph\":\"X\",\"name\":").append(name);
    out_.append(",\"cat\":\"").append(category).append("\",\"pid\":");
    out_.append(std::to_string(process)).append(",\"tid\":").append(std::to_string(thread));
    const std::int64_t start_ns = nanoseconds(start);
    out_ += ",\"ts\":";
    append_us(out_, start_ns);
    out_ += ",\"dur\":";
    append_us(out_, nanoseconds(end) - start_ns);
  }

  void begin_entry() {
    out_ += is_first_ ? "\n" : ",\n";
    is_first_ = false;
  }

  // As JSON.
  [[nodiscard]] const std::string& op_name(OpId op) const {
    if (op < 0 || static_cast<std::size_t>(op) >= names_.size()) {
      throw std::invalid_argument("a span has op " + std::to_string(op) +
                                  ", expected one of the timeline's " +
                                  std::to_string(names_.size()) + " ops");
    }
    return names_[static_cast<std::size_t>(op)];
  }

  const Timeline& timeline_;
  std::vector<std::string> names_;
  std::string out_;
  bool is_first_ = true;
};

}  // namespace

std::string to_perfetto(const Timeline& timeline) { return Writer(timeline).write(); }

}  // namespace orrery
