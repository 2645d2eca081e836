#pragma once

// The file that makes calibration resumable: a header that says where and with what was measured,
// then a line per finished measurement. A line counts once its newline is written, so a process
// killed at any moment loses at most the point it was measuring. No CUDA.
//
//   orrery-calibration 1
//   device<TAB>NVIDIA H200          one line per fact
//   <empty line>
//   <row as in journal.cpp>         one line per measurement

#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/calibrate/row.h"

namespace orrery::calibrate {

struct Fact {
  std::string name;
  std::string value;
  // Rows measured under another value do not belong in one table; other facts are for the record.
  bool must_match = false;
};

// Owns the open file and the lock on it: a second process on the same directory is refused.
class Journal {
 public:
  // Opens `path`, or makes it with `facts`. With `fresh` what is there is discarded. Drops a last
  // line without a newline. Throws std::invalid_argument when the file is no journal, when a fact
  // that must match differs (both values are named) or when another process holds it;
  // std::system_error when the file system fails.
  Journal(const std::filesystem::path& path, std::vector<Fact> facts, bool fresh);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  [[nodiscard]] std::span<const Fact> facts() const { return facts_; }  // as the file has them
  [[nodiscard]] std::span<const Row> rows() const { return rows_; }
  [[nodiscard]] bool has(const KernelOp& op, State state) const {
    return keys_.contains(key(op, state));
  }

  // Hands the rows to the kernel in one write: they survive the death of this process. sync() makes
  // them survive that of the machine. Throw std::system_error.
  void append(std::span<const Row> rows);
  void sync();

 private:
  void read(const std::filesystem::path& path, std::span<const Fact> wanted);
  void write(std::string_view text) const;

  int file_ = -1;
  std::vector<Fact> facts_;
  std::vector<Row> rows_;
  std::set<std::string> keys_;
};

}  // namespace orrery::calibrate
