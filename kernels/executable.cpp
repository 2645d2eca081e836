#include "kernels/executable.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <variant>

#include "kernels/kernel_spec.h"

namespace orrery {
namespace {

std::string unknown_kernel(const KernelSpec* spec) {
  const std::string_view instead = spec == nullptr ? std::string_view() : spec->instead;
  return "no kernel of this project does that" +
         (instead.empty() ? std::string() : "; " + std::string(instead));
}

std::string names_of(std::span<const DType> dtypes) {
  std::string text;
  for (const DType dtype : dtypes) text.append(text.empty() ? "" : " and ").append(to_text(dtype));
  return text;
}

std::string refused_dims(const KernelSpec& spec, const Dims& dims) {
  for (const DimSpec& rule : spec.dims) {
    if (rule.executed.empty()) continue;
    const std::int64_t size = dim(dims, rule.name);
    if (std::ranges::find(rule.executed, size) != rule.executed.end()) continue;
    std::string sizes;
    for (const std::int64_t taken : rule.executed) {
      sizes.append(sizes.empty() ? "" : " and ").append(std::to_string(taken));
    }
    return std::string(rule.name) + " is " + std::to_string(size) + "; executed: " + sizes;
  }
  return spec.refusal == nullptr ? "" : spec.refusal(dims);
}

// Empty when the op is executed.
std::string reason_against(const KernelOp& kernel) {
  const KernelSpec* const spec = find_kernel_spec(kernel.kernel);
  if (spec == nullptr || spec->executed.empty()) return unknown_kernel(spec);
  if (std::ranges::find(spec->executed, kernel.dtype) == spec->executed.end()) {
    return "executed: " + names_of(spec->executed);
  }
  return refused_dims(*spec, kernel.dims);
}

}  // namespace

std::string refused_operand(const Plan& plan, const Op& op) {
  const auto& kernel = std::get<KernelOp>(op.body);
  const KernelSpec& spec = kernel_spec(kernel.kernel);
  const OperandSlots slots = operand_slots(plan, op);
  for (std::size_t i = 0; i < op.reads.size(); ++i) {
    const Slot& slot = spec.slots[slots.reads[i]];
    const DType read = plan.tensors()[static_cast<std::size_t>(op.reads[i].tensor)].dtype;
    const bool may_differ = slot.type == SlotType::kOfOpOrBf16 || slot.type == SlotType::kAny;
    if (!may_differ || slot.use == Use::kCache || read == kernel.dtype) continue;
    return std::string(to_text(kernel.dtype)) + " as " + std::string(slot.name) + ", not " +
           std::string(to_text(read));
  }
  return "";
}

std::span<const DType> executed_dtypes(std::string_view kernel) {
  const KernelSpec* const spec = find_kernel_spec(kernel);
  return spec == nullptr ? std::span<const DType>() : spec->executed;
}

std::vector<Refusal> refusals(const Plan& plan) {
  std::vector<Refusal> found;
  for (const Op& op : plan.ops()) {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel == nullptr) continue;
    std::string reason = reason_against(*kernel);
    if (reason.empty()) {
      const std::string operand = refused_operand(plan, op);
      if (operand.empty()) continue;
      reason = "it takes " + operand;
    }
    std::string name = kernel->kernel + " " + std::string(to_text(kernel->dtype));
    const auto same = std::ranges::find_if(found, [&](const Refusal& refusal) {
      return refusal.kernel == name && refusal.reason == reason;
    });
    if (same != found.end()) {
      same->ops.push_back(printed_name(op));
    } else {
      found.push_back(
          {.kernel = std::move(name), .reason = std::move(reason), .ops = {printed_name(op)}});
    }
  }
  return found;
}

std::string to_text(std::span<const Refusal> refusals) {
  constexpr std::size_t kShown = 3;
  std::string text;
  for (const Refusal& refusal : refusals) {
    text.append(text.empty() ? "" : "; ").append(refusal.kernel).append(" (");
    for (std::size_t i = 0; i < std::min(refusal.ops.size(), kShown); ++i) {
      text.append(i == 0 ? "" : ", ").append(refusal.ops[i]);
    }
    if (refusal.ops.size() > kShown) {
      text.append(" and ").append(std::to_string(refusal.ops.size() - kShown)).append(" more");
    }
    text.append("): ").append(refusal.reason);
  }
  return text;
}

}  // namespace orrery
