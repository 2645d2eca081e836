#include "sim/des/block_rounds.h"

#include <algorithm>

namespace orrery::des {
namespace {

constexpr double kNothing = 1e-9;  // of a piece, and of the blocks: what sums of shares are off by

}  // namespace

double BlockRounds::running() const {
  double sum = 0;
  for (const Group& group : groups_) sum += group.share;
  return sum;
}

void BlockRounds::fill(double share) {
  const double beginning = std::min(share - running(), waiting_);
  if (beginning <= kNothing) return;
  waiting_ = waiting_ - beginning <= kNothing ? 0 : waiting_ - beginning;
  groups_.push_back({.share = beginning});
}

double BlockRounds::next_end() const {
  double least = 1;
  for (const Group& group : groups_) least = std::min(least, group.left);
  return least;
}

void BlockRounds::advance(double part) {
  for (Group& group : groups_) {
    group.left -= part;
    if (group.left > kNothing || pool_ <= kNothing) continue;
    pool_ -= std::min(group.share, pool_);
    group.left = 1;
  }
  std::erase_if(groups_, [](const Group& group) { return group.left <= kNothing; });
}

}  // namespace orrery::des
