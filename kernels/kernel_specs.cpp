#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/kernel_spec.h"
#include "sim/units/nearest.h"

namespace orrery {
namespace {

std::string dim_names(const KernelSpec& spec) {
  std::string names;
  for (const DimSpec& dim : spec.dims) names.append(names.empty() ? "" : " ").append(dim.name);
  for (const DimSpec& dim : spec.optional_dims) names.append(" [").append(dim.name).append("]");
  return names;
}

// What the spec says of each dim of a call; empty where they are not its dims.
std::vector<const DimSpec*> specs_of(const Dims& dims, const KernelSpec& spec) {
  std::vector<const DimSpec*> found;
  for (const DimSpec& of : spec.dims) {
    if (found.size() == dims.size() || dims[found.size()].name != of.name) return {};
    found.push_back(&of);
  }
  for (const DimSpec& of : spec.optional_dims) {
    if (found.size() < dims.size() && dims[found.size()].name == of.name) found.push_back(&of);
  }
  return found.size() == dims.size() ? found : std::vector<const DimSpec*>();
}

std::string dim_names(const Dims& dims) {
  std::string names;
  for (const Dim& dim : dims) names.append(names.empty() ? "" : " ").append(dim.name);
  return names.empty() ? "none" : names;
}

}  // namespace

const KernelSpec* find_kernel_spec(std::string_view name) {
  const auto specs = kernel_specs();
  const auto found = std::ranges::find(specs, name, &KernelSpec::name);
  return found == specs.end() ? nullptr : &*found;
}

const KernelSpec& kernel_spec(std::string_view name) {
  if (const KernelSpec* spec = find_kernel_spec(name)) return *spec;
  std::vector<std::string_view> known;
  for (const KernelSpec& spec : kernel_specs()) known.push_back(spec.name);
  throw std::invalid_argument("unknown kernel \"" + std::string(name) + "\", nearest is \"" +
                              nearest(name, known) + "\"");
}

const KernelSpec& kernel_of(RoutedRole role) {
  return *std::ranges::find(kernel_specs(), role, &KernelSpec::routed);
}

RoutedRole routed_role(const KernelOp& op) { return kernel_spec(op.kernel).routed; }

Work work_of(const KernelOp& op) {
  const KernelSpec& spec = kernel_spec(op.kernel);
  try {
    return spec.work(op.dtype, op.dims);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument("kernel " + op.kernel + ": " + error.what());
  }
}

void check_call(const KernelOp& op) {
  const KernelSpec& spec = kernel_spec(op.kernel);
  const std::vector<const DimSpec*> specs = specs_of(op.dims, spec);
  if (specs.empty()) {
    throw std::invalid_argument("kernel " + op.kernel + " has dims " + dim_names(op.dims) +
                                ", expected " + dim_names(spec));
  }
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const std::int64_t least = specs[i]->may_be_zero ? 0 : 1;
    if (op.dims[i].size >= least) continue;
    throw std::invalid_argument("kernel " + op.kernel + " has " + op.dims[i].name + " = " +
                                std::to_string(op.dims[i].size) + ", expected at least " +
                                std::to_string(least));
  }
  if (op.free_sms < 0 || (op.free_sms > 0 && !spec.leaves_sms)) {
    throw std::invalid_argument("kernel " + op.kernel + " leaves " + std::to_string(op.free_sms) +
                                " SMs, expected " + (spec.leaves_sms ? "0 or more" : "none"));
  }
  static_cast<void>(work_of(op));
}

Bytes workspace_of(const Plan& plan, int rank) {
  Bytes most;
  for (const Op& op : plan.ops()) {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel == nullptr || !plan.contains(op.ranks, rank)) continue;
    const KernelSpec& spec = kernel_spec(kernel->kernel);
    if (spec.workspace != nullptr)
      most = std::max(most, spec.workspace(kernel->dtype, kernel->dims));
  }
  return most;
}

bool is_launched(const KernelOp& op) {
  const KernelSpec& spec = kernel_spec(op.kernel);
  return std::ranges::none_of(spec.dims, [&](const DimSpec& wanted) {
    return wanted.zero_is_not_launched && dim(op.dims, wanted.name) == 0;
  });
}

}  // namespace orrery
