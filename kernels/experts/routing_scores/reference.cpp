#include "kernels/experts/routing_scores/reference.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/binding/kernel_call.h"
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

void pad_scores(std::span<double> scores, std::span<const std::int64_t> slots) {
  const std::size_t experts = scores.size() / std::max<std::size_t>(slots.size(), 1);
  for (std::size_t row = 0; row < slots.size(); ++row) {
    if (slots[row] < 0) std::ranges::fill(scores.subspan(row * experts, experts), -INFINITY);
  }
}

Results routing_scores_reference(const KernelCall& call) {
  const std::int64_t experts = size_of(call, "experts_total");
  const std::vector<float>& imposed = call.numbers.routing.bias;
  const Values bias =
      imposed.empty() ? optional_read(call, "bias") : Values(imposed.begin(), imposed.end());
  const bool is_sigmoid = call.numbers.routing.score == RoutingScore::kSigmoid;
  Values scores = routing_scores(
      read(call, "x"), read(call, "w"), bias,
      {.tokens = size_of(call, "tokens"),
       .hidden = size_of(call, "hidden"),
       .experts_total = experts,
       .activation = is_sigmoid ? RouterActivation::kSigmoid : RouterActivation::kSoftmax});
  return {given_or_found(call, std::move(scores), experts)};
}

// A rounding of x may move a score past another, and with it a whole expert's contribution, so
// whoever is held against this says what it found, and whether that is close to what is found here
// is for the caller to judge (score_difference). Rows without a token have scores of their own, or
// none: of this rank they have no slot, of others it is not known which they are.
Values given_or_found(const KernelCall& call, Values scores, std::int64_t experts) {
  if (call.given_scores == nullptr) return scores;
  if (call.given_scores->size() != scores.size()) {
    refuse(call, "was given " + std::to_string(call.given_scores->size()) + " scores, expected " +
                     std::to_string(scores.size()));
  }
  const bool is_whole = std::ssize(scores) == call.part.rows.tokens * experts;
  if (call.part.num_tokens > call.part.rows.tokens) {
    refuse(call, "has " + std::to_string(call.part.num_tokens) + " tokens in " +
                     std::to_string(call.part.rows.tokens) + " rows");
  }
  const std::size_t count =
      is_whole ? static_cast<std::size_t>(call.part.num_tokens * experts) : scores.size();
  for (std::size_t i = 0; i < count; ++i) {
    const double given = (*call.given_scores)[i];
    const auto row = static_cast<std::int64_t>(i) / experts;
    const bool may_pad = !is_whole || call.part.slots[static_cast<std::size_t>(row)] < 0;
    if (given == -INFINITY && may_pad) {
      scores[i] = given;
      continue;
    }
    const double apart = std::abs(given - scores[i]);
    *call.score_difference =
        std::isfinite(apart) ? std::max(*call.score_difference, apart) : INFINITY;
    scores[i] = given;
  }
  return scores;
}

}  // namespace orrery::reference
