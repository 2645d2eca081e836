#pragma once

// One kernel op of a plan on one rank, in double.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention/rope/reference.h"
#include "kernels/binding/step_input.h"
#include "kernels/execute/rank_program.h"
#include "sim/plan/plan.h"

namespace orrery::reference {

enum class Rounding : std::uint8_t {
  kNone,   // every value as computed; quantisation does nothing
  kStored  // each tensor rounded to its format when it is written: bf16, or fp8 by rows
};

// The cache of one layer on one rank: rows of blocks, [slots, width] each; of MLA keys alone.
struct KvLayer {
  std::vector<double> keys;
  std::vector<double> values;
};

// A sequence of the step on this rank: rows [row, row + query) are its new tokens.
struct SequenceRows {
  std::int64_t row = 0;
  std::int64_t query = 0;
  std::int64_t context = 0;
  std::span<const std::int32_t> blocks;
};

// The rows of a step on one rank (of one micro-batch).
struct PartRows {
  StepRows rows;
  std::vector<std::int32_t> token_ids;  // [tokens]; rows without a token: 0
  std::vector<std::int32_t> positions;  // [tokens]
  std::vector<std::int64_t> slots;      // [tokens], -1: not stored
  std::vector<std::int64_t> sampled;    // [seqs], rows; those without a sequence: 0
  std::vector<SequenceRows> prefill;
  std::vector<SequenceRows> decodes;
  std::int64_t num_tokens = 0;  // rows that hold one, the first of all
};

struct KernelCall {
  const Op& op;
  const KernelOp& kernel;
  const Plan& plan;
  // By op.reads: [rows, columns], row-major; null for KV cache and token ids. By op.writes: what is
  // there already, null where there is nothing.
  std::vector<const std::vector<double>*> reads;
  std::vector<const std::vector<double>*> written;
  const PartRows& part;
  KvLayer* kv = nullptr;  // the layer that the op uses
  std::int32_t block_size = 64;
  std::int64_t first_vocab_row = 0;  // of this rank's embedding
  const RopeTables& rope;
  const ModelNumbers& numbers;
  Rounding rounding = Rounding::kNone;
  std::int64_t first_expert = 0;  // of this rank
  // routing_scores: what else has found them to be (model.h). Null: nothing has.
  const std::vector<float>* given_scores = nullptr;
  double* score_difference = nullptr;  // the largest so far
};

// Throws std::invalid_argument, naming the op, for a kernel that run_kernel does not know.
void require_reference(const Op& op);

// By op.writes, before rounding; empty for KV cache. Throws as require_reference, and for operands
// that no kernel takes.
std::vector<std::vector<double>> run_kernel(const KernelCall& call);

// Values of `tensor` as they are stored.
std::vector<double> rounded(std::vector<double> values, const Tensor& tensor, Rounding rounding);

}  // namespace orrery::reference
