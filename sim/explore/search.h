#pragma once

// Which candidate to simulate next, and how long. The candidates' cost is known before anything is
// simulated where requests come at times of their own, since all of them are to serve the same
// tokens: levels of equal cost are then taken in ascending order, and the first that has a
// candidate which meets the SLO holds the best. What is never simulated is either
//   * impossible: a bound from below on its TTFT or TPOT lies above a limit (SteadyState), or
//   * dearer than a candidate that meets the SLO in a full simulation, or
//   * unlikely: offered more than kUnlikelyUtilisation times its estimated capacity, and dropped
//     while other candidates of its level or above remain; those are short-run before the search
//     gives up, or
//   * equal to one that is simulated: it differs only in limits of the engine which that one's
//     service never came near (peak_use.h). Of such the one with most room goes first.
// Within a level successive halving: short runs of all, full runs of the better half, and of the
// others only if none of these meets. Closed loops have no cost before they are simulated: their
// candidates are ordered by the estimate of cost per token and halved.
//
// Deterministic: jobs and their order depend on the scores alone, not on when they come.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "sim/explore/evaluate.h"
#include "sim/explore/space.h"

namespace orrery {

inline constexpr double kUnlikelyUtilisation = 1.5;

struct Job {
  std::size_t candidate = 0;
  Fidelity fidelity = Fidelity::kFull;
  auto operator<=>(const Job&) const = default;
};

// What of an outcome the search decides by.
struct Score {
  bool meets = false;
  bool is_overloaded = false;
  double headroom = 0;             // Outcome::headroom
  double output_tokens_per_s = 0;  // served
  bool is_lost = false;            // Outcome::is_lost
  std::optional<PeakUse> use;      // Outcome::peak_use
};

// What of an estimate it does.
struct Prospect {
  bool is_impossible = false;
  double utilisation = 0;
  double output_tokens_per_s = 0;
};

class Search {
 public:
  // `prospects` by candidate. `is_open`: requests come at times of their own.
  Search(const Space& space, std::vector<Prospect> prospects, bool is_open);

  // Jobs that may run beside each other; empty when the search is over. Not before all scores of
  // the jobs before are here.
  std::vector<Job> next();
  void take(const Job& job, const Score& score);

  // Candidates that do what a simulated one does, and which.
  [[nodiscard]] std::map<std::size_t, std::size_t> equals() const;

  // Best first: those that meet the SLO in a full simulation of their own, by cost per token, then
  // by headroom.
  [[nodiscard]] std::vector<std::size_t> ranking() const;
  // Fully simulated, none of which meets: the one nearest to it first, of those
  // that are overloaded the one with most capacity.
  [[nodiscard]] std::vector<std::size_t> nearest_misses() const;

 private:
  struct Stage {
    std::vector<std::size_t> candidates;  // of the levels taken together
    std::vector<std::size_t> survivors;   // best first, not fully simulated yet
  };

  [[nodiscard]] double cost(std::size_t candidate) const;  // per hour, or GPUs
  [[nodiscard]] double cost_per_token(std::size_t candidate, double tokens_per_s) const;
  [[nodiscard]] std::vector<std::vector<std::size_t>> by_level() const;
  [[nodiscard]] bool meets_at(std::size_t candidate) const;
  [[nodiscard]] bool has_score(const Job& job) const;
  void find_kinds();
  std::vector<Job> short_runs();
  // Of a stage's candidates, best first.
  [[nodiscard]] std::vector<std::size_t> survivors(std::vector<std::size_t> candidates) const;
  std::vector<Job> full_runs();
  void open_stage();

  const Space& space_;
  std::vector<Prospect> prospects_;
  bool is_open_;
  bool is_priced_;
  std::vector<std::vector<std::size_t>> levels_;  // to come, cheapest first
  std::vector<std::size_t> unlikely_;
  std::size_t next_level_ = 0;
  bool is_last_chance_ = false;
  bool is_over_ = false;
  Stage stage_;
  std::map<Job, Score> scores_;
  // Candidates that differ in limits of the engine alone are of one kind; members by how much room
  // they have, most first.
  std::vector<std::size_t> kind_;  // by candidate
  std::vector<std::vector<std::size_t>> members_;
  std::map<Job, std::size_t> equal_to_;
};

}  // namespace orrery
