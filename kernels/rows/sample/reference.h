#pragma once

// Sampling in double.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace orrery::reference {

// Of the largest logit, the lowest of equal ones; 0 where none is above -infinity.
std::int32_t argmax(std::span<const double> logits);

struct Candidate {
  std::int32_t id = 0;
  double probability = 0;
};
// The k largest logits (all of fewer), falling, lower ids first among equals, with their softmax at
// `temperature`.
std::vector<Candidate> top_k(std::span<const double> logits, std::size_t k, double temperature);

// Id of the first candidate at which the cumulated probability exceeds `chance`; the last if none
// does.
std::int32_t choose(std::span<const Candidate> candidates, double chance);

}  // namespace orrery::reference
