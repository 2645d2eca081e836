#pragma once

// Conversations: each turn's prompt is all that was said before and what the user or a tool adds,
// so that a prefix cache that still holds it computes only the new tokens.
//
//   turn 0   | system | first prompt | answer |
//   turn 1   | system | first prompt | answer | user | answer |      sent `wait` after that answer
//   turn 2   | system | first prompt | answer | user | answer | user | answer |
//            '- shared by all -'
//
// Blocks of answers count as the engines' prefix caches have them: computed tokens stay, the last
// one of an answer is computed with the next turn.

#include <cstdint>
#include <span>
#include <string>

#include "sim/serve/lengths.h"
#include "sim/serve/serve.h"

namespace orrery {

// Between an answer and the next turn: gamma of this mean and coefficient of variation; 0: always
// the mean.
struct ThinkTime {
  Seconds mean;
  double cv = 0;
  bool operator==(const ThinkTime&) const = default;
};

struct SessionConfig {
  double sessions_per_s = 0;  // they begin as requests of an open loop do
  double cv = 1;
  std::int64_t concurrency = 0;  // > 0: instead, so many users have one session after the other
  std::int64_t num_sessions = 0;
  LengthDistribution turns;
  LengthDistribution first_prompt;  // tokens, those of the system prompt left out
  LengthDistribution user_tokens;   // that a later turn adds
  LengthDistribution output_tokens;
  ThinkTime think_time;
  std::int64_t shared_system_prompt = 0;  // tokens at the begin of every session
  // A session ends before the turn whose prompt and output would be more tokens; 0: no limit.
  std::int64_t max_context = 0;
  bool operator==(const SessionConfig&) const = default;
};

// Throws std::invalid_argument for rates, counts or lengths that are not positive, a first turn
// above max_context, and more than kMostRequests turns.
Workload draw_sessions(const SessionConfig& config, std::uint64_t seed);

// Makes the requests of `workload`, in order of arrival, turns of the sessions that `sessions`
// names for each (ids of any kind; in order of appearance they become 0, 1, ...). A turn's prompt
// holds the one before and its answer where it is as long, that prompt alone where it is longer
// than that, and else nothing of it. `waits` is what passes between an answer and the turn, 0 s
// where it is empty; later turns come no earlier than they arrive, or where there are waits as soon
// as these are over. Throws std::invalid_argument when the columns are not equally long, and for
// waits that are negative or not finite.
void group_sessions(Workload& workload, std::span<const std::string> sessions,
                    std::span<const double> waits_s);

// In the order of arrival of records of sessions.
SessionMetrics session_metrics(std::span<const RequestRecord> records);

}  // namespace orrery
