#include "kernels/experts/routing_scores/reference.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "kernels/dense/gemm/reference.h"

namespace orrery::reference {
namespace {

void softmax(std::span<double> row) {
  const double most = *std::ranges::max_element(row);
  double sum = 0;
  for (double& value : row) sum += value = std::exp(value - most);
  for (double& value : row) value /= sum;
}

}  // namespace

std::vector<double> routing_scores(std::span<const double> x, std::span<const double> w,
                                   std::span<const double> bias, const RoutingScoresShape& shape) {
  require_routing_scores_shape(shape);
  const auto experts = static_cast<std::size_t>(shape.experts_total);
  if (!bias.empty() && bias.size() != experts) {
    throw std::invalid_argument("routing_scores: the bias does not fit the experts");
  }
  std::vector<double> scores = gemm(x, w, shape.tokens, shape.experts_total, shape.hidden);
  for (std::size_t first = 0; first < scores.size(); first += experts) {
    const auto row = std::span(scores).subspan(first, experts);
    for (std::size_t i = 0; i < bias.size(); ++i) row[i] += bias[i];
    if (shape.activation == RouterActivation::kSoftmax) {
      softmax(row);
    } else {
      for (double& value : row) value = 1 / (1 + std::exp(-value));
    }
  }
  return scores;
}

}  // namespace orrery::reference
