#pragma once

// Programs of the megakernel on the CPU in double precision: what the GPU's numbers and the
// programs themselves are held against.

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "sim/megakernel/program.h"

namespace orrery::megakernel {

struct InterpreterSetup {
  // Values of a weight, row by row; asked once for each.
  std::function<std::vector<double>(const WeightName& name)> weight;
  double norm_epsilon = 1e-5;
  double rope_theta = 500000;
};

// One new token of a sequence that the caches have `context` tokens of.
struct NewToken {
  std::int32_t token = 0;
  std::int64_t context = 0;
};

struct Forward {
  std::vector<double> logits;             // [sequences, vocab]
  std::vector<std::int32_t> next_tokens;  // [sequences]
};

// Runs each SM's instructions in order, SMs in turns, an instruction when all units that it reads
// have been written. Keeps keys and values from forward to forward.
class Interpreter {
 public:
  Interpreter(Program program, const InterpreterSetup& setup);

  // Throws std::invalid_argument for other than one token a sequence or a context that the caches
  // do not have, std::logic_error where no SM can go on (naming one and its instruction), where a
  // unit or a logit is written twice, and where one is never written.
  Forward run(std::span<const NewToken> tokens);

 private:
  struct Unit {
    std::int64_t forward = 0;  // that wrote it
    double low = 0;            // or the one value that it holds
    double high = 0;
  };
  // Keys or values of a sequence in a layer: [tokens, kv_heads, head_dim].
  using Cache = std::vector<double>;

  [[nodiscard]] bool has(std::int32_t first, std::int64_t count) const;
  [[nodiscard]] bool is_ready(const Instruction& in) const;
  void put(std::int32_t unit, double low, double high);
  [[nodiscard]] std::vector<double> values(std::int32_t first, std::int64_t count) const;
  [[nodiscard]] std::span<const double> weight(std::int32_t index) const;
  Cache& cache(const Instruction& in, bool is_value);

  void run_instruction(const Instruction& in);
  void run_rows(const Instruction& in);
  void run_attention(const Instruction& in);
  void run_pick(const Instruction& in);
  [[nodiscard]] std::vector<double> input(const Instruction& in, std::int64_t sequence) const;
  [[nodiscard]] std::vector<double> normed(const Instruction& in, std::int64_t sequence) const;
  [[nodiscard]] std::vector<double> merged(const Instruction& in, std::int64_t sequence) const;
  void put_rows(const Instruction& in, std::int64_t sequence, const std::vector<double>& rows);
  void put_logits(const Instruction& in, std::int64_t sequence, const std::vector<double>& rows);
  // A head of the new token, normed and turned.
  [[nodiscard]] std::vector<double> turned(const Instruction& in, std::int64_t head,
                                           bool is_key) const;

  Program program_;
  InterpreterSetup setup_;
  std::vector<std::vector<double>> weights_;
  std::vector<double> embedding_;
  std::vector<Unit> board_;
  std::vector<Cache> caches_;  // [sequences, layers, keys and values]
  std::vector<NewToken> tokens_;
  std::int64_t forward_ = 0;
  Forward result_;
  std::vector<std::int64_t> logits_of_;  // by logit: the forward that wrote it
};

}  // namespace orrery::megakernel
