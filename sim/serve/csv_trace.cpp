// Traces of requests in columns: of a CSV file, or in memory.

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/serve/trace_lines.h"
#include "sim/serve/workload.h"
#include "sim/units/shown.h"

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

// No sign, which numbers may have.
bool is_digits(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// Days of a month of the Gregorian calendar; 0 for what is no month.
std::int64_t days_of(std::int64_t year, std::int64_t month) {
  constexpr std::array<std::int64_t, 12> kDays = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  if (month < 1 || month > 12) return 0;
  const bool is_leap_year = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
  return kDays[static_cast<std::size_t>(month - 1)] + (month == 2 && is_leap_year ? 1 : 0);
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

// Seconds that a zone is ahead of UTC: "" and "Z" are UTC, "+02:00", "+0200" and "+02" two hours.
bool parse_zone(std::string_view text, std::int64_t& seconds) {
  seconds = 0;
  if (text.empty() || text == "Z") return true;
  const bool is_behind = text[0] == '-';
  if (!is_behind && text[0] != '+') return false;
  const std::string_view hours = text.substr(1, 2);
  const bool has_colon = text.size() == 6 && text[3] == ':';
  const std::string_view minutes = text.size() > 3 ? text.substr(has_colon ? 4 : 3) : "00";
  std::int64_t hour = 0;
  std::int64_t minute = 0;
  if (hours.size() != 2 || minutes.size() != 2 || !is_digits(hours) || !is_digits(minutes) ||
      !parse(hours, hour) || !parse(minutes, minute) || hour > 23 || minute > 59) {
    return false;
  }
  seconds = (is_behind ? -1 : 1) * (hour * 3600 + minute * 60);
  return true;
}

// "2023-11-16 18:15:46.6805900+01:00", fraction and zone optional.
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
    const std::string_view field = text.substr(kFields[i].first, kFields[i].second);
    if (!is_digits(field) || !parse(field, parts[i])) return false;
  }
  const auto [year, month, day, hour, minute, second] = parts;
  if (day < 1 || day > days_of(year, month) || hour > 23 || minute > 59 || second > 60) {
    return false;  // a second of 60 is a leap second
  }
  result.whole_seconds =
      days_from_civil(year, month, day) * 86400 + hour * 3600 + minute * 60 + second;
  result.fraction = 0;
  const std::string_view rest = text.substr(kWholeLength);
  const std::size_t zone = std::min(rest.find_first_of("Z+-"), rest.size());
  std::int64_t ahead = 0;
  if (!parse_zone(rest.substr(zone), ahead)) return false;
  result.whole_seconds -= ahead;
  const std::string_view fraction = rest.substr(0, zone);
  if (fraction.empty()) return true;
  if (fraction[0] != '.' || fraction.size() < 2 || !is_digits(fraction.substr(1))) return false;
  return parse(fraction, result.fraction);
}

constexpr std::array<std::string_view, 3> kAzureColumns = {"TIMESTAMP", "ContextTokens",
                                                           "GeneratedTokens"};
constexpr std::array<std::string_view, 3> kPlainColumns = {"arrival_s", "prompt_tokens",
                                                           "output_tokens"};

struct Columns {
  std::size_t timestamp = 0;
  std::size_t prompt = 0;
  std::size_t output = 0;
  std::size_t count = 0;
  bool is_azure = false;  // timestamps are dates, not seconds
};

Columns find_columns(const std::filesystem::path& file, std::int64_t line,
                     std::string_view header) {
  const std::vector<std::string_view> names = split(header);
  const auto has = [&](std::string_view name) {
    return std::ranges::find(names, name) != names.end();
  };
  Columns columns;
  columns.count = names.size();
  columns.is_azure = has("TIMESTAMP") || !has("arrival_s");
  const auto find = [&](std::string_view azure, std::string_view plain) {
    const std::string_view name = columns.is_azure ? azure : plain;
    const auto found = std::ranges::find(names, name);
    if (found == names.end()) {
      trace::fail(file, line,
                  "found the columns \"" + shown(header) + "\" without " + std::string(name) +
                      "; expected TIMESTAMP, ContextTokens, GeneratedTokens or arrival_s, "
                      "prompt_tokens, output_tokens");
    }
    if (std::ranges::count(names, name) > 1) {
      trace::fail(file, line, "found the column " + std::string(name) + " twice; expected it once");
    }
    return static_cast<std::size_t>(found - names.begin());
  };
  columns.timestamp = find(kAzureColumns[0], kPlainColumns[0]);
  columns.prompt = find(kAzureColumns[1], kPlainColumns[1]);
  columns.output = find(kAzureColumns[2], kPlainColumns[2]);
  return columns;
}

[[noreturn]] void fail_length(const std::filesystem::path& file, std::int64_t line,
                              std::string_view name, std::string_view text,
                              std::string_view otherwise = "") {
  trace::fail(file, line,
              std::string(name) + " is " + std::string(text) +
                  ", expected a whole number of tokens of at least 1" + std::string(otherwise));
}

std::int64_t parse_length(const std::filesystem::path& file, std::int64_t line,
                          std::string_view name, std::string_view text) {
  std::int64_t length = 0;
  if (parse(text, length) && length >= 1) return length;
  // Data frames with gaps write whole numbers as "128.0".
  constexpr double kMost = 9007199254740992;  // 2^53
  double number = 0;
  if (parse(text, number) && number >= 1 && number <= kMost && number == std::floor(number)) {
    return static_cast<std::int64_t>(number);
  }
  fail_length(file, line, name, "\"" + shown(text) + "\"",
              ", or drop_invalid: true, which leaves such requests out");
}

}  // namespace

bool is_csv_trace_header(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  const std::vector<std::string_view> names = split(line);
  if (std::ranges::find(names, "session_id") != names.end()) return false;  // turns of sessions
  const auto has_all = [&](const auto& columns) {
    return std::ranges::all_of(columns, [&](std::string_view column) {
      return std::ranges::find(names, column) != names.end();
    });
  };
  return has_all(kAzureColumns) || has_all(kPlainColumns);
}

Workload read_csv_trace(const std::filesystem::path& file, std::int64_t max_requests) {
  trace::Requests requests(file, max_requests);
  Columns columns;
  bool has_header = false;
  Timestamp origin;
  Seconds latest(-std::numeric_limits<double>::infinity());
  trace::for_each_line(file, [&](std::int64_t number, std::string_view line) {
    if (!has_header) {
      columns = find_columns(file, number, line);
      has_header = true;
      return true;
    }
    const std::vector<std::string_view> fields = split(line);
    if (fields.size() != columns.count) {
      trace::fail(file, number,
                  "found " + std::to_string(fields.size()) + " fields, expected the " +
                      std::to_string(columns.count) + " of the header");
    }
    Request request;
    const std::string_view stamp = fields[columns.timestamp];
    if (columns.is_azure) {
      Timestamp time;
      if (!parse_timestamp(stamp, time)) {
        trace::fail(file, number,
                    "TIMESTAMP is \"" + shown(stamp) +
                        "\", expected a date like \"2023-11-16 18:15:46.6805900\"");
      }
      if (requests.empty()) origin = time;
      request.arrival = Seconds(static_cast<double>(time.whole_seconds - origin.whole_seconds) +
                                (time.fraction - origin.fraction));
    } else {
      double seconds = 0;
      if (!parse(stamp, seconds)) {
        trace::fail(file, number, "arrival_s is \"" + shown(stamp) + "\", expected seconds");
      }
      request.arrival = Seconds(seconds);
    }
    request.prompt_tokens =
        parse_length(file, number, columns.is_azure ? kAzureColumns[1] : kPlainColumns[1],
                     fields[columns.prompt]);
    request.output_tokens =
        parse_length(file, number, columns.is_azure ? kAzureColumns[2] : kPlainColumns[2],
                     fields[columns.output]);
    if (request.arrival < latest) {
      trace::fail(file, number,
                  "the timestamp is before that of the request above; expected ascending ones, or "
                  "sort: true");
    }
    latest = request.arrival;
    requests.append(number, std::move(request));
    return !requests.is_full();
  });
  return requests.finish();
}

Workload column_trace(const std::string& name, std::span<const double> arrivals_s,
                      std::span<const std::int64_t> prompt_tokens,
                      std::span<const std::int64_t> output_tokens) {
  if (prompt_tokens.size() != arrivals_s.size() || output_tokens.size() != arrivals_s.size()) {
    trace::fail(name, 0,
                "found " + std::to_string(arrivals_s.size()) + " arrival_s, " +
                    std::to_string(prompt_tokens.size()) + " prompt_tokens and " +
                    std::to_string(output_tokens.size()) + " output_tokens; expected as many");
  }
  trace::Requests requests(name, 0);
  for (std::size_t i = 0; i < arrivals_s.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i) + 1;
    if (prompt_tokens[i] < 1) {
      fail_length(name, row, "prompt_tokens", std::to_string(prompt_tokens[i]));
    }
    if (output_tokens[i] < 1) {
      fail_length(name, row, "output_tokens", std::to_string(output_tokens[i]));
    }
    Request request;
    request.arrival = Seconds(arrivals_s[i]);
    request.prompt_tokens = prompt_tokens[i];
    request.output_tokens = output_tokens[i];
    requests.append(row, std::move(request));
  }
  return requests.finish();
}

}  // namespace orrery
