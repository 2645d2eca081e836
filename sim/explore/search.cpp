#include "sim/explore/search.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <tuple>
#include <utility>

namespace orrery {

namespace {

// Jobs of small levels are given out together, so that cores have enough.
constexpr std::size_t kFewest = 16;
// Full runs at a time, of a stage's survivors.
constexpr std::size_t kFewestFull = 4;
// A short run with less headroom has no full one: no full one of random questions had more
// than 1.42 times that of its short one (short_run.h).
constexpr double kHopeless = 0.6;
// Of a closed loop, once one has been simulated fully: short runs so much dearer are not.
constexpr double kNotBest = 1.15;
// Of a closed loop: estimates this far above the best are not simulated.
constexpr double kFarFromBest = 1.5;

}  // namespace

Search::Search(const Space& space, std::vector<Prospect> prospects, bool is_open)
    : space_(space), prospects_(std::move(prospects)), is_open_(is_open) {
  is_priced_ = std::ranges::all_of(space.candidates,
                                   [](const Candidate& plan) { return plan.usd_per_hour > 0; });
  find_kinds();
  levels_ = by_level();
  open_stage();
}

void Search::find_kinds() {
  std::vector<std::string> texts;
  texts.reserve(space_.shapes.size());
  for (const Shape& shape : space_.shapes) texts.push_back(text_without_limits(*shape.scenario));
  std::map<std::tuple<std::string_view, int, int>, std::size_t> known;
  for (std::size_t i = 0; i < space_.candidates.size(); ++i) {
    const Candidate& plan = space_.candidates[i];
    const auto [found, is_new] = known.try_emplace(
        {texts[plan.shape], plan.replicas, plan.prefill_replicas}, members_.size());
    if (is_new) members_.emplace_back();
    members_[found->second].push_back(i);
    kind_.push_back(found->second);
  }
  const auto room = [&](std::size_t i) {
    const EngineConfig& engine = space_.shapes[space_.candidates[i].shape].scenario->engine;
    return std::pair(-engine.max_num_seqs, -engine.max_num_batched_tokens);
  };
  for (auto& members : members_) std::ranges::stable_sort(members, {}, room);
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
    std::vector<Job> jobs = short_runs();
    if (jobs.empty()) jobs = full_runs();
    if (!jobs.empty()) return jobs;
    if (is_over_ || !ranking().empty()) break;
    open_stage();
  }
  is_over_ = true;
  return {};
}

bool Search::has_score(const Job& job) const { return scores_.contains(job); }

// Of a stage's candidates: of each kind the one with most room, until all have scores.
std::vector<Job> Search::short_runs() {
  std::set<std::size_t> missing;
  for (const std::size_t i : stage_.candidates) {
    if (!has_score({.candidate = i, .fidelity = Fidelity::kShort})) missing.insert(i);
  }
  std::vector<Job> jobs;
  std::set<std::size_t> kinds;
  for (const std::size_t i : stage_.candidates) {
    if (!missing.contains(i) || !kinds.insert(kind_[i]).second) continue;
    const auto first = std::ranges::find_if(
        members_[kind_[i]], [&](std::size_t member) { return missing.contains(member); });
    jobs.push_back({.candidate = *first, .fidelity = Fidelity::kShort});
  }
  return jobs;
}

std::vector<std::size_t> Search::survivors(std::vector<std::size_t> candidates) const {
  const auto score = [&](std::size_t i) -> const Score& {
    return scores_.at({.candidate = i, .fidelity = Fidelity::kShort});
  };
  std::erase_if(candidates, [&](std::size_t i) {
    return score(i).headroom < kHopeless || score(i).is_overloaded || score(i).is_lost;
  });
  const auto place = [&](std::size_t i) {
    return std::ranges::find(members_[kind_[i]], i) - members_[kind_[i]].begin();
  };
  std::ranges::stable_sort(candidates, {}, [&](std::size_t i) {
    return std::tuple(cost_per_token(i, score(i).output_tokens_per_s), -score(i).headroom,
                      place(i));
  });
  return candidates;
}

// The cheapest level that may still have a candidate which meets, a few at a time.
std::vector<Job> Search::full_runs() {
  if (stage_.survivors.empty() && !stage_.candidates.empty()) {
    stage_.survivors = survivors(std::exchange(stage_.candidates, {}));
  }
  std::erase_if(stage_.survivors, [&](std::size_t i) {
    return has_score({.candidate = i, .fidelity = Fidelity::kFull});
  });
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
  std::set<std::size_t> kinds;  // what equals one of these may need no run
  for (const std::size_t i : stage_.survivors) {
    if (jobs.size() == kFewestFull || (is_open_ && price(i) != cheapest)) break;
    if (kinds.insert(kind_[i]).second) {
      jobs.push_back({.candidate = i, .fidelity = Fidelity::kFull});
    }
  }
  return jobs;
}

void Search::take(const Job& job, const Score& score) {
  scores_[job] = score;
  const auto scenario = [&](std::size_t i) -> const Scenario& {
    return *space_.shapes[space_.candidates[i].shape].scenario;
  };
  if (!score.use || !is_out_of_reach(scenario(job.candidate), *score.use)) return;
  for (const std::size_t i : members_[kind_[job.candidate]]) {
    const Job same{.candidate = i, .fidelity = job.fidelity};
    if (has_score(same) || !is_out_of_reach(scenario(i), *score.use)) continue;
    scores_[same] = score;
    equal_to_[same] = job.candidate;
  }
}

std::map<std::size_t, std::size_t> Search::equals() const {
  std::map<std::size_t, std::size_t> found;
  for (const auto& [job, other] : equal_to_) {
    const Job full{.candidate = job.candidate, .fidelity = Fidelity::kFull};
    if (job == full || !has_score(full)) found[job.candidate] = other;
  }
  return found;
}

bool Search::meets_at(std::size_t candidate) const {
  const auto found = scores_.find({.candidate = candidate, .fidelity = Fidelity::kFull});
  return found != scores_.end() && found->second.meets;
}

std::vector<std::size_t> Search::ranking() const {
  std::vector<std::pair<std::pair<double, double>, std::size_t>> met;
  for (const auto& [job, score] : scores_) {
    if (job.fidelity != Fidelity::kFull || !score.meets || equal_to_.contains(job)) continue;
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
  std::vector<std::tuple<double, double, std::size_t>> missed;
  std::map<std::size_t, Score> last;  // of the longest run
  for (const auto& [job, score] : scores_) {
    if (!equal_to_.contains(job)) last[job.candidate] = score;
  }
  for (const auto& [candidate, score] : last) {
    if (!meets_at(candidate)) {
      missed.emplace_back(-score.headroom, prospects_[candidate].utilisation, candidate);
    }
  }
  std::ranges::sort(missed);
  std::vector<std::size_t> nearest;
  nearest.reserve(missed.size());
  for (const auto& [headroom, utilisation, candidate] : missed) nearest.push_back(candidate);
  return nearest;
}

}  // namespace orrery
