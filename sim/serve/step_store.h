#pragma once

// Steps of a long run, kept outside of memory: each replica's records, packed, in blocks of one
// unnamed file that no one else sees and that is gone with the process.
//
//   replica 0   [block 0][block 3]...[in memory]
//   replica 1   [block 1]............[in memory]        file: [0][1][2][3]...
//   replica 2   [block 2]............[in memory]
//
// Threads may append at the same time, each to replicas of its own; reading comes after all of it.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "sim/serve/serve.h"

namespace orrery {

class StepStore {
 public:
  // A file in `directory`, when one is needed.
  StepStore(std::filesystem::path directory, int num_replicas);
  ~StepStore();
  StepStore(const StepStore&) = delete;
  StepStore& operator=(const StepStore&) = delete;

  // Steps of a replica come in order of their start. Throws std::runtime_error with the directory
  // when the file cannot be written.
  void append(const StepRecord& step);
  // All steps by (start, replica). Throws std::runtime_error when they cannot be read.
  void for_each(const std::function<void(const StepRecord&)>& visit) const;
  [[nodiscard]] std::int64_t size() const { return size_; }

 private:
  struct Block {
    std::int64_t offset = 0;  // in the file
    std::size_t size = 0;
  };
  struct Stream {
    std::vector<Block> blocks;
    std::vector<std::byte> tail;  // behind them
  };
  class Cursor;

  void flush(Stream& stream);
  [[noreturn]] void fail(const char* what) const;

  std::filesystem::path directory_;
  std::size_t block_bytes_;
  std::vector<Stream> streams_;  // by replica
  std::mutex opening_;
  std::atomic<int> file_ = -1;
  std::atomic<std::int64_t> file_size_ = 0;
  std::atomic<std::int64_t> size_ = 0;
};

}  // namespace orrery
