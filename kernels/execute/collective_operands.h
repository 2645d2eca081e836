#pragma once

// What bindings of collectives ask of their operands.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "kernels/execute/collective_binding.h"

namespace orrery {

inline std::int64_t bytes_in(const Tensor& tensor) {
  return static_cast<std::int64_t>(std::ceil(bytes_of(tensor).value()));
}
// All axes but the last.
inline std::int64_t rows_of(const Tensor& tensor) {
  return tensor.axes.empty() ? 1 : num_elements(tensor) / tensor.axes.back().size;
}
inline std::byte* bytes_at(const Operand& operand) { return static_cast<std::byte*>(operand.data); }

// Throws std::invalid_argument: the kind of the op, then `problem`.
[[noreturn]] inline void refuse(const CollectiveContext& context, const std::string& problem) {
  const auto& comm = std::get<CommOp>(context.op.body);
  throw std::invalid_argument(std::string(to_text(comm.kind)) + " " + problem);
}

}  // namespace orrery
