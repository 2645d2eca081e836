#pragma once

// Expert loads from distributions, from counts and from routing traces, and draws from a load.

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "sim/model/expert_load.h"

namespace orrery {

// All throw std::invalid_argument unless 1 <= topk <= experts.

// Shares in proportion to rank^-exponent, rank = 1 ... experts (Zipf); the first rank is the expert
// that the seed draws first, and so on (seed 0: expert 0, then expert 1, ...). Exponent 0 is
// uniform. Throws std::invalid_argument unless 0 <= exponent < infinity and experts >= 1.
ExpertLoad zipf_load(std::int64_t experts, double exponent, std::uint64_t seed);
// Shares in proportion to values at the middles of `experts` equal parts of the distribution with
// density x^-exponent on [1, experts]; seed and errors as above. A larger exponent is more even:
// most experts are near 1.
ExpertLoad power_law_load(std::int64_t experts, double exponent, std::uint64_t seed);

// The load in which a token chooses expert e with probability chosen[e], the inverse of
// choice_probabilities. Throws std::invalid_argument unless each is in [0, 1], at least topk of
// them are above 0, and their sum is topk (within 1e-6).
ExpertLoad load_of_probabilities(std::span<const double> chosen, std::int64_t topk);
// The load in which each expert has its part of `counts`, choices seen so far. A count above those
// of one choice per token, sum / topk, is taken as that. Throws std::invalid_argument when a count
// is negative or fewer than topk are above 0.
ExpertLoad load_of_counts(std::span<const std::int64_t> counts, std::int64_t topk);

// Choices of each of `experts` in a routing trace, CSV: either
//
//   expert,count        how often each expert was chosen, in any order; missing ones: 0
//   3,1071
//
//   expert_0,expert_1   one line for each token: the experts that it chose, all different,
//   3,17                in as many columns as the header has
//
// Empty lines and lines that start with "#" are ignored. Throws std::invalid_argument with the line
// number for any other header, a number that is none, an expert outside [0, experts), an expert
// twice, or a line of another length.
std::vector<std::int64_t> trace_counts(std::string_view csv, std::int64_t experts);

// The same for each interval of a trace whose lines are in any order,
//
//   interval,expert,count     0, 1, ...: all up to the last one are there
//   0,3,1071
//
// Throws as trace_counts, and for an interval without a line.
std::vector<std::vector<std::int64_t>> interval_counts(std::string_view csv, std::int64_t experts);

// `load` after `times` exchanges: in each, a part `share` of the experts, at least two of them, are
// drawn anew and pass their shares on to each other in a circle, so that every one of them gets
// another's. The shares stay what they are, whose they are moves. The same seed gives the same load
// on any machine. Throws std::invalid_argument when the load is even (no shares), share is not in
// (0, 1], or times < 0.
ExpertLoad drifted_load(const ExpertLoad& load, double share, std::int64_t times,
                        std::uint64_t seed);

// Rows of each of `experts` when `tokens` tokens choose, one draw: of each token topk different
// experts, each with its choice probability (systematic sampling in an order shuffled for each
// token; Madow, Annals of Mathematical Statistics 20(3), 1949). Sums to tokens * topk; the same
// seed gives the same counts on any machine. Throws as choice_probabilities, and on tokens < 0.
std::vector<std::int64_t> sample_counts(const ExpertLoad& load, std::int64_t experts,
                                        std::int64_t tokens, std::int64_t topk, std::uint64_t seed);

}  // namespace orrery
