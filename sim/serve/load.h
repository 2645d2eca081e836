#pragma once

// Whether a service keeps up with the requests that come, and what holds them up where it does not.

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace orrery {

struct ReplicaTotals;
struct RequestRecord;

// What a waiting request was not admitted for.
enum class AdmissionLimit : std::uint8_t {
  kSeats,        // max_num_seqs
  kTokenBudget,  // max_num_batched_tokens, max_prefill_tokens
  kKvBlocks,     // none free
  kFrontEnd      // it had not come through the front end
};
inline constexpr std::array<std::string_view, 4> kAdmissionLimitNames{"seats", "token_budget",
                                                                      "kv_blocks", "front_end"};

// Of a service whose requests come at times of their own; zeros for a closed loop and for requests
// that all wait from the start.
struct LoadMetrics {
  double offered_requests_per_s = 0;
  double served_requests_per_s = 0;  // finished in the second half of the arrivals' time
  std::int64_t num_waiting = 0;      // when the last one comes: in no step yet
  // Requests wait ever longer: in the second half of the arrivals some always wait, in its second
  // quarter more than in its first, at last at least 1 % of all.
  bool is_overloaded = false;
  // In the second half of the arrivals' time as many requests finish as come, within 10 % and
  // chance. A run that is not settled says less than it seems to: a longer one has larger batches.
  bool is_settled = true;
  // Of the time of steps, the share at whose begin a request was not admitted for each limit.
  std::array<double, kAdmissionLimitNames.size()> held_up{};

  // Of an overloaded service, what holds requests up most of the time.
  [[nodiscard]] std::optional<AdmissionLimit> limit() const;
};

// `records` by arrival.
LoadMetrics load_metrics(std::span<const RequestRecord> records,
                         std::span<const ReplicaTotals* const> replicas);

}  // namespace orrery
