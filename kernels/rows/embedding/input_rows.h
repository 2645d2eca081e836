#pragma once

// The rows of a step that an op of fewer rows takes.

#include <cstdint>
#include <string_view>

#include "kernels/binding/bind_operands.h"

namespace orrery {

// x of an op: the parts that it reads in place of one, which lie one behind the other. Where they
// have more rows than the op, it takes those that are sampled (StepTables::sampled_rows), or of an
// op of tokens those of a context-parallel rank, gathered ahead of each launch into scratch memory.
class InputRows {
 public:
  // `size` of what the op takes of the slot; only bf16 can be gathered.
  InputRows(const BindContext& context, std::string_view slot, const MatrixSize& size);
  [[nodiscard]] const void* data() const { return gathered_ != nullptr ? gathered_ : source_; }
  [[nodiscard]] const float* scales() const { return scales_; }  // of fp8
  // Enqueues the gathering, if any.
  void gather(const cuda::Stream& stream) const;

 private:
  const void* source_ = nullptr;
  const float* scales_ = nullptr;
  bf16* gathered_ = nullptr;
  const std::int32_t* rows_ = nullptr;
  MatrixSize size_;
  std::int64_t source_rows_ = 0;
};

}  // namespace orrery
