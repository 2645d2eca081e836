#include "kernels/tool/layer_row.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <stdexcept>

namespace orrery::tool {
namespace {

// In the order in which they are written; what they hold stands in moe.cpp.
constexpr auto kColumns = std::to_array<std::string_view>(
    {"case",    "text",       "kernel",       "dtype",      "model",      "tokens",
     "design",  "mode",       "load",         "impose",     "streams",    "fuse",
     "gather",  "seed",       "tp",           "dp",         "ep",         "comm",
     "chunks",  "gpus",       "revision",     "ours_us",    "spread",     "runs",
     "host_us", "sets",       "weight_bytes", "launches",   "host_syncs", "buffer_bytes",
     "rows",    "active",     "most_rows",    "difference", "busy_us",    "overlap_us",
     "comm_us", "comm_share", "exposed_us",   "jitter",     "late_us",    "late_back_us",
     "error"});

// As RFC 4180 has it.
std::string quoted(std::string_view cell) {
  if (cell.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(cell);
  std::string result = "\"";
  for (const char c : cell) {
    if (c == '"') result += '"';
    result += c;
  }
  return result + "\"";
}

// "experts.down.12" is experts.down of one expert.
std::string without_expert(const std::string& name) {
  const std::size_t dot = name.find_last_of('.');
  const bool is_number = dot != std::string::npos && dot + 1 < name.size() &&
                         name.find_first_not_of("0123456789", dot + 1) == std::string::npos;
  return is_number ? name.substr(0, dot) : name;
}

// Time in which at least `least` spans run; an edge is where one begins (+1) or ends (-1).
struct Edge {
  double time = 0;
  int change = 0;
};
double time_of(std::vector<Edge> edges, int least) {
  std::ranges::sort(edges, [](const Edge& a, const Edge& b) {
    return a.time < b.time || (a.time == b.time && a.change < b.change);
  });
  double total = 0;
  double since = 0;
  int running = 0;
  for (const Edge& edge : edges) {
    if (running >= least) total += edge.time - since;
    since = edge.time;
    running += edge.change;
  }
  return total;
}

}  // namespace

void LayerRow::set(std::string_view column, std::string_view text) {
  if (std::ranges::find(kColumns, column) == kColumns.end()) {
    throw std::invalid_argument("rows of layers have no column '" + std::string(column) + "'");
  }
  cells_.insert_or_assign(std::string(column), std::string(text));
}

void LayerRow::set(std::string_view column, double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.6g", value);
  set(column, text.data());
}

void LayerRow::set(std::string_view column, std::int64_t value) {
  set(column, std::to_string(value));
}

std::string_view LayerRow::at(std::string_view column) const {
  const auto found = cells_.find(column);
  return found == cells_.end() ? std::string_view() : found->second;
}

std::string to_csv(std::span<const LayerRow> rows) {
  std::string text;
  for (const std::string_view column : kColumns) {
    text.append(text.empty() ? "" : ",").append(column);
  }
  text += "\n";
  for (const LayerRow& row : rows) {
    std::string line;
    for (const std::string_view column : kColumns) {
      line.append(column == kColumns.front() ? "" : ",").append(quoted(row.at(column)));
    }
    text += line + "\n";
  }
  return text;
}

LayerRow row_of(const MoeCase& one, int number) {
  LayerRow row;
  row.set("case", std::int64_t{number});
  row.set("text", one.text);
  row.set("kernel", "moe_layer");
  row.set("dtype", to_text(one.dtype));
  row.set("model", one.model);
  row.set("tokens", one.tokens);
  row.set("design", to_text(one.design));
  row.set("mode", to_text(one.mode));
  row.set("load", one.load);
  if (one.load != "router") row.set("impose", imposes_bias(one) ? "bias" : "scores");
  row.set("streams", std::int64_t{one.streams});
  row.set("fuse", std::int64_t{one.fuses_scatter ? 1 : 0});
  row.set("gather", std::int64_t{one.fuses_gather ? 1 : 0});
  row.set("seed", static_cast<std::int64_t>(one.seed));
  row.set("tp", std::int64_t{one.mesh.tp});
  row.set("dp", std::int64_t{one.mesh.dp});
  row.set("ep", std::int64_t{one.mesh.ep});
  row.set("comm", one.comm);
  row.set("chunks", std::int64_t{one.mesh.moe_chunks});
  row.set("gpus", std::int64_t{num_ranks(one.mesh)});
  return row;
}

LayerSpans layer_spans(const Plan& plan, const Timeline& timeline, int rank) {
  std::vector<std::string> names;
  std::map<std::string, std::map<std::string, double>> times;  // by name, by layer
  std::vector<Edge> edges;
  std::vector<Edge> of_comm;
  std::vector<Edge> of_others;
  std::size_t num_layers = 1;
  for (const Span& span : timeline.spans) {
    if (span.rank != rank) continue;
    const std::string& op = plan.ops()[static_cast<std::size_t>(span.op)].name;
    const std::size_t mark = op.find('#');
    const std::string name = without_expert(op.substr(0, mark));
    if (!times.contains(name)) names.push_back(name);
    auto& of_layers = times[name];
    of_layers[mark == std::string::npos ? "" : op.substr(mark)] += (span.end - span.start).value();
    num_layers = std::max(num_layers, of_layers.size());
    const bool is_comm =
        std::holds_alternative<CommOp>(plan.ops()[static_cast<std::size_t>(span.op)].body);
    for (std::vector<Edge>* const to : {&edges, is_comm ? &of_comm : &of_others}) {
      to->push_back({.time = span.start.value(), .change = 1});
      to->push_back({.time = span.end.value(), .change = -1});
    }
  }
  LayerSpans result;
  for (const std::string& name : names) {
    std::vector<double> values;
    for (const auto& [layer, time] : times.at(name)) values.push_back(time);
    result.ops.emplace_back(name, Seconds(spread_of(std::move(values)).median));
  }
  const auto layers = static_cast<double>(num_layers);
  result.busy = Seconds(time_of(edges, 1) / layers);
  result.overlap = Seconds(time_of(edges, 2) / layers);
  result.communication = Seconds(time_of(of_comm, 1) / layers);
  result.exposed = result.busy - Seconds(time_of(of_others, 1) / layers);
  return result;
}

Spread spread_of(std::vector<double> values) {
  std::ranges::sort(values);
  const auto at = [&](double quantile) {
    const double place = quantile * static_cast<double>(values.size() - 1);
    const auto below = static_cast<std::size_t>(place);
    const std::size_t above = std::min(below + 1, values.size() - 1);
    return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
  };
  return {.median = at(0.5), .relative = (at(0.75) - at(0.25)) / at(0.5)};
}

}  // namespace orrery::tool
