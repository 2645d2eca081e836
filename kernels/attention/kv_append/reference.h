#pragma once

// kv_append in double.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace orrery::reference {

// cache [slots, width] with rows [tokens, width] at their slots; negative slots are left out.
// Throws std::invalid_argument when rows are not slots.size() x width, or a slot is outside.
std::vector<double> kv_append(std::span<const double> cache, std::span<const double> rows,
                              std::span<const std::int64_t> slots, std::size_t width);

}  // namespace orrery::reference
