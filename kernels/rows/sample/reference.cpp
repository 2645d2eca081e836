#include "kernels/rows/sample/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "kernels/binding/kernel_call.h"

namespace orrery::reference {

std::int32_t argmax(std::span<const double> logits) {
  std::int32_t best = 0;
  double most = -std::numeric_limits<double>::infinity();
  for (std::size_t id = 0; id < logits.size(); ++id) {
    if (logits[id] > most) {
      most = logits[id];
      best = static_cast<std::int32_t>(id);
    }
  }
  return best;
}

std::vector<Candidate> top_k(std::span<const double> logits, std::size_t k, double temperature) {
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::ranges::stable_sort(ids, std::greater{}, [&](std::int32_t id) { return logits[id]; });
  ids.resize(std::min(k, ids.size()));
  std::vector<Candidate> candidates;
  double total = 0;
  for (const std::int32_t id : ids) {
    const double weight = id == ids[0] ? 1 : std::exp((logits[id] - logits[ids[0]]) / temperature);
    candidates.push_back({.id = id, .probability = weight});
    total += weight;
  }
  for (Candidate& candidate : candidates) candidate.probability /= total;
  return candidates;
}

std::int32_t choose(std::span<const Candidate> candidates, double chance) {
  double cumulated = 0;
  for (const Candidate& candidate : candidates) {
    cumulated += candidate.probability;
    if (cumulated > chance) return candidate.id;
  }
  return candidates.back().id;
}

Results sample_reference(const KernelCall& call) {
  const Values& logits = read(call, "logits");
  const auto vocab = static_cast<std::size_t>(size_of(call, "vocab"));
  Values tokens;
  for (std::size_t row = 0; row * vocab < logits.size(); ++row) {
    tokens.push_back(argmax(std::span(logits).subspan(row * vocab, vocab)));
  }
  return {std::move(tokens)};
}

}  // namespace orrery::reference
