#include "kernels/attention/kv_append/reference.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace orrery::reference {

std::vector<double> kv_append(std::span<const double> cache, std::span<const double> rows,
                              std::span<const std::int64_t> slots, std::size_t width) {
  if (rows.size() != slots.size() * width) {
    throw std::invalid_argument("kv_append: rows are not slots x width");
  }
  std::vector<double> result(cache.begin(), cache.end());
  for (std::size_t token = 0; token < slots.size(); ++token) {
    if (slots[token] < 0) continue;
    const std::size_t at = static_cast<std::size_t>(slots[token]) * width;
    if (at + width > result.size()) {
      throw std::invalid_argument("kv_append: slot " + std::to_string(slots[token]) +
                                  " is outside of the cache");
    }
    std::ranges::copy(rows.subspan(token * width, width),
                      result.begin() + static_cast<std::ptrdiff_t>(at));
  }
  return result;
}

}  // namespace orrery::reference
