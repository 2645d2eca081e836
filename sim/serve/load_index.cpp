#include "sim/serve/load_index.h"

#include <algorithm>
#include <limits>

#include "sim/serve/fast_forward.h"

namespace orrery {

LoadIndex::LoadIndex(std::span<const std::unique_ptr<Replica>> replicas)
    : replicas_(replicas), known_(replicas.size()), changed_(replicas.size()) {
  for (std::size_t i = 0; i < changed_.size(); ++i) changed_[i] = i;
}

void LoadIndex::changed(std::size_t index) {
  if (known_[index].is_closed) return;
  if (std::exchange(known_[index].is_changed, true)) return;
  bounds_.erase(known_[index].bound);
  changed_.push_back(index);
}

void LoadIndex::set_open(std::size_t index, bool is_open) {
  Known& known = known_[index];
  if (known.is_closed != is_open) return;
  if (is_open) {
    known = {};
    changed_.push_back(index);
  } else {
    changed(index);
    std::erase(changed_, index);
    known.is_closed = true;
  }
}

void LoadIndex::ask(std::size_t index, Seconds now, std::int64_t slack) {
  const LoadBound bound = replicas_[index]->outstanding_bound(now, slack);
  known_[index] = {
      .bound = {.tokens = bound.tokens, .index = index}, .until = bound.until, .is_changed = false};
  bounds_.insert(known_[index].bound);
  if (bound.until < kNever) due_.emplace(bound.until, index);
}

void LoadIndex::ask_due(Seconds now) {
  const auto slack = [&](std::size_t index) {
    return std::max<std::int64_t>(replicas_[index]->outstanding_tokens(now) - last_least_, 0) / 2;
  };
  for (const std::size_t index : changed_) ask(index, now, slack(index));
  changed_.clear();
  std::vector<std::size_t> expired;
  for (; !due_.empty() && due_.top().first < now; due_.pop()) {
    const auto [until, index] = due_.top();
    if (known_[index].until == until && !known_[index].is_changed) expired.push_back(index);
  }
  for (const std::size_t index : expired) {
    if (known_[index].until >= now) continue;  // it was due twice
    bounds_.erase(known_[index].bound);
    ask(index, now, slack(index));
  }
}

LoadIndex::Least LoadIndex::least(Seconds now) {
  ask_due(now);
  Least best{.tokens = std::numeric_limits<std::int64_t>::max(), .index = replicas_.size()};
  std::vector<Least> seen;
  for (const Least& bound : bounds_) {
    if (bound >= best) break;
    best = std::min(
        best, {.tokens = replicas_[bound.index]->outstanding_tokens(now), .index = bound.index});
    seen.push_back(bound);
  }
  for (const Least& bound : seen) {
    const std::int64_t load = replicas_[bound.index]->outstanding_tokens(now);
    if (load == bound.tokens) continue;
    bounds_.erase(bound);
    ask(bound.index, now, (load - best.tokens) / 2);
  }
  last_least_ = best.tokens;
  return best;
}

bool LoadIndex::is_above(std::size_t index, std::int64_t tokens, Seconds now) const {
  const Known& known = known_[index];
  if (!known.is_changed && known.bound.tokens > tokens) return true;
  return replicas_[index]->outstanding_tokens(now) > tokens;
}

}  // namespace orrery
