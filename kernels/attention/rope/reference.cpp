#include "kernels/attention/rope/reference.h"

#include <cmath>
#include <string_view>
#include <utility>

#include "kernels/binding/kernel_call.h"

namespace orrery::reference {

RopeTables rope_tables(std::size_t positions, std::size_t rotary_dim, double base) {
  const std::size_t half = rotary_dim / 2;
  RopeTables tables{.cosines = std::vector<float>(positions * half),
                    .sines = std::vector<float>(positions * half)};
  for (std::size_t i = 0; i < half; ++i) {
    const double frequency =
        std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim));
    for (std::size_t position = 0; position < positions; ++position) {
      const double angle = static_cast<double>(position) * frequency;
      tables.cosines[position * half + i] = static_cast<float>(std::cos(angle));
      tables.sines[position * half + i] = static_cast<float>(std::sin(angle));
    }
  }
  return tables;
}

std::vector<double> rope(std::span<const double> x, std::span<const std::int32_t> positions,
                         const RopeTables& tables, const RopeLayout& layout) {
  std::vector<double> y(x.begin(), x.end());
  const std::size_t half = layout.rotary_dim / 2;
  for (std::size_t head = 0; head < positions.size() * layout.heads; ++head) {
    const std::size_t row = static_cast<std::size_t>(positions[head / layout.heads]) * half;
    for (std::size_t pair = 0; pair < half; ++pair) {
      const double cosine = tables.cosines[row + pair];
      const double sine = tables.sines[row + pair];
      const std::size_t first = head * layout.head_dim;
      const std::size_t low = first + (layout.interleaved ? 2 * pair : pair);
      const std::size_t high = layout.interleaved ? low + 1 : low + half;
      y[low] = x[low] * cosine - x[high] * sine;
      y[high] = x[high] * cosine + x[low] * sine;
    }
  }
  return y;
}

namespace {

// The last elements of each query head and the columns of keys turn.
Results rope_apart(const KernelCall& call) {
  const std::int64_t rotary = size_of(call, "head_dim");
  const std::int64_t heads = size_of(call, "heads") - 1;
  const auto rotated = [&](std::string_view slot, std::int64_t num_heads, std::int64_t first) {
    const std::int64_t stride = columns_read(call, slot) / num_heads;
    Values x = read(call, slot);
    const Values last = columns_of(x, stride, first, rotary);
    const RopeLayout layout{.heads = static_cast<std::size_t>(num_heads),
                            .head_dim = static_cast<std::size_t>(rotary),
                            .rotary_dim = static_cast<std::size_t>(rotary)};
    put_columns(x, stride, first, rope(last, call.part.positions, call.rope, layout), rotary);
    return x;
  };
  return {rotated("q", heads, columns_read(call, "q") / heads - rotary),
          rotated("k", 1, view_read(call, "k").first_column)};
}

}  // namespace

// Rows of query, key and value heads, of which all but the values turn.
Results rope_reference(const KernelCall& call) {
  if (has_operand(call, "k")) return rope_apart(call);
  const std::int64_t tokens = size_of(call, "tokens");
  const std::int64_t heads = size_of(call, "heads");
  const std::int64_t head_dim = size_of(call, "head_dim");
  Values x = read(call, "q");
  const std::int64_t stride = static_cast<std::int64_t>(x.size()) / tokens;
  const std::int64_t width = heads * head_dim;
  const RopeLayout layout{.heads = static_cast<std::size_t>(heads),
                          .head_dim = static_cast<std::size_t>(head_dim),
                          .rotary_dim = static_cast<std::size_t>(head_dim)};
  const Values rotated =
      rope(columns_of(x, stride, 0, width), call.part.positions, call.rope, layout);
  put_columns(x, stride, 0, rotated, width);
  return {std::move(x)};
}

}  // namespace orrery::reference
