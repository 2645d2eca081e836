#pragma once

// What failed on one rank, and the line of status.txt that says so. No CUDA.

#include <concepts>
#include <exception>
#include <stdexcept>
#include <string>

#include "kernels/execute/run_phase.h"

namespace orrery {

// what() is "rank 1, op layers.0.o_proj: message"; without op where none was running: "rank 1:
// message".
class RankError : public std::runtime_error {
 public:
  RankError(int rank, std::string op, std::string message);
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] const std::string& op() const { return op_; }
  [[nodiscard]] const std::string& message() const { return message_; }

 private:
  int rank_;
  std::string op_;
  std::string message_;
};

// The rank and op of `error` and its message: a RankError as it is, anything else as one of `rank`
// and `op`.
RankError on_rank(int rank, const std::string& op, const std::exception& error);

// Within a catch block: throws what was caught on as a RankError of `rank` and `op`, and says the
// phase; a RankError and a std::invalid_argument as they are.
[[noreturn]] void rethrow_in_phase(int rank, RunPhase phase, const std::string& op = {});

// What work() returns; a RankError of its is thrown on with `first` added to the rank: where ranks
// are those of one replica among several.
template <std::invocable Work>
auto with_ranks_from(int first, const Work& work) {
  try {
    return work();
  } catch (const RankError& error) {
    throw RankError(error.rank() + first, error.op(), error.message());
  }
}
// The same of a line of status.txt that names a rank; others as they are.
std::string with_ranks_from(int first, const std::string& status);

// "failed rank 1 op layers.0.o_proj: message", with "-" for what is not known: one line.
std::string failure_status(const std::exception& error);

}  // namespace orrery
