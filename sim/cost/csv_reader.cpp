#include "sim/cost/csv_reader.h"

#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <stdexcept>

#include "sim/units/shown.h"

namespace orrery {
namespace {

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += (text.empty() ? "" : ", ") + word;
  }
  return text;
}

}  // namespace

CsvReader::CsvReader(const std::filesystem::path& path) : path_(path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) {
    throw std::invalid_argument(path.string() + ": cannot be read; expected a CSV file");
  }
  content_.resize(static_cast<std::size_t>(file.tellg()));
  file.seekg(0);
  file.read(content_.data(), static_cast<std::streamsize>(content_.size()));
  std::size_t end = content_.find('\n');
  if (end == std::string::npos) {
    end = content_.size();
  }
  std::string_view header(content_.data(), end);
  if (!header.empty() && header.back() == '\r') {
    header.remove_suffix(1);
  }
  if (header.empty()) {
    throw std::invalid_argument(path.string() + ":1: found no header; expected column names");
  }
  position_ = std::min(end + 1, content_.size());
  while (true) {
    const std::size_t comma = header.find(',');
    columns_.emplace_back(header.substr(0, comma));
    if (comma == std::string_view::npos) {
      break;
    }
    header.remove_prefix(comma + 1);
  }
  fields_.resize(columns_.size());
}

int CsvReader::column(std::string_view name) const {
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    if (columns_[i] == name) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

int CsvReader::require(std::string_view name) const {
  const int found = column(name);
  if (found < 0) {
    throw std::invalid_argument(path_.string() + ":1: no column '" + std::string(name) +
                                "'; found " + shown(join(columns_)));
  }
  return found;
}

bool CsvReader::next() {
  const char* const end = content_.data() + content_.size();
  while (position_ < content_.size()) {
    const char* begin = content_.data() + position_;
    const auto* stop =
        static_cast<const char*>(std::memchr(begin, '\n', static_cast<std::size_t>(end - begin)));
    if (stop == nullptr) {
      stop = end;
    }
    position_ = static_cast<std::size_t>(stop - content_.data()) + 1;
    ++line_;
    if (stop != begin && stop[-1] == '\r') {
      --stop;
    }
    if (stop == begin) {
      continue;
    }
    std::size_t field = 0;
    const char* start = begin;
    for (const char* at = begin;; ++at) {
      if (at == stop || *at == ',') {
        if (field < fields_.size()) {
          fields_[field] = std::string_view(start, static_cast<std::size_t>(at - start));
        }
        ++field;
        start = at + 1;
        if (at == stop) {
          break;
        }
      }
    }
    if (field != fields_.size()) {
      fail("found " + std::to_string(field) + " fields; expected " +
           std::to_string(fields_.size()) + " (" + join(columns_) + ")");
    }
    return true;
  }
  return false;
}

std::int64_t CsvReader::integer(int column) const {
  const std::string_view field = fields_[column];
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(field.data(), field.data() + field.size(), value);
  if (error != std::errc() || stop != field.data() + field.size() || value < 0) {
    fail("column " + columns_[column] + ": found '" + shown(field) +
         "'; expected a whole number, zero or more");
  }
  return value;
}

double CsvReader::positive_number(int column) const {
  const std::string_view field = fields_[column];
  double value = 0;
  const auto [stop, error] = std::from_chars(field.data(), field.data() + field.size(), value);
  if (error != std::errc() || stop != field.data() + field.size() || !std::isfinite(value) ||
      value <= 0) {
    fail("column " + columns_[column] + ": found '" + shown(field) +
         "'; expected a finite number greater than 0");
  }
  return value;
}

Seconds CsvReader::microseconds(int column) const {
  constexpr double kShortest = 1e-6;
  constexpr double kLongest = 1e12;  // 11 days
  const double found = positive_number(column);
  if (found < kShortest || found > kLongest) {
    fail("column " + columns_[column] + ": found '" + std::string(fields_[column]) +
         "'; expected 1e-6 to 1e12 microseconds");
  }
  return Seconds(found * 1e-6);
}

void CsvReader::fail(const std::string& message) const {
  throw std::invalid_argument(path_.string() + ":" + std::to_string(line_) + ": " + message);
}

}  // namespace orrery
