#include "sim/scenario/foreign_trace.h"

#include <algorithm>
#include <fstream>
#include <vector>

#include "sim/scenario/keys.h"
#include "sim/scenario/quoted_yaml.h"
#include "sim/serve/workload.h"
#include "sim/units/text.h"
#include "sim/units/text_file.h"

namespace orrery {
namespace {

constexpr std::size_t kHead = 1 << 16;
constexpr std::string_view kGzip = "\x1f\x8b";

std::string head_of(const std::filesystem::path& file, std::size_t most) {
  std::ifstream input = open_regular_file(file);
  std::string head(most, '\0');
  input.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<std::size_t>(input.gcount()));
  return head;
}

}  // namespace

TraceOptions read_trace_options(const Reader& workload) {
  TraceOptions options;
  if (workload.has("columns")) {
    const Reader columns(workload.at("columns"), workload.path_of("columns"), key_names("columns"));
    options.columns.prompt = columns.text("prompt");
    options.columns.output = columns.text("output");
    if (columns.has("arrival")) {
      options.columns.arrival = columns.text("arrival");
    } else if (!workload.has("requests_per_s")) {
      columns.fail("arrival", "missing; expected the column of times, or requests_per_s beside it");
    }
  }
  if (workload.has("columns")) {
    const Reader columns(workload.at("columns"), workload.path_of("columns"), key_names("columns"));
    if (columns.has("session")) options.columns.session = columns.text("session");
    if (columns.has("wait")) {
      if (!columns.has("session")) {
        columns.fail("wait", "found no session, whose turns wait; expected columns.session");
      }
      options.columns.wait = columns.text("wait");
    }
  }
  if (workload.has("time_unit")) {
    options.time_unit = kTimeUnits[workload.choice("time_unit", kTimeUnits)];
  }
  options.sort = workload.has("sort") && workload.boolean("sort");
  options.drop_invalid = workload.has("drop_invalid") && workload.boolean("drop_invalid");
  if (workload.has("requests_per_s")) {
    options.requests_per_s = workload.number("requests_per_s", 0, 1e9, /*above=*/true);
  }
  if (workload.has("chars_per_token")) {
    options.chars_per_token = workload.number("chars_per_token", 0, 100, /*above=*/true);
  }
  return options;
}

std::string to_yaml(const TraceOptions& options) {
  const auto& [columns, time_unit, sort, drop_invalid, requests_per_s, chars_per_token] = options;
  std::string text;
  if (!columns.prompt.empty()) {
    text += ", columns: {";
    if (!columns.arrival.empty()) text += "arrival: " + quoted_yaml(columns.arrival) + ", ";
    text += "prompt: " + quoted_yaml(columns.prompt) + ", output: " + quoted_yaml(columns.output);
    if (!columns.session.empty()) text += ", session: " + quoted_yaml(columns.session);
    if (!columns.wait.empty()) text += ", wait: " + quoted_yaml(columns.wait);
    text += "}";
  }
  if (!time_unit.empty()) text += ", time_unit: " + time_unit;
  if (sort) text += ", sort: true";
  if (drop_invalid) text += ", drop_invalid: true";
  if (requests_per_s > 0) text += ", requests_per_s: " + format_number(requests_per_s);
  if (chars_per_token > 0) text += ", chars_per_token: " + format_number(chars_per_token);
  return text;
}

TraceFormat trace_format(const std::filesystem::path& file) {
  const std::string head = head_of(file, kHead);
  const std::string_view text = head;
  if (text.starts_with(kGzip) || text.starts_with("PAR1")) return TraceFormat::kForeign;
  if (!foreign_format(text.substr(0, 64)).empty()) return TraceFormat::kCsv;
  const std::size_t start = text.find_first_not_of("\xef\xbb\xbf \t\r\n");
  if (start == std::string_view::npos) return TraceFormat::kCsv;
  const std::string_view line = text.substr(start, text.find('\n', start) - start);
  const auto has = [&](std::string_view name) { return line.find(name) != std::string_view::npos; };
  if (line.starts_with('{')) {
    return has("\"timestamp\"") && has("\"input_length\"") ? TraceFormat::kMooncakeJsonl
                                                           : TraceFormat::kForeign;
  }
  return is_csv_trace_header(line) ? TraceFormat::kCsv : TraceFormat::kForeign;
}

bool is_gzip(const std::filesystem::path& file) { return head_of(file, kGzip.size()) == kGzip; }

}  // namespace orrery
