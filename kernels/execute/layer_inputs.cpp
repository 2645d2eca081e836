#include "kernels/execute/layer_inputs.h"

#include <algorithm>
#include <random>
#include <stdexcept>

namespace orrery {
namespace {

// In (0, 1).
double drawn_uniform(std::mt19937_64& random) {
  return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53;
}

}  // namespace

std::vector<float> draw_layer_input(std::int64_t tokens, std::int64_t hidden, std::uint64_t seed) {
  constexpr double kBound = 1.7320508075688772;  // sqrt(3)
  std::mt19937_64 random(seed);
  std::vector<float> values(static_cast<std::size_t>(tokens * hidden));
  for (float& value : values) {
    value = static_cast<float>(kBound * (2 * drawn_uniform(random) - 1));
  }
  return values;
}

std::vector<float> rows_of_rank(const Tensor& tensor, const RankGrid& grid, int rank,
                                std::int64_t tokens, std::span<const float> values) {
  const std::int64_t columns = tensor.axes.back().size;
  const std::int64_t count = num_elements(tensor) / columns;
  const std::int64_t first = count < tokens ? grid.dp_rank(rank) * count : 0;
  std::vector<float> rows(static_cast<std::size_t>(count * columns));
  const std::int64_t begin = std::min<std::int64_t>(first * columns, std::ssize(values));
  const std::int64_t end = std::min<std::int64_t>(begin + count * columns, std::ssize(values));
  std::copy(values.begin() + begin, values.begin() + end, rows.begin());
  return rows;
}

std::map<std::string, std::vector<float>> layer_inputs(const Plan& plan, const RankGrid& grid,
                                                       int rank, std::int64_t tokens,
                                                       std::uint64_t seed) {
  std::map<std::string, std::vector<float>> inputs;
  for (const Tensor& tensor : plan.tensors()) {
    if (tensor.role != TensorRole::kInput || !plan.contains(tensor.ranks, rank)) continue;
    if (tensor.dtype != DType::kBf16) {
      throw std::invalid_argument("input " + tensor.name + " is " +
                                  std::string(to_text(tensor.dtype)) +
                                  "; expected x of a layer, bf16, alone");
    }
    const std::int64_t hidden = tensor.axes.back().size;
    inputs[tensor.name] =
        rows_of_rank(tensor, grid, rank, tokens, draw_layer_input(tokens, hidden, seed));
  }
  return inputs;
}

}  // namespace orrery
