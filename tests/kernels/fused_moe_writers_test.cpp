// Where the ranks of a layer of fused_moe write into each other's memory, for any routing: each row
// of x and each result has one writer and lies where there is room, results come back to the choice
// that they are of, and what crosses between GPUs are the rows that were routed there, once each
// way.
//
// The model repeats what the kernel does (route_sm90.cuh: take_rows, hear_starts, place_rows,
// send_rows; results_sm90.cuh: Destination), with the slots and turns of the kernel's own header.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/experts/fused_moe/shape.h"
#include "kernels/experts/fused_moe/slot_order.h"
#include "kernels/experts/index_shuffling/choice.h"

namespace orrery::fused_moe {
namespace {

using Counts = std::vector<int>;
constexpr int kDropped = -1;

// Sums before each, and behind the last of all.
Counts prefix(const Counts& counts) {
  Counts sums(counts.size() + 1, 0);
  std::partial_sum(counts.begin(), counts.end(), sums.begin() + 1);
  return sums;
}

// A row that a rank writes: whose memory, and which row there.
struct Place {
  int rank = 0;
  int row = 0;
  auto operator<=>(const Place&) const = default;
};

// A token's choice of a slot, shared ones behind the routed ones, and where the kernel puts it.
struct Choice {
  int rank = 0;     // of the token
  int expert = -1;  // none: a shared one
  int slot = 0;
  Place x = {};           // where its row of x goes
  int result = kDropped;  // row of the rank's results in which it expects what comes back
};

struct Written {
  Place to = {};
  int from = 0;
};

class Writers {
 public:
  // experts[rank][token]: those that it chooses, distinct. places[expert]; none: in order.
  Writers(const FusedMoeShape& shape, const std::vector<std::vector<Counts>>& experts,
          const std::vector<std::int32_t>& places = {})
      : shape_(shape),
        places_(places),
        ranks_(static_cast<int>(shape.ranks)),
        shared_(static_cast<int>(shape.shared)),
        own_(static_cast<int>(own_experts(shape)) + shared_) {
    for (int rank = 0; rank < ranks_; ++rank) count(rank, experts[static_cast<std::size_t>(rank)]);
    const auto slots = static_cast<std::size_t>(num_slots(shape));
    Counts rows(slots, 0);
    for (const Counts& of_rank : totals_) {
      std::ranges::transform(rows, of_rank, rows.begin(), std::plus<>());
    }
    row_start_ = prefix(rows);
    for (int rank = 0; rank < ranks_; ++rank) place(rank);
  }

  [[nodiscard]] const std::vector<Choice>& choices() const { return choices_; }
  // Rows of x, by the ranks of the tokens.
  [[nodiscard]] std::vector<Written> rows_of_x() const {
    std::vector<Written> all;
    for (const Choice& choice : choices_) {
      if (choice.result != kDropped) all.push_back({.to = choice.x, .from = choice.rank});
    }
    return all;
  }
  // What comes back of each row of an area, by the rank that has computed it: rows of a slot lie by
  // the ranks that have sent them, and go to where the starts of these ranks say.
  [[nodiscard]] std::map<Place, Place> results() const {
    std::map<Place, Place> found;  // by row of x
    for (int slot = 0; slot < num_slots(shape_); ++slot) {
      const int computes = rank_of_slot(slot, own_);
      const int turn = turn_of_slot(slot, own_, ranks_);
      int begin = 0;
      for (int owner = 0; owner < ranks_; ++owner) {
        const Counts& starts = starts_[static_cast<std::size_t>(owner)];
        const int start = starts[static_cast<std::size_t>(turn)];
        const int end = begin + starts[static_cast<std::size_t>(turn) + 1] - start;
        const int shift = start - begin;
        for (int row = begin; row < end; ++row) {
          found[{.rank = computes, .row = first_row_of(slot) + row}] = {.rank = owner,
                                                                        .row = row + shift};
        }
        begin = end;
      }
    }
    return found;
  }
  [[nodiscard]] int rows_on(int rank) const {
    return start_of((rank + 1) * own_) - start_of(rank * own_);
  }

 private:
  [[nodiscard]] int start_of(int slot) const { return row_start_[static_cast<std::size_t>(slot)]; }
  [[nodiscard]] int first_row_of(int slot) const {
    return start_of(slot) - start_of(rank_of_slot(slot, own_) * own_);
  }

  // Choices of a rank in the order of its tokens, and the rows that each slot takes of them.
  void count(int rank, const std::vector<Counts>& experts) {
    Counts chosen(static_cast<std::size_t>(num_slots(shape_)), 0);
    first_choice_.push_back(choices_.size());
    for (const Counts& of_token : experts) {
      for (const int expert : of_token) {
        const std::int32_t* const places = places_.empty() ? nullptr : places_.data();
        choices_.push_back({.rank = rank,
                            .expert = expert,
                            .slot = slot_of_expert(expert, places, own_, shared_)});
      }
      for (int i = 0; i < shared_; ++i) {
        choices_.push_back({.rank = rank, .slot = rank * own_ + i});
      }
    }
    for (std::size_t i = first_choice_.back(); i < choices_.size(); ++i) {
      ++chosen[static_cast<std::size_t>(choices_[i].slot)];
    }
    const auto capacity =
        static_cast<int>(capacity_of(shape_, static_cast<std::int64_t>(experts.size())));
    Counts by_turn(chosen.size(), 0);
    for (int slot = 0; slot < num_slots(shape_); ++slot) {
      int& rows = chosen[static_cast<std::size_t>(slot)];
      if (!is_shared_slot(slot, own_, shared_)) rows = std::min(rows, capacity);
      by_turn[static_cast<std::size_t>(turn_of_slot(slot, own_, ranks_))] = rows;
    }
    totals_.push_back(std::move(chosen));
    starts_.push_back(prefix(by_turn));
  }

  void place(int rank) {
    const auto self = static_cast<std::size_t>(rank);
    Counts placed(static_cast<std::size_t>(num_slots(shape_)), 0);
    const std::size_t end =
        self + 1 < first_choice_.size() ? first_choice_[self + 1] : choices_.size();
    for (std::size_t i = first_choice_[self]; i < end; ++i) {
      Choice& choice = choices_[i];
      const auto slot = static_cast<std::size_t>(choice.slot);
      const int of_rank = placed[slot]++;
      if (of_rank >= totals_[self][slot]) continue;
      int first = 0;  // rows of ranks before this one
      for (std::size_t other = 0; other < self; ++other) first += totals_[other][slot];
      choice.x = {.rank = rank_of_slot(choice.slot, own_),
                  .row = first_row_of(choice.slot) + first + of_rank};
      const int turn = turn_of_slot(choice.slot, own_, ranks_);
      choice.result = starts_[self][static_cast<std::size_t>(turn)] + of_rank;
    }
  }

  FusedMoeShape shape_;
  std::vector<std::int32_t> places_;
  int ranks_;
  int shared_;
  int own_;  // slots of a rank
  std::vector<Choice> choices_;
  std::vector<std::size_t> first_choice_;  // of each rank
  std::vector<Counts> totals_;             // [rank][slot]: rows that are taken
  std::vector<Counts> starts_;             // [rank][turn]
  Counts row_start_;                       // [slot]
};

struct Case {
  FusedMoeShape shape;
  std::vector<std::vector<Counts>> experts;  // [rank][token]
  std::vector<std::int32_t> expert_of_slot;  // none: in order
  std::vector<std::int32_t> places;          // [expert], the same
  std::string name;
};

// Ranks of unlike tokens, none included; experts by weights that fall as a power of their place in
// an order of the case: 0 all alike, 8 nearly all tokens to the first ones.
Case draw(std::mt19937_64& random, int ranks, double skew) {
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
  };
  Case drawn;
  FusedMoeShape& shape = drawn.shape;
  shape.ranks = ranks;
  shape.experts = ranks * pick(1, 12);
  shape.topk = pick(1, std::min<std::int64_t>(8, shape.experts));
  shape.shared = pick(0, 2);
  shape.is_fp8 = pick(0, 1) == 1;
  shape.hidden = shape.ffn = 64;
  shape.capacity_factor = pick(0, 2) == 0 ? 0.25 * static_cast<double>(pick(1, 8)) : 0;
  std::vector<double> weights;
  weights.reserve(static_cast<std::size_t>(shape.experts));
  for (std::int64_t e = 0; e < shape.experts; ++e) {
    weights.push_back(std::pow(static_cast<double>(e + 1), -skew));
  }
  for (std::size_t i = weights.size(); i > 1; --i) std::swap(weights[i - 1], weights[random() % i]);
  if (pick(0, 1) == 1) {
    drawn.expert_of_slot.resize(static_cast<std::size_t>(shape.experts));
    std::iota(drawn.expert_of_slot.begin(), drawn.expert_of_slot.end(), 0);
    for (std::size_t i = drawn.expert_of_slot.size(); i > 1; --i) {
      std::swap(drawn.expert_of_slot[i - 1], drawn.expert_of_slot[random() % i]);
    }
    drawn.places = expert_slots(drawn.expert_of_slot, shape.experts).slots;
  }
  drawn.experts.resize(static_cast<std::size_t>(ranks));
  for (auto& of_rank : drawn.experts) {
    const std::int64_t tokens = pick(0, 3) == 0 ? pick(0, 1) : pick(0, 90);
    shape.tokens = std::max(shape.tokens, tokens);
    for (std::int64_t token = 0; token < tokens; ++token) {
      std::vector<std::pair<double, int>> keys;  // the largest are drawn without replacement
      keys.reserve(weights.size());
      for (std::size_t e = 0; e < weights.size(); ++e) {
        const double uniform = (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53;
        keys.emplace_back(std::log(uniform) / weights[e], static_cast<int>(e));
      }
      std::ranges::sort(keys, std::greater<>());
      Counts& chosen = of_rank.emplace_back();
      for (std::int64_t k = 0; k < shape.topk; ++k) {
        chosen.push_back(keys[static_cast<std::size_t>(k)].second);
      }
    }
  }
  drawn.name = std::to_string(ranks) + " ranks, " + std::to_string(shape.experts) + " experts, " +
               std::to_string(shape.topk) + " of them, " + std::to_string(shape.shared) +
               " shared, skew " + std::to_string(skew) + ", capacity " +
               std::to_string(shape.capacity_factor) +
               (drawn.places.empty() ? "" : ", in another order");
  return drawn;
}

template <typename Check>
void for_each_case(const Check& check) {
  constexpr std::uint64_t kSeed = 20261130;
  std::mt19937_64 random(kSeed);
  for (int ranks = 1; ranks <= kMostFusedRanks; ++ranks) {
    for (const double skew : {0.0, 1.0, 8.0}) {
      for (int i = 0; i < 12; ++i) {
        const Case drawn = draw(random, ranks, skew);
        SCOPED_TRACE(drawn.name + ", seed " + std::to_string(kSeed));
        require_fused_moe_shape(drawn.shape);
        check(drawn, Writers(drawn.shape, drawn.experts, drawn.places));
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

// An order says which experts the slots hold; rows of an expert go to the rank that holds it,
// behind the shared ones of that rank.
TEST(FusedMoeWriters, RowsGoToTheSlotThatHoldsTheirExpert) {
  int num_ordered = 0;
  for_each_case([&](const Case& drawn, const Writers& writers) {
    const std::int64_t own = own_experts(drawn.shape);
    num_ordered += drawn.places.empty() ? 0 : 1;
    for (const Choice& choice : writers.choices()) {
      if (choice.expert < 0) continue;
      const std::int64_t of_rank = choice.slot % (own + drawn.shape.shared) - drawn.shape.shared;
      ASSERT_GE(of_rank, 0);
      const std::int64_t place = choice.slot / (own + drawn.shape.shared) * own + of_rank;
      const std::int64_t held = drawn.expert_of_slot.empty()
                                    ? place
                                    : drawn.expert_of_slot[static_cast<std::size_t>(place)];
      EXPECT_EQ(held, choice.expert);
      if (choice.result == kDropped) continue;
      EXPECT_EQ(choice.x.rank, place / own);
    }
  });
  EXPECT_GT(num_ordered, 100);
}

TEST(FusedMoeWriters, ARowOfXHasOneWriterAndRoom) {
  for_each_case([](const Case& drawn, const Writers& writers) {
    std::set<Place> rows;
    for (const Written& one : writers.rows_of_x()) {
      EXPECT_TRUE(rows.insert(one.to).second)
          << "two write row " << one.to.row << " of rank " << one.to.rank;
      EXPECT_GE(one.to.row, 0);
      EXPECT_LT(one.to.row, writers.rows_on(one.to.rank));  // those that it multiplies
    }
    // No row that is multiplied is left unwritten, and there is room for all.
    std::size_t multiplied = 0;
    for (int rank = 0; rank < drawn.shape.ranks; ++rank) {
      EXPECT_LE(writers.rows_on(rank), most_rows(drawn.shape));
      multiplied += static_cast<std::size_t>(writers.rows_on(rank));
    }
    EXPECT_EQ(rows.size(), multiplied);
  });
}

TEST(FusedMoeWriters, AResultHasOneWriterAndComesBackToItsChoice) {
  for_each_case([](const Case& drawn, const Writers& writers) {
    const std::map<Place, Place> results = writers.results();
    std::set<Place> written;
    for (const auto& [row, to] : results) {
      EXPECT_TRUE(written.insert(to).second)
          << "two write result " << to.row << " of rank " << to.rank;
      EXPECT_GE(to.row, 0);
      EXPECT_LT(to.row, num_choices(drawn.shape));
    }
    std::size_t taken = 0;
    for (const Choice& choice : writers.choices()) {
      if (choice.result == kDropped) continue;
      ++taken;
      const Place expected{.rank = choice.rank, .row = choice.result};
      ASSERT_TRUE(results.contains(choice.x));
      EXPECT_EQ(results.at(choice.x), expected);
      // Of bf16 on one rank results are the rows themselves.
      if (drawn.shape.ranks == 1) {
        EXPECT_EQ(choice.x, expected);
      }
    }
    EXPECT_EQ(results.size(), taken);
  });
}

TEST(FusedMoeWriters, ACapacityTakesTheFirstTokensOfEachRank) {
  for_each_case([](const Case& drawn, const Writers& writers) {
    std::map<std::pair<int, int>, std::pair<int, int>> by_slot;  // rank, slot: chosen, taken
    bool is_over = false;
    for (const Choice& choice : writers.choices()) {
      auto& [chosen, taken] = by_slot[{choice.rank, choice.slot}];
      ++chosen;
      if (choice.result == kDropped) continue;
      is_over = is_over || taken + 1 != chosen;  // one before it was dropped
      ++taken;
    }
    EXPECT_FALSE(is_over);
    const auto own = static_cast<int>(own_experts(drawn.shape) + drawn.shape.shared);
    for (const auto& [of, counts] : by_slot) {
      const auto tokens = std::ssize(drawn.experts[static_cast<std::size_t>(of.first)]);
      const std::int64_t capacity =
          is_shared_slot(of.second, own, static_cast<int>(drawn.shape.shared))
              ? tokens
              : capacity_of(drawn.shape, tokens);
      EXPECT_EQ(counts.second, std::min<std::int64_t>(counts.first, capacity));
    }
  });
}

// Rows of x as they are multiplied, of fp8 with a scale of 4 bytes, and bf16 back: for each choice
// of an expert elsewhere that it takes, once each way, and nothing else.
TEST(FusedMoeWriters, WhatCrossesBetweenGpusAreRoutedRows) {
  for_each_case([](const Case& drawn, const Writers& writers) {
    const FusedMoeShape& shape = drawn.shape;
    const std::int64_t of_x = shape.is_fp8 ? shape.hidden + 4 : 2 * shape.hidden;
    const std::int64_t of_result = 2 * shape.hidden;
    std::int64_t there = 0;
    std::int64_t back = 0;
    for (const Written& one : writers.rows_of_x()) there += one.from == one.to.rank ? 0 : of_x;
    for (const auto& [row, to] : writers.results()) back += row.rank == to.rank ? 0 : of_result;
    // By the routing alone: of an expert elsewhere so many choices of a rank as it takes.
    std::int64_t remote = 0;
    for (int rank = 0; rank < shape.ranks; ++rank) {
      const auto& of_rank = drawn.experts[static_cast<std::size_t>(rank)];
      std::vector<std::int64_t> chosen(static_cast<std::size_t>(shape.experts), 0);
      for (const Counts& of_token : of_rank) {
        for (const int expert : of_token) ++chosen[static_cast<std::size_t>(expert)];
      }
      const std::int64_t capacity = capacity_of(shape, std::ssize(of_rank));
      for (std::int64_t expert = 0; expert < shape.experts; ++expert) {
        const auto e = static_cast<std::size_t>(expert);
        const std::int64_t place = drawn.places.empty() ? expert : drawn.places[e];
        if (place / own_experts(shape) == rank) continue;
        remote += std::min(chosen[e], capacity);
      }
      EXPECT_LE(remote, (rank + 1) * shape.tokens * shape.topk);
    }
    EXPECT_EQ(there, remote * of_x);
    EXPECT_EQ(back, remote * of_result);
    if (shape.ranks == 1) {
      EXPECT_EQ(there + back, 0);
    }
  });
}

}  // namespace
}  // namespace orrery::fused_moe
