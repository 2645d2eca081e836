#include "sim/explore/search.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace orrery {

namespace {

// Jobs of small levels are given out together, so that cores have enough.
constexpr std::size_t kFewest = 16;
// Full runs at a time, of a stage's survivors.
constexpr std::size_t kFewestFull = 4;
// A short run with less headroom has no full one.
constexpr double kHopeless = 0.5;
// Of a closed loop, once one has been simulated fully: short runs so much dearer are not.
constexpr double kNotBest = 1.15;
// Of a closed loop: estimates this far above the best are not simulated.
constexpr double kFarFromBest = 1.5;

}  // namespace

Search::Search(const Space& space, std::vector<Prospect> prospects, bool is_open)
    : space_(space), prospects_(std::move(prospects)), is_open_(is_open) {
  is_priced_ = std::ranges::all_of(space.candidates,
                                   [](const Candidate& plan) { return plan.usd_per_hour > 0; });
  levels_ = by_level();
  open_stage();
}

double Search::cost(std::size_t candidate) const {
  const Candidate& plan = space_.candidates[candidate];
  return is_priced_ ? plan.usd_per_hour : plan.num_gpus;
}

double Search::cost_per_token(std::size_t candidate, double tokens_per_s) const {
  return is_open_ ? cost(candidate) : cost(candidate) / std::max(tokens_per_s, 1e-9);
}

// Open: candidates of equal cost. Closed: all that are near the best estimate.
std::vector<std::vector<std::size_t>> Search::by_level() const {
  std::vector<std::size_t> possible;
  for (std::size_t i = 0; i < prospects_.size(); ++i) {
    if (!prospects_[i].is_impossible) possible.push_back(i);
  }
  const auto estimate = [&](std::size_t i) {
    return cost_per_token(i, prospects_[i].output_tokens_per_s);
  };
  std::ranges::stable_sort(possible, {}, estimate);
  std::vector<std::vector<std::size_t>> levels;
  for (const std::size_t i : possible) {
    const bool is_same =
        !levels.empty() && (is_open_ ? cost(levels.back().front()) == cost(i)
                                     : estimate(i) <= kFarFromBest * estimate(possible.front()));
    if (is_same) {
      levels.back().push_back(i);
    } else if (is_open_ || levels.empty()) {
      levels.push_back({i});
    } else {
      levels.emplace_back(1, i);
    }
  }
  return levels;
}

void Search::open_stage() {
  stage_ = {};
  while (next_level_ < levels_.size() && stage_.candidates.size() < kFewest) {
    for (const std::size_t i : levels_[next_level_]) {
      const bool is_unlikely = is_open_ && prospects_[i].utilisation > kUnlikelyUtilisation;
      (is_unlikely ? unlikely_ : stage_.candidates).push_back(i);
    }
    ++next_level_;
    if (!is_open_) break;
  }
  if (!stage_.candidates.empty()) return;
  const bool has_best = !ranking().empty();
  if (!is_last_chance_ && !has_best && !unlikely_.empty()) {
    is_last_chance_ = true;
    stage_.candidates = std::exchange(unlikely_, {});
  } else {
    is_over_ = true;
  }
}

std::vector<Job> Search::next() {
  while (!is_over_) {
    std::vector<Job> jobs = stage_.has_short ? full_runs() : short_runs();
    if (!jobs.empty()) return jobs;
    if (is_over_ || !ranking().empty()) break;
    open_stage();
  }
  is_over_ = true;
  return {};
}

std::vector<Job> Search::short_runs() {
  std::vector<Job> jobs;
  jobs.reserve(stage_.candidates.size());
  for (const std::size_t i : stage_.candidates) {
    jobs.push_back({.candidate = i, .fidelity = Fidelity::kShort});
  }
  stage_.has_short = true;
  return jobs;
}

// The cheapest level that may still have a candidate which meets, a few at a time.
std::vector<Job> Search::full_runs() {
  if (stage_.survivors.empty() && !stage_.candidates.empty()) {
    for (const std::size_t i : std::exchange(stage_.candidates, {})) {
      const Score& score = scores_.at({.candidate = i, .fidelity = Fidelity::kShort});
      if (score.headroom >= kHopeless && !score.is_overloaded) stage_.survivors.push_back(i);
    }
    std::ranges::stable_sort(stage_.survivors, {}, [&](std::size_t i) {
      const Score& score = scores_.at({.candidate = i, .fidelity = Fidelity::kShort});
      return std::pair(cost_per_token(i, score.output_tokens_per_s), -score.headroom);
    });
  }
  const std::vector<std::size_t> best = ranking();
  std::vector<Job> jobs;
  const auto price = [&](std::size_t i) {
    return cost_per_token(
        i, scores_.at({.candidate = i, .fidelity = Fidelity::kShort}).output_tokens_per_s);
  };
  if (is_open_ && !best.empty()) {
    std::erase_if(stage_.survivors, [&](std::size_t i) { return cost(i) > cost(best.front()); });
    // The level's others decide which of equal cost has most headroom: the better half of them.
    const std::size_t done = static_cast<std::size_t>(
        std::ranges::count_if(best, [&](std::size_t i) { return cost(i) == cost(best.front()); }));
    if (done >= kFewestFull) stage_.survivors.clear();
  } else if (!best.empty()) {
    const double least = price(best.front());
    std::erase_if(stage_.survivors, [&](std::size_t i) { return price(i) > kNotBest * least; });
  }
  if (stage_.survivors.empty()) return jobs;
  const double cheapest = price(stage_.survivors.front());
  while (!stage_.survivors.empty() && jobs.size() < kFewestFull &&
         (!is_open_ || price(stage_.survivors.front()) == cheapest)) {
    jobs.push_back({.candidate = stage_.survivors.front(), .fidelity = Fidelity::kFull});
    stage_.survivors.erase(stage_.survivors.begin());
  }
  return jobs;
}

void Search::take(const Job& job, const Score& score) { scores_[job] = score; }

bool Search::meets_at(std::size_t candidate) const {
  const auto found = scores_.find({.candidate = candidate, .fidelity = Fidelity::kFull});
  return found != scores_.end() && found->second.meets;
}

std::vector<std::size_t> Search::ranking() const {
  std::vector<std::pair<std::pair<double, double>, std::size_t>> met;
  for (const auto& [job, score] : scores_) {
    if (job.fidelity != Fidelity::kFull || !score.meets) continue;
    met.push_back({{cost_per_token(job.candidate, score.output_tokens_per_s), -score.headroom},
                   job.candidate});
  }
  std::ranges::sort(met);
  std::vector<std::size_t> best;
  best.reserve(met.size());
  for (const auto& [order, candidate] : met) best.push_back(candidate);
  return best;
}

std::vector<std::size_t> Search::nearest_misses() const {
  std::vector<std::pair<double, std::size_t>> missed;
  std::map<std::size_t, Score> last;  // of the longest run
  for (const auto& [job, score] : scores_) last[job.candidate] = score;
  for (const auto& [candidate, score] : last) {
    if (!meets_at(candidate)) missed.emplace_back(-score.headroom, candidate);
  }
  std::ranges::sort(missed);
  std::vector<std::size_t> nearest;
  nearest.reserve(missed.size());
  for (const auto& [order, candidate] : missed) nearest.push_back(candidate);
  return nearest;
}

}  // namespace orrery
