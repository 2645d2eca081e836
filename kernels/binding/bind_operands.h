#pragma once

// What the bind functions of kernels share: operands checked against what the kernel takes, and
// the rows of a step that an op of fewer rows takes. All throw std::invalid_argument, saying what
// the kernel takes and what the op has.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "kernels/binding/bind_context.h"
#include "kernels/binding/bind_resources.h"
#include "kernels/cuda/dtypes.h"

namespace orrery {

// A tensor as row-major rows: its last axis is the columns, all others the rows.
struct MatrixSize {
  std::int64_t rows = 1;
  std::int64_t columns = 1;
  bool operator==(const MatrixSize&) const = default;
};
MatrixSize matrix_size(const Tensor& tensor);

// Throws "<kernel> takes <what>".
[[noreturn]] void refuse(const BindContext& context, std::string_view what);

// refuse() unless `holds`. `what` is a text or makes one: a step with prompts binds hundreds of ops
// while it is waited for, and to make the texts takes 30 times as long as to check.
template <typename What>
void require_taken(const BindContext& context, bool holds, const What& what) {
  if (holds) return;
  if constexpr (std::is_invocable_v<const What&>) {
    refuse(context, what());
  } else {
    refuse(context, what);
  }
}

// That the op has so many reads and writes.
void require_operands(const BindContext& context, std::size_t reads, std::size_t writes);

// That the kernel's dtype, and so that of what it works on, is one of `dtypes`, or of all those in
// which the kernel is executed.
void require_dtype(const BindContext& context);
void require_dtype(const BindContext& context, std::span<const DType> dtypes);

// The KV cache of the rank, and for ops that write or read a layer of it, `has_layer`, one that has
// theirs.
const KvPool& require_cache(const BindContext& context, bool has_layer = true);

// That an operand is of `dtype` with `rows` (at least so many where `more_rows`) of `columns`, and
// in memory; fp8 with scales. Returns it.
struct OperandRule {
  const char* what = "";  // in messages: "x"
  DType dtype = DType::kBf16;
  MatrixSize size;
  bool more_rows = false;
};
Operand require_operand(const BindContext& context, const Operand& operand,
                        const OperandRule& rule);

template <typename T>
T* typed(const Operand& operand) {
  return static_cast<T*>(operand.data);
}
// Where the columns that the op works on begin, in the first row.
template <typename T>
T* first_column(const Operand& operand) {
  return typed<T>(operand) + operand.first_column;
}
// How many they are.
std::int64_t num_columns(const Operand& operand);

}  // namespace orrery
