#pragma once

// What a kernel is, without CUDA: the names of its dims, how its work follows from them, and how it
// may be sharded. One spec per directory kernels/<kernel>/<kernel>.cpp and one line in
// kernels/kernel_list.h. The plan's text form, `verify`, the cost model and the bindings all
// work from specs.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/plan/plan.h"
#include "sim/units/units.h"

namespace orrery {

// Amounts that follow from shapes alone: the least a kernel must compute and move.
struct Work {
  Flops flops;
  Bytes bytes_read;
  Bytes bytes_written;
};

struct DimSpec {
  std::string_view name;
  std::string_view meaning;  // one phrase, with unit where there is one
  // Sharding this dim leaves a partial result on each rank that must be reduced over them.
  bool is_contraction = false;
  // The kernel needs the whole dim on one rank (argmax over vocab): gather before it.
  bool must_be_whole = false;
  bool may_be_zero = false;  // else a dim is at least 1
  // The host knows this count when it gets to the op, and launches nothing for none.
  bool zero_is_not_launched = false;
};

struct KernelSpec {
  std::string_view name;
  std::string_view summary;
  std::vector<DimSpec> dims;
  // Throws std::invalid_argument when a dim is missing or dims contradict each other.
  Work (*work)(DType dtype, const Dims& dims) = nullptr;
  // Which of several ways our own kernel takes a call, from 1 on, where times of one way are smooth
  // and those of different ways jump; 0: none of them. `sizes` in the order of dims. Null: there is
  // one way.
  int (*way)(DType dtype, std::span<const std::int64_t> sizes) = nullptr;
};

// All specs, in a fixed order. Thread safe; the table is built on first use.
std::span<const KernelSpec> kernel_specs();
// Null when unknown.
const KernelSpec* find_kernel_spec(std::string_view name);
// Throws std::invalid_argument with the nearest known name.
const KernelSpec& kernel_spec(std::string_view name);
// Work of one kernel call. Throws std::invalid_argument on an unknown kernel or a missing dim.
Work work_of(const KernelOp& op);
// False where a dim is zero that keeps the host from launching. Throws as kernel_spec.
bool is_launched(const KernelOp& op);

}  // namespace orrery
