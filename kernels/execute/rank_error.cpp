#include "kernels/execute/rank_error.h"

#include <algorithm>
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
