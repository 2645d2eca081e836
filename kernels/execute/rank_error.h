#pragma once

// What failed on one rank, and the line of status.txt that says so. No CUDA.

#include <exception>
#include <stdexcept>
#include <string>

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

// "failed rank 1 op layers.0.o_proj: message", with "-" for what is not known: one line.
std::string failure_status(const std::exception& error);

}  // namespace orrery
