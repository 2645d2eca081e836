#pragma once

// Reads small numeric CSV files fast: a header line, then rows of integers, decimals and short
// words without quoting. Errors name file and line.

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "sim/units/units.h"

namespace orrery {

class CsvReader {
 public:
  // Reads the whole file and its header. Throws std::invalid_argument when the file is missing or
  // has no header line.
  explicit CsvReader(const std::filesystem::path& path);

  [[nodiscard]] const std::vector<std::string>& columns() const { return columns_; }
  // Index of a column, -1 when absent.
  [[nodiscard]] int column(std::string_view name) const;
  // Throws std::invalid_argument that lists the columns there are.
  [[nodiscard]] int require(std::string_view name) const;

  // Steps to the next row that is not empty; false at the end. Throws std::invalid_argument when
  // the row has too few or too many fields.
  bool next();

  // Fields of the current row. Each throws std::invalid_argument with file, line and column.
  [[nodiscard]] std::string_view text(int column) const { return fields_[column]; }
  [[nodiscard]] std::int64_t integer(int column) const;    // >= 0
  [[nodiscard]] double positive_number(int column) const;  // finite, > 0
  // Microseconds, from a picosecond to the longest time that anything here takes.
  [[nodiscard]] Seconds microseconds(int column) const;

  // Throws std::invalid_argument "<file>:<line>: <message>" for the current row.
  [[noreturn]] void fail(const std::string& message) const;
  [[nodiscard]] int line() const { return line_; }

 private:
  std::filesystem::path path_;
  std::string content_;
  std::size_t position_ = 0;
  int line_ = 1;
  std::vector<std::string> columns_;
  std::vector<std::string_view> fields_;
};

}  // namespace orrery
