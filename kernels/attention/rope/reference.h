#pragma once

// rope in double, and its tables.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace orrery::reference {

struct RopeTables {
  std::vector<float> cosines;  // [positions, rotary_dim / 2]
  std::vector<float> sines;
};

// cos and sin of position * base^(-2 i / rotary_dim). Source: Su et al., arXiv 2104.09864, 3.2.2.
RopeTables rope_tables(std::size_t positions, std::size_t rotary_dim, double base);

struct RopeLayout {
  std::size_t heads = 0;
  std::size_t head_dim = 0;
  std::size_t rotary_dim = 0;
  bool interleaved = false;
};

// x [tokens, heads, head_dim] rotated by the tables' rows at positions [tokens].
std::vector<double> rope(std::span<const double> x, std::span<const std::int32_t> positions,
                         const RopeTables& tables, const RopeLayout& layout);

}  // namespace orrery::reference
