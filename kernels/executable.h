#pragma once

// Which ops of a plan kernels of this project execute, known without CUDA: `orrery validate` says
// it before a plan travels to a host with GPUs, the executor before it binds one.

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/plan/plan.h"

namespace orrery {

// Empty: no code here runs a kernel of that name.
std::span<const DType> executed_dtypes(std::string_view kernel);

// "fp8 as x, not bf16", of an operand in another format than our kernel of the op takes; empty
// where there is none. Throws as operand_slots() does.
std::string refused_operand(const Plan& plan, const Op& op);

// Ops of one kernel that are refused for one reason.
struct Refusal {
  std::string kernel;            // "gemm fp8_block"
  std::string reason;            // what is executed instead
  std::vector<std::string> ops;  // names, as in the plan
};
// In the order of the plan; empty when the whole plan can be executed.
std::vector<Refusal> refusals(const Plan& plan);
// "moe bf16 (layers.0.experts, layers.1.experts and 30 more): <reason>; ..."
std::string to_text(std::span<const Refusal> refusals);

}  // namespace orrery
