#pragma once

// What the bind functions of kernels share: operands by the names of their slots, and checks of
// what slots do not say: the step, the cache, what our own kernel does not take. All throw
// std::invalid_argument, saying what the kernel takes and what the op has.

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

// The slots of a kernel op that is to be executed, which is checked here once for all kernels: its
// dtype is one of those in which the kernel is executed, and its operands are those of the spec's
// slots, of the op's dtype where those of engines may be others, none of a slot that our own kernel
// lacks.
OperandSlots executed_slots(const Plan& plan, const Op& op);

// The tensors of a slot that the op reads or, `result`, writes: the first one or, `parts`, all that
// are one operand together. Each is in memory, fp8 with scales; so no slot of the cache is asked.
Operand operand(const BindContext& context, std::string_view slot);
Operand result(const BindContext& context, std::string_view slot);
std::span<const Operand> parts(const BindContext& context, std::string_view slot);
// Whether there is an optional one.
bool has_operand(const BindContext& context, std::string_view slot);
bool has_result(const BindContext& context, std::string_view slot);

// That the tensor has so many rows at least, or so many columns.
void require_rows(const BindContext& context, const Operand& operand, std::int64_t rows);
void require_columns(const BindContext& context, const Operand& operand, std::int64_t columns);

// That the kernel's dtype is bf16, where it is executed in others otherwise.
void require_bf16(const BindContext& context);

// The KV cache of the rank, and for ops that write or read a layer of it, `has_layer`, one that has
// theirs.
const KvPool& require_cache(const BindContext& context, bool has_layer = true);

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
