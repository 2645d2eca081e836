#include "sim/serve/sessions.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/serve/metrics.h"
#include "sim/serve/random.h"
#include "sim/serve/service_checks.h"
#include "sim/serve/workload.h"
#include "sim/units/text.h"

namespace orrery {
namespace {

constexpr std::int64_t kBlockTokens = 64;  // of every engine's block sizes a multiple

// Names the blocks of conversations; no two blocks of unlike content have one name.
class BlockNames {
 public:
  explicit BlockNames(std::int64_t shared_tokens = 0) { extend(shared_, shared_tokens); }
  // A conversation that has only what all share.
  void restart() { held_ = shared_; }
  // Only the first `tokens` go on.
  void keep(std::int64_t tokens) {
    const auto blocks = static_cast<std::size_t>(tokens / kBlockTokens);
    if (blocks < held_.size()) held_.resize(blocks);
  }
  // Those of its first `tokens`.
  const std::vector<std::uint64_t>& upto(std::int64_t tokens) {
    extend(held_, tokens);
    return held_;
  }

 private:
  void extend(std::vector<std::uint64_t>& names, std::int64_t tokens) {
    while (std::ssize(names) < tokens / kBlockTokens) names.push_back(next_++);
  }

  std::uint64_t next_ = 0;
  std::vector<std::uint64_t> shared_;
  std::vector<std::uint64_t> held_;
};

Seconds draw_wait(const ThinkTime& think, Random& random) {
  if (think.cv == 0) return think.mean;
  if (think.cv == 1) return think.mean * random.exponential();
  const double shape = 1 / (think.cv * think.cv);
  return think.mean * (random.gamma(shape) / shape);
}

void check_lengths(const LengthDistribution& lengths, const char* what) {
  require(lengths.min >= 1 && lengths.max >= lengths.min, [&] {
    return std::string(what) + ": found [" + std::to_string(lengths.min) + ", " +
           std::to_string(lengths.max) + "], expected 1 <= min <= max";
  });
}

void check_sessions(const SessionConfig& config) {
  require(config.num_sessions >= 1, [&] {
    return "num_sessions is " + std::to_string(config.num_sessions) + ", expected at least 1";
  });
  require(config.concurrency >= 0 && (config.concurrency > 0) != (config.sessions_per_s > 0),
          "expected either sessions_per_s or concurrency above 0");
  require(config.concurrency > 0 ||
              (std::isfinite(config.sessions_per_s) && config.cv > 0 && std::isfinite(config.cv)),
          "expected sessions_per_s and cv finite and above 0");
  check_lengths(config.turns, "turns");
  check_lengths(config.first_prompt, "first_prompt");
  check_lengths(config.user_tokens, "user_tokens");
  check_lengths(config.output_tokens, "output_tokens");
  require(config.think_time.mean >= Seconds(0) && config.think_time.cv >= 0,
          "think_time: expected a mean and a cv of at least 0");
  require(config.shared_system_prompt >= 0, "shared_system_prompt: expected at least 0 tokens");
}

}  // namespace

Workload draw_sessions(const SessionConfig& config, std::uint64_t seed) {
  check_sessions(config);
  Random random(seed);
  BlockNames names(config.shared_system_prompt);
  Workload workload;
  workload.closed_loop_concurrency = config.concurrency;
  workload.hash_block_tokens = kBlockTokens;
  const double shape = 1 / (config.cv * config.cv);
  Seconds start;
  for (std::int64_t session = 0; session < config.num_sessions; ++session) {
    if (config.concurrency == 0) {
      start += Seconds((config.cv == 1 ? random.exponential() : random.gamma(shape) / shape) /
                       config.sessions_per_s);
    }
    names.restart();
    const std::int64_t num_turns = draw(config.turns, random);
    std::int64_t before = config.shared_system_prompt;
    for (std::int64_t turn = 0; turn < num_turns; ++turn) {
      const std::int64_t added = draw(turn == 0 ? config.first_prompt : config.user_tokens, random);
      const std::int64_t output = draw(config.output_tokens, random);
      const Seconds wait = turn == 0 ? Seconds(0) : draw_wait(config.think_time, random);
      const std::int64_t after = before + added + output;
      if (config.max_context > 0 && after > config.max_context) {
        require(turn > 0, [&] {
          return "the first turn of session " + std::to_string(session) + " has " +
                 std::to_string(after) + " tokens, more than max_context, " +
                 std::to_string(config.max_context);
        });
        break;
      }
      require(std::ssize(workload.requests) < kMostRequests, [&] {
        return "found more than " + std::to_string(kMostRequests) +
               " turns, expected no more: a run keeps its requests in memory";
      });
      workload.requests.push_back({.id = std::ssize(workload.requests),
                                   .arrival = start,
                                   .prompt_tokens = before + added,
                                   .output_tokens = output,
                                   .block_hashes = names.upto(after)});
      workload.turns.push_back({.session = session, .turn = turn, .wait = wait});
      before = after;
    }
  }
  return workload;
}

void group_sessions(Workload& workload, std::span<const std::string> sessions,
                    std::span<const double> waits_s) {
  const std::size_t count = workload.requests.size();
  require(sessions.size() == count && (waits_s.empty() || waits_s.size() == count), [&] {
    return "found " + std::to_string(sessions.size()) + " sessions and " +
           std::to_string(waits_s.size()) + " waits, expected one for each of the " +
           std::to_string(count) + " requests";
  });
  std::unordered_map<std::string, std::size_t> known;  // never iterated
  std::vector<std::vector<std::size_t>> rows;          // of each session
  for (std::size_t i = 0; i < count; ++i) {
    require(waits_s.empty() || (std::isfinite(waits_s[i]) && waits_s[i] >= 0), [&] {
      return "request " + std::to_string(i + 1) + " waits " + format_number(waits_s[i]) +
             " s, expected at least 0";
    });
    const auto [entry, is_new] = known.emplace(sessions[i], rows.size());
    if (is_new) rows.emplace_back();
    rows[entry->second].push_back(i);
  }
  BlockNames names;
  std::vector<Request> grouped;
  grouped.reserve(count);
  workload.turns.clear();
  for (std::size_t session = 0; session < rows.size(); ++session) {
    names.restart();
    std::int64_t prompt = 0;
    std::int64_t whole = 0;  // of the turn before
    const Seconds start = workload.requests[rows[session].front()].arrival;
    for (std::size_t turn = 0; turn < rows[session].size(); ++turn) {
      const std::size_t row = rows[session][turn];
      Request request = std::move(workload.requests[row]);
      names.keep(request.prompt_tokens >= whole    ? whole
                 : request.prompt_tokens >= prompt ? prompt
                                                   : 0);
      prompt = request.prompt_tokens;
      whole = prompt + request.output_tokens;
      request.id = std::ssize(grouped);
      request.block_hashes = names.upto(whole);
      if (!waits_s.empty()) request.arrival = start;
      grouped.push_back(std::move(request));
      workload.turns.push_back({.session = static_cast<std::int64_t>(session),
                                .turn = static_cast<std::int64_t>(turn),
                                .wait = Seconds(waits_s.empty() || turn == 0 ? 0 : waits_s[row])});
    }
  }
  workload.requests = std::move(grouped);
  workload.hash_block_tokens = kBlockTokens;
}

SessionMetrics session_metrics(std::span<const RequestRecord> records) {
  SessionMetrics metrics;
  std::vector<double> durations;
  std::vector<double> first_ttfts;
  std::vector<double> later_ttfts;
  std::int64_t num_turns = 0;
  std::int64_t later_prompts = 0;
  std::int64_t later_cached = 0;
  Seconds begin(1e300);
  Seconds end;
  for (std::size_t i = 0; i < records.size();) {
    std::size_t behind = i;
    while (behind < records.size() && records[behind].session == records[i].session) ++behind;
    const std::span<const RequestRecord> turns = records.subspan(i, behind - i);
    i = behind;
    if (!std::ranges::all_of(turns, &RequestRecord::is_measured)) continue;
    durations.push_back((turns.back().finish - turns.front().arrival).value());
    num_turns += std::ssize(turns);
    begin = std::min(begin, turns.front().arrival);
    end = std::max(end, turns.back().finish);
    first_ttfts.push_back(ttft(turns.front()).value());
    for (const RequestRecord& later : turns.subspan(1)) {
      later_ttfts.push_back(ttft(later).value());
      later_prompts += later.prompt_tokens;
      later_cached += later.cached_tokens;
    }
  }
  metrics.num_sessions = std::ssize(durations);
  if (metrics.num_sessions == 0) return metrics;
  const auto count = static_cast<double>(metrics.num_sessions);
  metrics.mean_turns = static_cast<double>(num_turns) / count;
  if (end > begin) metrics.sessions_per_s = count / (end - begin).value();
  if (later_prompts > 0) {
    metrics.later_cached_share =
        static_cast<double>(later_cached) / static_cast<double>(later_prompts);
  }
  metrics.duration_s = quantiles(durations);
  metrics.first_ttft_s = quantiles(first_ttfts);
  metrics.later_ttft_s = quantiles(later_ttfts);
  return metrics;
}

}  // namespace orrery
