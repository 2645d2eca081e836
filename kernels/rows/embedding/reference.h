#pragma once

// embedding in double.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace orrery::reference {

// Rows of table [vocab, hidden] by ids; zeros for an id outside of the table.
std::vector<double> embedding(std::span<const std::int32_t> ids, std::span<const double> table,
                              std::size_t hidden);

}  // namespace orrery::reference
