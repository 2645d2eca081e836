#pragma once

// What the references of a plan's kernels read of a call.

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/execute/reference/kernel_call.h"

namespace orrery::reference {

using Values = std::vector<double>;
using Results = std::vector<Values>;

[[noreturn]] inline void refuse(const KernelCall& call, const std::string& why) {
  throw std::invalid_argument("op \"" + printed_name(call.op) + "\": " + why);
}

inline std::int64_t size_of(const KernelCall& call, std::string_view name) {
  return dim(call.kernel.dims, name);
}

inline const Tensor& tensor_of(const KernelCall& call, TensorId id) {
  return call.plan.tensors()[static_cast<std::size_t>(id)];
}

// Throws std::invalid_argument where the op reads no values there.
inline const Values& read(const KernelCall& call, std::size_t index) {
  if (index >= call.reads.size() || call.reads[index] == nullptr) {
    refuse(call, "reads no values in place " + std::to_string(index));
  }
  return *call.reads[index];
}

}  // namespace orrery::reference
