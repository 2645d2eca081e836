// CSV traces of requests.

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "sim/serve/trace_lines.h"
#include "sim/serve/workload.h"

namespace orrery {
namespace {

std::vector<std::string_view> split(std::string_view line) {
  std::vector<std::string_view> fields;
  while (true) {
    const std::size_t comma = line.find(',');
    fields.push_back(line.substr(0, comma));
    if (comma == std::string_view::npos) return fields;
    line.remove_prefix(comma + 1);
  }
}

template <typename Number>
bool parse(std::string_view text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

// Days from 1970-01-01 in the proleptic Gregorian calendar (Hinnant, chrono-compatible algorithms).
std::int64_t days_from_civil(std::int64_t year, std::int64_t month, std::int64_t day) {
  year -= month <= 2 ? 1 : 0;
  const std::int64_t era = (year >= 0 ? year : year - 399) / 400;
  const std::int64_t year_of_era = year - era * 400;
  const std::int64_t day_of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  const std::int64_t day_of_era =
      year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
  return era * 146097 + day_of_era - 719468;
}

struct Timestamp {
  std::int64_t whole_seconds = 0;  // apart from the fraction, which a double would round
  double fraction = 0;
};

// "2023-11-16 18:15:46.6805900", fraction optional.
bool parse_timestamp(std::string_view text, Timestamp& result) {
  constexpr std::size_t kWholeLength = 19;
  if (text.size() < kWholeLength || text[4] != '-' || text[7] != '-' ||
      (text[10] != ' ' && text[10] != 'T') || text[13] != ':' || text[16] != ':') {
    return false;
  }
  std::array<std::int64_t, 6> parts{};
  constexpr std::array<std::pair<std::size_t, std::size_t>, 6> kFields = {
      {{0, 4}, {5, 2}, {8, 2}, {11, 2}, {14, 2}, {17, 2}}};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (!parse(text.substr(kFields[i].first, kFields[i].second), parts[i])) return false;
  }
  const auto [year, month, day, hour, minute, second] = parts;
  if (month < 1 || month > 12 || day < 1 || day > 31 || hour > 23 || minute > 59 || second > 60) {
    return false;
  }
  result.whole_seconds =
      days_from_civil(year, month, day) * 86400 + hour * 3600 + minute * 60 + second;
  result.fraction = 0;
  const std::string_view fraction = text.substr(kWholeLength);
  if (fraction.empty()) return true;
  if (fraction[0] != '.' || fraction.size() < 2 ||
      !std::ranges::all_of(fraction.substr(1), [](char c) { return c >= '0' && c <= '9'; })) {
    return false;
  }
  return parse(fraction, result.fraction);
}

struct Columns {
  std::size_t timestamp = 0;
  std::size_t prompt = 0;
  std::size_t output = 0;
  bool is_azure = false;  // timestamps are dates, not seconds
};

Columns find_columns(const std::filesystem::path& file, std::string_view header) {
  const std::vector<std::string_view> names = split(header);
  const auto has = [&](std::string_view name) {
    return std::ranges::find(names, name) != names.end();
  };
  Columns columns;
  columns.is_azure = has("TIMESTAMP") || !has("arrival_s");
  const auto find = [&](std::string_view azure, std::string_view plain) {
    const std::string_view name = columns.is_azure ? azure : plain;
    const auto found = std::ranges::find(names, name);
    if (found == names.end()) {
      trace::fail(file, 1,
                  "found the columns \"" + std::string(header) + "\" without " + std::string(name) +
                      "; expected TIMESTAMP, ContextTokens, GeneratedTokens or arrival_s, "
                      "prompt_tokens, output_tokens");
    }
    return static_cast<std::size_t>(found - names.begin());
  };
  columns.timestamp = find("TIMESTAMP", "arrival_s");
  columns.prompt = find("ContextTokens", "prompt_tokens");
  columns.output = find("GeneratedTokens", "output_tokens");
  return columns;
}

std::int64_t parse_length(const std::filesystem::path& file, std::int64_t line,
                          std::string_view name, std::string_view text) {
  std::int64_t length = 0;
  if (!parse(text, length) || length < 1) {
    trace::fail(file, line,
                std::string(name) + " is \"" + std::string(text) +
                    "\", expected a whole number of tokens of at least 1");
  }
  return length;
}

}  // namespace

Workload read_csv_trace(const std::filesystem::path& file, std::int64_t max_requests) {
  const std::string text = trace::read_file(file);
  Workload workload;
  Columns columns;
  bool has_header = false;
  Timestamp origin;
  trace::for_each_line(text, [&](std::int64_t number, std::string_view line) {
    if (!has_header) {
      columns = find_columns(file, line);
      has_header = true;
      return;
    }
    if (trace::is_full(workload, max_requests)) return;
    const std::vector<std::string_view> fields = split(line);
    if (fields.size() <= std::max({columns.timestamp, columns.prompt, columns.output})) {
      trace::fail(file, number,
                  "found " + std::to_string(fields.size()) + " fields, expected more");
    }
    Request request;
    const std::string_view stamp = fields[columns.timestamp];
    if (columns.is_azure) {
      Timestamp time;
      if (!parse_timestamp(stamp, time)) {
        trace::fail(file, number,
                    "TIMESTAMP is \"" + std::string(stamp) +
                        "\", expected a date like \"2023-11-16 18:15:46.6805900\"");
      }
      if (workload.requests.empty()) origin = time;
      request.arrival = Seconds(static_cast<double>(time.whole_seconds - origin.whole_seconds) +
                                (time.fraction - origin.fraction));
    } else {
      double seconds = 0;
      if (!parse(stamp, seconds)) {
        trace::fail(file, number, "arrival_s is \"" + std::string(stamp) + "\", expected seconds");
      }
      request.arrival = Seconds(seconds);
    }
    request.prompt_tokens = parse_length(
        file, number, columns.is_azure ? "ContextTokens" : "prompt_tokens", fields[columns.prompt]);
    request.output_tokens =
        parse_length(file, number, columns.is_azure ? "GeneratedTokens" : "output_tokens",
                     fields[columns.output]);
    trace::append(workload, file, number, std::move(request));
  });
  return trace::finish(std::move(workload), file);
}

}  // namespace orrery
