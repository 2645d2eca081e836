#include "kernels/execute/rank_error.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

namespace orrery {
namespace {

std::string place(int rank, const std::string& op) {
  std::string text = "rank " + std::to_string(rank);
  return op.empty() ? text : text + ", op " + op;
}

}  // namespace

RankError::RankError(int rank, std::string op, std::string message)
    : std::runtime_error(place(rank, op) + ": " + message),
      rank_(rank),
      op_(std::move(op)),
      message_(std::move(message)) {}

RankError on_rank(int rank, const std::string& op, const std::exception& error) {
  if (const auto* known = dynamic_cast<const RankError*>(&error); known != nullptr) return *known;
  return {rank, op, error.what()};
}

void rethrow_in_phase(int rank, RunPhase phase, const std::string& op) {
  try {
    throw;
  } catch (const RankError&) {
    throw;
  } catch (const std::invalid_argument&) {
    throw;
  } catch (const std::exception& error) {
    throw RankError(rank, op, "in phase " + std::string(to_text(phase)) + ": " + error.what());
  }
}

std::string with_ranks_from(int first, const std::string& status) {
  constexpr std::string_view kBefore = "failed rank ";
  if (!status.starts_with(kBefore)) return status;
  int rank = 0;
  const char* const begin = status.data() + kBefore.size();
  const auto [end, error] = std::from_chars(begin, status.data() + status.size(), rank);
  if (error != std::errc()) return status;
  return std::string(kBefore) + std::to_string(rank + first) + end;
}

std::string failure_status(const std::exception& error) {
  std::string rank = "-";
  std::string op = "-";
  std::string message = error.what();
  if (const auto* known = dynamic_cast<const RankError*>(&error); known != nullptr) {
    rank = std::to_string(known->rank());
    if (!known->op().empty()) op = known->op();
    message = known->message();
  }
  std::ranges::replace(message, '\n', ' ');
  return "failed rank " + rank + " op " + op + ": " + message;
}

}  // namespace orrery
