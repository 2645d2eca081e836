#include "kernels/experts/fused_moe/reference.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <stdexcept>
#include <string>

#include "kernels/binding/kernel_call.h"
#include "kernels/dense/gemm/reference.h"
#include "kernels/dense/quantize/reference.h"
#include "kernels/experts/fused_moe/buffers.h"
#include "kernels/experts/index_shuffling/choice.h"
#include "kernels/experts/index_shuffling/reference.h"
#include "kernels/experts/routing_scores/reference.h"
#include "kernels/harness/rounding.h"

namespace orrery::reference {
namespace {

double silu(double value) { return value / (1 + std::exp(-value)); }
double gelu(double value) {
  const double inner = std::sqrt(2 / std::numbers::pi) * (value + 0.044715 * std::pow(value, 3));
  return value / 2 * (1 + std::tanh(inner));
}

// What the second layer reads of `rows` rows of the first.
std::vector<double> activated(std::vector<double> first, std::size_t ffn,
                              ExpertActivation activation) {
  if (activation != ExpertActivation::kSwiglu) {
    for (double& value : first) {
      value = activation == ExpertActivation::kGelu ? gelu(value) : std::max(value, 0.0);
    }
    return first;
  }
  std::vector<double> result;
  result.reserve(first.size() / 2);
  for (std::size_t row = 0; row < first.size(); row += 2 * ffn) {
    for (std::size_t i = row; i < row + ffn; ++i) result.push_back(silu(first[i]) * first[i + ffn]);
  }
  return result;
}

// Rows of `columns` as experts multiply them.
std::vector<double> multiplied(std::vector<double> rows, std::int64_t columns, bool is_fp8) {
  if (!is_fp8) return rows;
  const auto of_row = static_cast<std::size_t>(columns);
  const std::vector<double> values = round_bf16(rows);
  return quantize(values, quantize_scales(values, of_row, of_row), of_row, of_row);
}

// Adds to y what an expert makes of these rows of x, weighed.
void add_expert(std::vector<double>& y, std::span<const double> x,
                std::span<const std::int32_t> tokens, std::span<const double> weights,
                std::span<const double> w1, std::span<const double> w2,
                const FusedMoeShape& shape) {
  const auto hidden = static_cast<std::size_t>(shape.hidden);
  const auto count = static_cast<std::int64_t>(tokens.size());
  if (count == 0) return;
  std::vector<double> rows(tokens.size() * hidden);
  for (std::size_t row = 0; row < tokens.size(); ++row) {
    std::ranges::copy(x.subspan(static_cast<std::size_t>(tokens[row]) * hidden, hidden),
                      rows.begin() + static_cast<std::ptrdiff_t>(row * hidden));
  }
  rows = multiplied(std::move(rows), shape.hidden, shape.is_fp8);
  std::vector<double> h = activated(gemm(rows, w1, count, first_layer_rows(shape), shape.hidden),
                                    static_cast<std::size_t>(shape.ffn), shape.activation);
  h = multiplied(std::move(h), shape.ffn, shape.is_fp8);
  const std::vector<double> made = gemm(h, w2, count, shape.hidden, shape.ffn);
  for (std::size_t i = 0; i < made.size(); ++i) {
    const auto token = static_cast<std::size_t>(tokens[i / hidden]);
    y[token * hidden + i % hidden] += weights[i / hidden] * made[i];
  }
}

// `size` rows of each half of w1 of a shared expert, or of all of it, from the `part`-th on.
std::vector<double> rows_of_part(std::span<const double> w1, std::size_t part, std::size_t size,
                                 std::size_t halves) {
  std::vector<double> rows(halves * size);
  for (std::size_t half = 0; half < halves; ++half) {
    std::ranges::copy(w1.subspan(half * w1.size() / halves + part * size, size),
                      rows.begin() + static_cast<std::ptrdiff_t>(half * size));
  }
  return rows;
}

std::vector<double> columns_of_part(std::span<const double> w2, std::size_t part,
                                    std::size_t columns, std::size_t parts) {
  std::vector<double> result(w2.size() / parts);
  for (std::size_t at = 0; at < result.size(); ++at) {
    result[at] = w2[(at / columns * parts + part) * columns + at % columns];
  }
  return result;
}

// Adds to y what the shared experts make of every token.
void add_shared(std::vector<double>& y, std::span<const double> x, std::span<const double> w1,
                std::span<const double> w2, const FusedMoeShape& shape) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(shape.tokens));
  std::iota(all.begin(), all.end(), 0);
  const std::vector<double> ones(all.size(), 1.0);
  const std::size_t halves = shape.activation == ExpertActivation::kSwiglu ? 2 : 1;
  const auto ffn = static_cast<std::size_t>(shape.ffn);
  const auto shared = static_cast<std::size_t>(shape.shared);
  const std::size_t size = static_cast<std::size_t>(shape.hidden) * ffn;
  for (std::size_t part = 0; part < shared; ++part) {
    add_expert(y, x, all, ones, rows_of_part(w1, part, size, halves),
               columns_of_part(w2, part, ffn, shared), shape);
  }
}

// Of each expert. Throws std::invalid_argument unless the order has each of them once.
std::vector<std::int32_t> places_of(std::span<const std::int32_t> expert_of_slot,
                                    std::int64_t experts) {
  if (expert_of_slot.empty()) {
    std::vector<std::int32_t> places(static_cast<std::size_t>(experts));
    std::iota(places.begin(), places.end(), 0);
    return places;
  }
  if (std::ssize(expert_of_slot) != experts) {
    throw std::invalid_argument("fused_moe: " + std::to_string(expert_of_slot.size()) +
                                " slots of " + std::to_string(experts) +
                                " experts, expected each expert once");
  }
  return expert_slots(expert_of_slot, experts).slots;
}

}  // namespace

FusedMoe fused_moe(std::span<const double> x, std::span<const double> router,
                   std::span<const double> w1, std::span<const double> w2,
                   const FusedMoeShape& shape, std::span<const double> given_scores,
                   std::span<const double> correction_bias, std::span<const double> shared_w1,
                   std::span<const double> shared_w2, std::span<const double> logit_bias,
                   std::span<const std::int32_t> expert_of_slot) {
  require_fused_moe_shape(shape);
  const auto hidden = static_cast<std::size_t>(shape.hidden);
  const auto experts = static_cast<std::size_t>(shape.experts);
  const auto shared = static_cast<std::size_t>(shape.shared);
  const auto first_size = static_cast<std::size_t>(first_layer_rows(shape)) * hidden;
  const auto second_size = hidden * static_cast<std::size_t>(shape.ffn);
  if (w1.size() != experts * first_size || w2.size() != experts * second_size ||
      shared_w1.size() != shared * first_size || shared_w2.size() != shared * second_size) {
    throw std::invalid_argument("fused_moe: w1 or w2 does not fit the shape");
  }
  FusedMoe result{.scores = routing_scores(x, router, logit_bias,
                                           {.tokens = shape.tokens,
                                            .hidden = shape.hidden,
                                            .experts_total = shape.experts,
                                            .activation = shape.router})};
  for (std::int32_t token = 0; token < shape.tokens; ++token) {
    const auto row =
        std::span(result.scores).subspan(static_cast<std::size_t>(token) * experts, experts);
    if (std::ranges::any_of(row, [](double score) { return std::isnan(score); })) {
      result.faulty.push_back(token);
    }
  }
  const IndexShuffling routed = index_shuffling(
      given_scores.empty() ? std::span<const double>(result.scores) : given_scores, correction_bias,
      {.tokens = shape.tokens,
       .experts_total = shape.experts,
       .topk = shape.topk,
       .groups = shape.groups,
       .topk_groups = shape.topk_groups,
       .group_score = correction_bias.empty() ? GroupScore::kBest : GroupScore::kBestTwo,
       .experts = shape.experts,
       .normalises = shape.normalises,
       .scale = shape.scale});
  const std::vector<std::int32_t> places = places_of(expert_of_slot, shape.experts);
  const std::int64_t capacity = capacity_of(shape, shape.tokens);
  result.y.assign(static_cast<std::size_t>(shape.tokens) * hidden, 0.0);
  std::size_t row = 0;
  for (std::size_t expert = 0; expert < experts; ++expert) {
    const auto count = static_cast<std::size_t>(routed.counts[expert]);
    const auto place = static_cast<std::size_t>(places[expert]);
    const std::size_t taken = std::min(count, static_cast<std::size_t>(capacity));
    result.counts.push_back(static_cast<std::int32_t>(taken));
    add_expert(result.y, x, std::span(routed.row_token).subspan(row, taken),
               std::span(routed.row_weight).subspan(row, taken),
               w1.subspan(place * first_size, first_size),
               w2.subspan(place * second_size, second_size), shape);
    row += count;
  }
  add_shared(result.y, x, shared_w1, shared_w2, shape);
  return result;
}

Results fused_moe_reference(const KernelCall& call) {
  const Routing& routing = call.numbers.routing;
  const FusedMoeShape shape{
      .tokens = size_of(call, "tokens"),
      .hidden = size_of(call, "hidden"),
      .ffn = size_of(call, "ffn"),
      .experts = size_of(call, "experts_total"),
      .topk = size_of(call, "topk"),
      .activation = static_cast<ExpertActivation>(size_of(call, "activation")),
      .router = routing.score == RoutingScore::kSigmoid ? RouterActivation::kSigmoid
                                                        : RouterActivation::kSoftmax,
      .normalises = routing.normalises,
      .scale = routing.scale,
      .groups = routing.groups,
      .topk_groups = routing.topk_groups,
      .is_fp8 = call.kernel.dtype == DType::kFp8 && call.rounding != Rounding::kNone,
      .shared = size_of(call, "shared"),
      .capacity_factor = fused_moe_shape(call.kernel.dtype, call.kernel.dims).capacity_factor};
  const Values bias(routing.bias.begin(), routing.bias.end());
  const Values scores = given_or_found(call,
                                       routing_scores(read(call, "x"), read(call, "router"), bias,
                                                      {.tokens = shape.tokens,
                                                       .hidden = shape.hidden,
                                                       .experts_total = shape.experts,
                                                       .activation = shape.router}),
                                       shape.experts);
  FusedMoe found =
      fused_moe(read(call, "x"), read(call, "router"), read(call, "w1"), read(call, "w2"), shape,
                scores, optional_read(call, "correction_bias"), optional_read(call, "shared_w1"),
                optional_read(call, "shared_w2"), bias, routing.expert_of_slot);
  return {scores, std::move(found.y), {static_cast<double>(found.faulty.size())}};
}

}  // namespace orrery::reference
