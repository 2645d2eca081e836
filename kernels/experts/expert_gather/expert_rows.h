#pragma once

// Where the rows of one expert lie among rows sorted by expert, from counts that the host has read.

#include <cstdint>
#include <span>

namespace orrery {

struct ExpertRows {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// Of counts.size() experts with up to `rows` rows in all. Throws std::invalid_argument for an
// expert that is none of them, a negative count, or rows that end beyond `rows`.
ExpertRows expert_rows(std::span<const std::int32_t> counts, std::int64_t expert,
                       std::int64_t rows);

}  // namespace orrery
