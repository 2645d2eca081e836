#include "sim/cost/symmetric_layout.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace orrery {
namespace {

constexpr double kBuffers = 4;  // two rounds, outgoing and incoming each

void require_positive(const SymmetricLayout& layout) {
  const bool is_whole = layout.tokens > 0 && layout.hidden > 0 && layout.experts > 0 &&
                        layout.tile_rows > 0 && layout.element > Bytes(0);
  if (is_whole) return;
  throw std::invalid_argument(
      "symmetric layout of " + std::to_string(layout.tokens) + " tokens, hidden " +
      std::to_string(layout.hidden) + ", " + std::to_string(layout.experts) +
      " experts, tiles of " + std::to_string(layout.tile_rows) + " rows, " +
      std::to_string(layout.element.value()) + " bytes an element; expected more than 0 of each");
}

}  // namespace

Bytes symmetric_layout_estimate(const SymmetricLayout& layout) {
  require_positive(layout);
  const auto tokens = static_cast<double>(layout.tokens);
  const auto least = static_cast<double>(layout.tile_rows * layout.experts);
  const double rows = tokens >= least ? tokens : least;
  return kBuffers * rows * static_cast<double>(layout.hidden) * layout.element;
}

Bytes symmetric_layout_size(const SymmetricLayout& layout) {
  require_positive(layout);
  const std::int64_t cell_tokens = layout.experts * layout.tile_rows;
  const std::int64_t tiles = (layout.tokens + cell_tokens - 1) / cell_tokens;
  const auto rows = static_cast<double>(tiles * cell_tokens);
  return kBuffers * rows * static_cast<double>(layout.hidden) * layout.element;
}

}  // namespace orrery
