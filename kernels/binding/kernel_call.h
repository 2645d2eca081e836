#pragma once

// One kernel op of a plan on one rank, in double: what a kernel's reference is given to compute it.
// No CUDA.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/binding/step_input.h"
#include "kernels/kernel_spec.h"
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
  std::vector<double> has;  // by slot: whether its token is stored on this rank, 0 or 1
};

// A sequence of the step on this rank: rows [row, row + query) are its new tokens, or those that a
// context-parallel rank has of them.
struct SequenceRows {
  std::int64_t row = 0;
  std::int64_t query = 0;
  std::int64_t context = 0;
  std::int64_t length = 0;   // with all new tokens
  std::int64_t key_row = 0;  // where it begins among the tokens of all sequences
  std::span<const std::int32_t> blocks;
};

// The rows of a step on one rank (of one micro-batch).
struct PartRows {
  StepRows rows;
  std::vector<std::int32_t> token_ids;  // [tokens]; rows without a token: 0
  std::vector<std::int32_t> positions;  // [tokens]
  std::vector<std::int64_t> slots;      // [tokens], -1: not stored
  std::vector<std::int64_t> sampled;    // [seqs], rows; those without a sequence: 0
  // Of a context-parallel rank's part of a step: the rows of the whole step; empty: all of them.
  std::vector<std::int64_t> of_step;
  std::vector<SequenceRows> prefill;
  std::vector<SequenceRows> decodes;
  std::int64_t num_tokens = 0;  // rows that hold one, the first of all
};

struct RopeTables;  // kernels/attention/rope/reference.h

struct KernelCall {
  const Op& op;
  const KernelOp& kernel;
  const Plan& plan;
  const KernelSpec& spec;
  OperandSlots slots;  // of the operands
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

using Values = std::vector<double>;
using Results = std::vector<Values>;

// What computes a kernel's ops: their results, by op.writes, before rounding; empty for KV cache.
// Each is <kernel>_reference in the kernel's reference.cpp. Throws std::invalid_argument for
// operands that no kernel takes.
struct KernelReference {
  std::string_view kernel;
  Results (*run)(const KernelCall& call) = nullptr;
};
// All kernels that have one, in a fixed order.
std::span<const KernelReference> kernel_references();

[[noreturn]] void refuse(const KernelCall& call, const std::string& why);
std::int64_t size_of(const KernelCall& call, std::string_view dim);

// Of the operand of that name (a slot of the spec), of which there is one: its tensor, values and
// columns, the columns that the op reads, and those columns' values. `read` throws
// std::invalid_argument where there are no values.
const TensorView& view_read(const KernelCall& call, std::string_view slot);
const Tensor& tensor_read(const KernelCall& call, std::string_view slot);
const Values& read(const KernelCall& call, std::string_view slot);
std::int64_t columns_read(const KernelCall& call, std::string_view slot);
Values columns_of_view(const KernelCall& call, std::string_view slot);
bool has_operand(const KernelCall& call, std::string_view slot);
Values optional_read(const KernelCall& call, std::string_view slot);  // empty: there is none
std::vector<std::int32_t> integers_read(const KernelCall& call, std::string_view slot);
// Of `rows` rows, all that are one operand together; the sampled rows of it where it has more.
Values rows_read(const KernelCall& call, std::string_view slot, std::int64_t rows,
                 std::int64_t columns);

// Of a result: its tensor, and as many zeros as it has elements.
const Tensor& tensor_written(const KernelCall& call, std::string_view slot);
Values zeros_written(const KernelCall& call, std::string_view slot);

// `size` values, of which those behind the given ones are `padding`.
template <typename T>
Values padded(const std::vector<T>& values, std::int64_t size, double padding) {
  Values result(static_cast<std::size_t>(size), padding);
  std::copy_n(values.begin(), std::min(values.size(), result.size()), result.begin());
  return result;
}
// Columns [first, first + count) of all rows of x [.., stride].
Values columns_of(std::span<const double> x, std::int64_t stride, std::int64_t first,
                  std::int64_t count);
void put_columns(Values& x, std::int64_t stride, std::int64_t first, const Values& columns,
                 std::int64_t count);

}  // namespace orrery::reference
