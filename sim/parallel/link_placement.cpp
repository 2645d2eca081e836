#include "sim/parallel/link_placement.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace orrery {
namespace {

void require_links(const BlockLinks& links, std::int64_t num_blocks) {
  const auto are_of_blocks = [&](const auto& matrix) {
    return std::ssize(matrix) == num_blocks && std::ranges::all_of(matrix, [&](const auto& row) {
             return std::ssize(row) == num_blocks;
           });
  };
  bool is_valid = are_of_blocks(links.latency) && are_of_blocks(links.rate);
  for (std::size_t from = 0; is_valid && from < links.rate.size(); ++from) {
    for (std::size_t to = 0; to < links.rate.size(); ++to) {
      if (from == to) continue;
      is_valid = is_valid && links.latency[from][to] >= Seconds(0) &&
                 links.rate[from][to] > BytesPerSecond(0);
    }
  }
  if (is_valid) return;
  throw std::invalid_argument("links of " + std::to_string(links.rate.size()) + " blocks for " +
                              std::to_string(num_blocks) +
                              ", expected a latency of at least 0 and a positive rate for each two "
                              "of them");
}

// Times of blocks as a function of what they hold.
class Blocks {
 public:
  Blocks(const ExpertPlacement& placement, std::span<const double> choices, const BlockLinks& links,
         const ExpertWork& work)
      : work_(work),
        tokens_(static_cast<double>(work.tokens)),
        experts_(placement.expert_of_slot),
        has_copies_(experts_.size() > choices.size()) {
    static_cast<void>(block_choices(placement, choices));  // throws
    require_links(links, placement.num_blocks);
    const auto num_blocks = static_cast<std::size_t>(placement.num_blocks);
    room_ = experts_.size() / num_blocks;
    all_tokens_ = tokens_ * static_cast<double>(num_blocks);
    std::vector<double> copies(choices.size());
    for (const std::int64_t expert : experts_) copies[static_cast<std::size_t>(expert)] += 1;
    for (const std::int64_t expert : experts_) {
      const auto i = static_cast<std::size_t>(expert);
      const double chosen = choices[i] / copies[i];
      slots_.push_back({chosen, 1 - std::pow(1 - std::min(chosen, 1.0), all_tokens_)});
    }
    for (std::size_t block = 0; block < num_blocks; ++block) add_links(block, links);
    set_sums();
  }

  [[nodiscard]] std::size_t size() const { return sums_.size(); }
  [[nodiscard]] std::size_t room() const { return room_; }
  // Whether the exchange would bring copies of an expert together.
  [[nodiscard]] bool joins_copies(std::size_t i, std::size_t j) const {
    if (!has_copies_) return false;
    const auto has = [&](std::size_t block, std::int64_t expert) {
      const auto first = experts_.begin() + static_cast<std::ptrdiff_t>(block * room_);
      const auto end = first + static_cast<std::ptrdiff_t>(room_);
      return std::find(first, end, expert) != end;
    };
    return has(i / room_, experts_[j]) || has(j / room_, experts_[i]);
  }
  // Seconds of all.
  [[nodiscard]] std::vector<double> times() const { return times_after(0, 0); }
  // Of all, were slots `i` and `j` exchanged.
  [[nodiscard]] std::vector<double> times_after(std::size_t i, std::size_t j) const {
    const Sum more{slots_[j].chosen - slots_[i].chosen, slots_[j].reached - slots_[i].reached};
    const std::size_t here = i / room_;
    const std::size_t there = j / room_;
    std::vector<double> times;
    times.reserve(sums_.size());
    for (std::size_t block = 0; block < sums_.size(); ++block) {
      const double sign = (block == here ? 1 : 0) - (block == there ? 1 : 0);
      const Links& links = links_[block];
      times.push_back(time_of(
          links,
          {sums_[block].chosen + sign * more.chosen, sums_[block].reached + sign * more.reached},
          {others_[block].out + more.chosen * (links.out[here] - links.out[there]),
           others_[block].in + more.chosen * (links.in[here] - links.in[there])}));
    }
    return times;
  }
  void exchange(std::size_t i, std::size_t j) {
    std::swap(experts_[i], experts_[j]);
    std::swap(slots_[i], slots_[j]);
    set_sums();
  }
  // Slots of a block in the order of their experts.
  [[nodiscard]] std::vector<std::int64_t> expert_of_slot() const {
    std::vector<std::int64_t> experts = experts_;
    const auto room = static_cast<std::ptrdiff_t>(room_);
    for (auto first = experts.begin(); first != experts.end(); first += room) {
      std::sort(first, first + room);
    }
    return experts;
  }

 private:
  // Of a slot, or over those of a block: choices of a token, and experts that have rows.
  struct Sum {
    double chosen = 0;
    double reached = 0;
  };
  // Seconds of a byte between here and each other block, and the sums over these.
  struct Links {
    double latency = 0;
    std::vector<double> out;
    std::vector<double> in;
    double all_out = 0;
    double all_in = 0;
  };

  // Over the choices of a token on other blocks, seconds of a byte to and from these.
  struct Others {
    double out = 0;
    double in = 0;
  };

  void set_sums() {
    sums_.clear();
    others_.clear();
    for (std::size_t block = 0; block < links_.size(); ++block) sums_.push_back(sum_of(block));
    for (std::size_t block = 0; block < links_.size(); ++block) {
      others_.push_back(others_of(block));
    }
  }
  void add_links(std::size_t block, const BlockLinks& links) {
    Links of;
    Seconds there;
    Seconds back;
    for (std::size_t other = 0; other < links.rate.size(); ++other) {
      const bool is_other = other != block;
      of.out.push_back(is_other ? 1 / links.rate[block][other].value() : 0);
      of.in.push_back(is_other ? 1 / links.rate[other][block].value() : 0);
      of.all_out += of.out.back();
      of.all_in += of.in.back();
      if (!is_other) continue;
      there = std::max(there, links.latency[other][block]);
      back = std::max(back, links.latency[block][other]);
    }
    of.latency = (there + back).value();
    links_.push_back(std::move(of));
  }
  [[nodiscard]] Sum sum_of(std::size_t block) const {
    Sum sum;
    for (std::size_t slot = block * room_; slot < (block + 1) * room_; ++slot) {
      sum.chosen += slots_[slot].chosen;
      sum.reached += slots_[slot].reached;
    }
    return sum;
  }
  // Where choices of the other blocks' experts go to and results of theirs come from.
  [[nodiscard]] Others others_of(std::size_t block) const {
    Others others;
    for (std::size_t other = 0; other < sums_.size(); ++other) {
      others.out += sums_[other].chosen * links_[block].out[other];
      others.in += sums_[other].chosen * links_[block].in[other];
    }
    return others;
  }
  [[nodiscard]] double time_of(const Links& links, const Sum& sum, const Others& others) const {
    const double sent = tokens_ * work_.sent_row.value();
    const double returned = tokens_ * work_.returned_row.value();
    const double x_out = sent * others.out;
    const double x_in = sent * sum.chosen * links.all_in;
    const double y_out = returned * sum.chosen * links.all_out;
    const double y_in = returned * others.in;
    const double moved = work_.overlaps ? std::max(x_out + y_out, x_in + y_in)
                                        : std::max(x_out, x_in) + std::max(y_out, y_in);
    const double products = all_tokens_ * sum.chosen * work_.row.value();
    const double weights = sum.reached * work_.expert.value();
    return links.latency + moved + std::max(products, weights);
  }

  ExpertWork work_;
  double tokens_ = 0;
  double all_tokens_ = 0;
  std::vector<std::int64_t> experts_;  // by slot
  bool has_copies_ = false;
  std::size_t room_ = 0;  // slots of a block
  std::vector<Sum> slots_;
  std::vector<Links> links_;
  std::vector<Sum> sums_;
  std::vector<Others> others_;
};

struct Exchange {
  std::size_t i = 0;
  std::size_t j = 0;
  double slowest = 0;
  double squares = 0;  // sum of those of all times
};
Exchange exchange_of(std::size_t i, std::size_t j, std::span<const double> times) {
  return {.i = i,
          .j = j,
          .slowest = std::ranges::max(times),
          .squares = std::inner_product(times.begin(), times.end(), times.begin(), 0.0)};
}

// A gain of less is rounding.
constexpr double kLeastGain = 1e-9;
bool is_less(double a, double b) { return a < b * (1 - kLeastGain); }
bool is_better(const Exchange& a, const Exchange& b) {
  if (is_less(a.slowest, b.slowest)) return true;
  return !is_less(b.slowest, a.slowest) && is_less(a.squares, b.squares);
}

// The best with the slowest block that is better than none, in which i == j.
Exchange best_exchange(const Blocks& blocks, std::size_t blocks_of_node) {
  const std::vector<double> times = blocks.times();
  const auto slow = static_cast<std::size_t>(std::ranges::max_element(times) - times.begin());
  Exchange best = exchange_of(0, 0, times);
  const std::size_t room = blocks.room();
  const std::size_t first = slow / blocks_of_node * blocks_of_node;
  for (std::size_t j = first * room; j < (first + blocks_of_node) * room; ++j) {
    if (j / room == slow) continue;
    for (std::size_t i = slow * room; i < (slow + 1) * room; ++i) {
      if (blocks.joins_copies(i, j)) continue;
      const Exchange one = exchange_of(i, j, blocks.times_after(i, j));
      if (is_better(one, best)) best = one;
    }
  }
  return best;
}

}  // namespace

std::vector<Seconds> block_times(const ExpertPlacement& placement, std::span<const double> choices,
                                 const BlockLinks& links, const ExpertWork& work) {
  std::vector<Seconds> times;
  for (const double time : Blocks(placement, choices, links, work).times()) {
    times.emplace_back(time);
  }
  return times;
}

ExpertPlacement place_by_links(ExpertPlacement start, std::span<const double> choices,
                               const BlockLinks& links, const ExpertWork& work,
                               std::int64_t num_nodes) {
  Blocks blocks(start, choices, links, work);
  if (num_nodes < 1 || start.num_blocks % num_nodes != 0) {
    throw std::invalid_argument(std::to_string(start.num_blocks) + " blocks on " +
                                std::to_string(num_nodes) +
                                " nodes, expected nodes that divide them");
  }
  const auto blocks_of_node = static_cast<std::size_t>(start.num_blocks / num_nodes);
  while (true) {
    const Exchange best = best_exchange(blocks, blocks_of_node);
    if (best.i == best.j) break;
    blocks.exchange(best.i, best.j);
  }
  start.expert_of_slot = blocks.expert_of_slot();
  return start;
}

}  // namespace orrery
