#include "kernels/comm/kv_transfer/runs.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace orrery {

std::vector<BlockRun> block_runs(std::span<const std::int32_t> source,
                                 std::span<const std::int32_t> destination) {
  if (source.size() != destination.size()) {
    throw std::invalid_argument("kv_transfer: " + std::to_string(source.size()) +
                                " blocks to read, " + std::to_string(destination.size()) +
                                " to write");
  }
  std::vector<BlockRun> runs;
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (!runs.empty() && source[i] == runs.back().source + runs.back().count &&
        destination[i] == runs.back().destination + runs.back().count) {
      ++runs.back().count;
    } else {
      runs.push_back({.source = source[i], .destination = destination[i], .count = 1});
    }
  }
  return runs;
}

bool copy_engine_is_faster(std::int64_t copies, std::int64_t bytes) {
  constexpr double kCopy = 0.57e-6;
  constexpr double kEngineRate = 390e9;
  constexpr double kSmStart = 1.5e-6;
  constexpr double kSmRate = 355e9;
  const double size = static_cast<double>(bytes);
  return std::max(kCopy * static_cast<double>(copies), size / kEngineRate) <=
         kSmStart + size / kSmRate;
}

}  // namespace orrery
