#pragma once

// A kernel op from the sizes of its dims in the spec's order.

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernel_spec.h"

namespace orrery {

inline KernelOp kernel_op(std::string_view kernel, DType dtype,
                          const std::vector<std::int64_t>& sizes) {
  const KernelSpec& spec = kernel_spec(kernel);
  if (sizes.size() != spec.dims.size()) throw std::invalid_argument("one size per dim");
  KernelOp op{std::string(kernel), dtype, {}};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    op.dims.push_back({std::string(spec.dims[i].name), sizes[i], {}});
  }
  return op;
}

inline Work work(std::string_view kernel, DType dtype, const std::vector<std::int64_t>& sizes) {
  return work_of(kernel_op(kernel, dtype, sizes));
}

}  // namespace orrery
