#include "kernels/experts/expert_gather/expert_rows.h"

#include <stdexcept>
#include <string>

namespace orrery {

ExpertRows expert_rows(std::span<const std::int32_t> counts, std::int64_t expert,
                       std::int64_t rows) {
  if (expert < 0 || expert >= std::ssize(counts)) {
    throw std::invalid_argument("expert " + std::to_string(expert) + " of " +
                                std::to_string(counts.size()));
  }
  ExpertRows found;
  for (const std::int32_t count : counts.first(static_cast<std::size_t>(expert) + 1)) {
    if (count < 0) {
      throw std::invalid_argument("expected counts of rows, found " + std::to_string(count));
    }
    found.first += found.count;
    found.count = count;
  }
  if (found.first + found.count > rows) {
    throw std::invalid_argument("expert " + std::to_string(expert) + " has rows up to " +
                                std::to_string(found.first + found.count) + ", expected up to " +
                                std::to_string(rows));
  }
  return found;
}

}  // namespace orrery
