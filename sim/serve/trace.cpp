// Request traces from files; every error names file and line.

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "sim/serve/workload.h"

namespace orrery {
namespace {

constexpr std::int64_t kMooncakeBlockTokens = 512;

[[noreturn]] void fail(const std::filesystem::path& file, std::int64_t line,
                       const std::string& message) {
  throw std::invalid_argument(file.string() + ":" + std::to_string(line) + ": " + message);
}

std::string read_file(const std::filesystem::path& file) {
  std::ifstream input(file, std::ios::binary);
  if (!input) throw std::invalid_argument(file.string() + ": cannot be read");
  std::ostringstream text;
  text << input.rdbuf();
  return std::move(text).str();
}

// Calls `row(line_number, text)` for each line that is not empty, line ends removed.
template <typename Row>
void for_each_line(std::string_view text, Row&& row) {
  std::int64_t number = 0;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) row(number, line);
  }
}

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
      fail(file, 1,
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
    fail(file, line,
         std::string(name) + " is \"" + std::string(text) +
             "\", expected a whole number of tokens of at least 1");
  }
  return length;
}

void append(Workload& workload, const std::filesystem::path& file, std::int64_t line,
            Request request) {
  if (!std::isfinite(request.arrival.value())) {
    fail(file, line, "the timestamp is not finite");
  }
  if (!workload.requests.empty() && request.arrival < workload.requests.back().arrival) {
    fail(file, line, "the timestamp is before that of the request above; expected ascending ones");
  }
  request.id = static_cast<std::int64_t>(workload.requests.size());
  workload.requests.push_back(std::move(request));
}

Workload finish(Workload workload, const std::filesystem::path& file) {
  if (workload.requests.empty()) throw std::invalid_argument(file.string() + ": holds no request");
  const Seconds first = workload.requests.front().arrival;
  for (Request& request : workload.requests) request.arrival -= first;
  return workload;
}

bool is_full(const Workload& workload, std::int64_t max_requests) {
  return max_requests > 0 && static_cast<std::int64_t>(workload.requests.size()) >= max_requests;
}

// nlohmann/json would turn 3.7, true or -1 into some whole number without a word.
std::int64_t whole_number(const nlohmann::json& value, std::string_view key) {
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t{1} << 62)) {
    throw std::invalid_argument(std::string(key) + " is " + value.dump() +
                                ", expected a whole number");
  }
  return value.get<std::int64_t>();
}

Request mooncake_request(std::string_view line) {
  const nlohmann::json object = nlohmann::json::parse(line);
  Request request;
  const nlohmann::json& timestamp = object.at("timestamp");
  if (!timestamp.is_number()) {
    throw std::invalid_argument("timestamp is " + timestamp.dump() + ", expected milliseconds");
  }
  request.arrival = Seconds(timestamp.get<double>() * 1e-3);
  request.prompt_tokens = whole_number(object.at("input_length"), "input_length");
  request.output_tokens = whole_number(object.at("output_length"), "output_length");
  const nlohmann::json& hashes = object.at("hash_ids");
  if (!hashes.is_array()) {
    throw std::invalid_argument("hash_ids is " + hashes.dump() + ", expected a list");
  }
  for (const nlohmann::json& hash : hashes) {
    const std::int64_t id = whole_number(hash, "hash_ids");
    if (id < 0) throw std::invalid_argument("hash_ids has " + hash.dump() + ", expected 0 or more");
    request.block_hashes.push_back(static_cast<std::uint64_t>(id));
  }
  return request;
}

}  // namespace

Workload read_csv_trace(const std::filesystem::path& file, std::int64_t max_requests) {
  const std::string text = read_file(file);
  Workload workload;
  Columns columns;
  bool has_header = false;
  Timestamp origin;
  for_each_line(text, [&](std::int64_t number, std::string_view line) {
    if (!has_header) {
      columns = find_columns(file, line);
      has_header = true;
      return;
    }
    if (is_full(workload, max_requests)) return;
    const std::vector<std::string_view> fields = split(line);
    if (fields.size() <= std::max({columns.timestamp, columns.prompt, columns.output})) {
      fail(file, number, "found " + std::to_string(fields.size()) + " fields, expected more");
    }
    Request request;
    const std::string_view stamp = fields[columns.timestamp];
    if (columns.is_azure) {
      Timestamp time;
      if (!parse_timestamp(stamp, time)) {
        fail(file, number,
             "TIMESTAMP is \"" + std::string(stamp) +
                 "\", expected a date like \"2023-11-16 18:15:46.6805900\"");
      }
      if (workload.requests.empty()) origin = time;
      request.arrival = Seconds(static_cast<double>(time.whole_seconds - origin.whole_seconds) +
                                (time.fraction - origin.fraction));
    } else {
      double seconds = 0;
      if (!parse(stamp, seconds)) {
        fail(file, number, "arrival_s is \"" + std::string(stamp) + "\", expected seconds");
      }
      request.arrival = Seconds(seconds);
    }
    request.prompt_tokens = parse_length(
        file, number, columns.is_azure ? "ContextTokens" : "prompt_tokens", fields[columns.prompt]);
    request.output_tokens =
        parse_length(file, number, columns.is_azure ? "GeneratedTokens" : "output_tokens",
                     fields[columns.output]);
    append(workload, file, number, std::move(request));
  });
  return finish(std::move(workload), file);
}

Workload read_mooncake_trace(const std::filesystem::path& file, std::int64_t max_requests) {
  const std::string text = read_file(file);
  Workload workload;
  workload.hash_block_tokens = kMooncakeBlockTokens;
  for_each_line(text, [&](std::int64_t number, std::string_view line) {
    if (is_full(workload, max_requests)) return;
    Request request;
    try {
      request = mooncake_request(line);
    } catch (const nlohmann::json::exception& error) {
      fail(file, number,
           std::string("expected an object with timestamp, input_length, output_length and "
                       "hash_ids: ") +
               error.what());
    } catch (const std::invalid_argument& error) {
      fail(file, number, error.what());
    }
    if (request.prompt_tokens < 1 || request.output_tokens < 1) {
      fail(file, number,
           "input_length is " + std::to_string(request.prompt_tokens) + " and output_length " +
               std::to_string(request.output_tokens) + ", expected at least 1");
    }
    // The last hash of a prompt may stand for a block that is not full: it cannot be shared.
    const auto full = static_cast<std::size_t>(request.prompt_tokens / kMooncakeBlockTokens);
    if (request.block_hashes.size() > full) request.block_hashes.resize(full);
    append(workload, file, number, std::move(request));
  });
  return finish(std::move(workload), file);
}

}  // namespace orrery
