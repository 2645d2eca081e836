#pragma once

// silu_mul in double.

#include <cstddef>
#include <span>
#include <vector>

namespace orrery::reference {

// silu(gate) * up of x [tokens, 2 ffn]. Throws std::invalid_argument when x is not whole rows.
std::vector<double> silu_mul(std::span<const double> x, std::size_t ffn);

}  // namespace orrery::reference
