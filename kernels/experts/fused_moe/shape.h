#pragma once

// What a fused_moe call is. No CUDA.

#include <compare>
#include <cstdint>

namespace orrery {

enum class RouterActivation : std::uint8_t;  // kernels/experts/routing_scores/choice.h

// Of an expert's first layer: w1 has the gate's rows and then the others (SwiGLU), or those alone.
// GELU is that of tanh: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
enum class ExpertActivation : std::uint8_t { kSwiglu, kGelu, kRelu };

struct FusedMoeShape {
  std::int64_t tokens = 0;  // of a rank, at most; may be 0
  std::int64_t hidden = 8;  // a multiple of 8: rows of 16 bytes; ffn likewise
  std::int64_t ffn = 8;
  std::int64_t experts = 1;  // routed ones of all ranks, 1 to 512
  std::int64_t topk = 1;     // 1 to 8, at most experts
  ExpertActivation activation = ExpertActivation::kSwiglu;
  RouterActivation router{};  // softmax
  bool normalises = false;    // weights of a token sum to `scale`
  double scale = 1;
  std::int64_t groups = 1;       // of experts, as in index_shuffling.h
  std::int64_t topk_groups = 1;  // of these, those whose experts may be chosen
  bool is_fp8 = false;     // experts multiply fp8, with scales of rows; hidden and ffn then of 16
  std::int64_t ranks = 1;  // each with as many of the experts, and tokens of its own
  // Experts as wide as the routed ones that take every token, 0 to 4: a shared expert of `shared`
  // times their ffn, of which each rank has all for its own tokens.
  std::int64_t shared = 0;
  // 0: no token is dropped. Else an expert takes of a rank's tokens the first
  // ceil(capacity_factor * tokens * topk / experts) that choose it; others are without it, and
  // their other weights stay as they are.
  double capacity_factor = 0;
  auto operator<=>(const FusedMoeShape&) const = default;
};

inline constexpr std::int64_t kMostFusedExperts = 512;
inline constexpr std::int64_t kMostFusedShared = 4;
inline constexpr std::int64_t kMostFusedTopk = 8;
inline constexpr std::int64_t kMostFusedRanks = 8;
inline constexpr std::int64_t kMostFusedGroups = 32;
// Choices of the tokens of one block: what its shared memory has room for.
inline constexpr std::int64_t kMostBlockChoices = 20'000;

// Throws std::invalid_argument, naming the field, when one is out of range or the rows of w1 in all
// are more than 2^31 - 1.
void require_fused_moe_shape(const FusedMoeShape& shape);

// Rows of w1 of one expert.
std::int64_t first_layer_rows(const FusedMoeShape& shape);
// Routed experts of a rank.
std::int64_t own_experts(const FusedMoeShape& shape);
// Experts that ranks have, shared ones on each.
std::int64_t num_slots(const FusedMoeShape& shape);
// Experts that the tokens of a rank go to, shared ones included, and rows that may come to one.
std::int64_t num_choices(const FusedMoeShape& shape);
std::int64_t most_rows(const FusedMoeShape& shape);
// Rows that an expert takes of `tokens` of a rank, at most.
std::int64_t capacity_of(const FusedMoeShape& shape, std::int64_t tokens);
// Rows that all routed experts take of `tokens` of a rank on average, where tokens choose all
// experts alike: of those of one expert, which are binomial, at most its capacity.
double mean_rows(const FusedMoeShape& shape, std::int64_t tokens);
// The mean of min(n, most) of a binomial n of so many trials, from 60 on of a normal one.
double mean_at_most(double trials, double probability, double most);

}  // namespace orrery
