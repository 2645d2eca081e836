#include "kernels/executable.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <variant>

#include "kernels/kernel_list.h"

namespace orrery {
namespace {

struct Executed {
  std::string_view kernel;
  std::span<const DType> dtypes;
};

std::span<const Executed> executed_kernels() {
  using enum DType;
#define ORRERY_NOTHING(name)
#define ORRERY_DTYPES(name, ...) static constexpr std::array k_##name{__VA_ARGS__};
  ORRERY_KERNELS(ORRERY_DTYPES, ORRERY_NOTHING)
#undef ORRERY_DTYPES
#define ORRERY_EXECUTED(name, ...) Executed{.kernel = #name, .dtypes = k_##name},
  static constexpr std::array kExecuted{ORRERY_KERNELS(ORRERY_EXECUTED, ORRERY_NOTHING)};
#undef ORRERY_EXECUTED
#undef ORRERY_NOTHING
  return kExecuted;
}

// Where a kernel takes a few sizes of a dim only; its launcher says the same.
struct SizeRule {
  std::string_view kernel;
  std::string_view dim;
  std::array<std::int64_t, 2> sizes;
};
constexpr std::array kSizes = {SizeRule{"attention_prefill", "head_dim", {64, 128}},
                               SizeRule{"attention_decode", "head_dim", {64, 128}},
                               SizeRule{"mla_prefill", "qk_head_dim", {192, 192}},
                               SizeRule{"mla_prefill", "v_head_dim", {128, 128}},
                               SizeRule{"mla_decode", "kv_lora_rank", {512, 512}},
                               SizeRule{"mla_decode", "rope_dim", {64, 64}}};

// Heads that share one head of keys and values (decode::kMaxRatio).
constexpr std::int64_t kMostHeadsPerKvHead = 16;

// Kernels that multiply with one weight and add nothing to the product.
constexpr std::array<std::string_view, 4> kProducts = {"gemm", "grouped_gemm",
                                                       "grouped_gemm_scatter", "expert_gemm"};

// What to ask for in place of a kernel that engines' tables measure as a whole.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kInstead = {
    {{"moe", "moe: {design: shuffling} is"},
     {"moe_route", "moe: {design: shuffling} is"},
     {"mla_prefill_module", "an engine profile with mla_form: auto is"},
     {"mla_decode_module", "an engine profile with mla_form: auto is"}}};

std::string unknown_kernel(std::string_view kernel) {
  const auto instead =
      std::ranges::find(kInstead, kernel, [](const auto& row) { return row.first; });
  return "no kernel of this project does that" +
         (instead == kInstead.end() ? std::string() : "; " + std::string(instead->second));
}

std::string names_of(std::span<const DType> dtypes) {
  std::string text;
  for (const DType dtype : dtypes) text.append(text.empty() ? "" : " and ").append(to_text(dtype));
  return text;
}

std::string refused_size(const KernelOp& op) {
  for (const SizeRule& rule : kSizes) {
    if (rule.kernel != op.kernel) continue;
    const std::int64_t size = dim(op.dims, rule.dim);
    if (std::ranges::find(rule.sizes, size) != rule.sizes.end()) continue;
    const auto& [first, second] = rule.sizes;
    return std::string(rule.dim) + " is " + std::to_string(size) +
           "; executed: " + std::to_string(first) +
           (second == first ? "" : " and " + std::to_string(second));
  }
  if (op.kernel == "attention_decode") {
    const std::int64_t heads = dim(op.dims, "heads");
    const std::int64_t kv_heads = dim(op.dims, "kv_heads");
    if (heads > kMostHeadsPerKvHead * kv_heads || heads % kv_heads != 0) {
      return std::to_string(heads) + " heads on " + std::to_string(kv_heads) +
             " of keys and values; executed: 1 to " + std::to_string(kMostHeadsPerKvHead) +
             " on each";
    }
  }
  return "";
}

bool adds_bias(const Plan& plan, const Op& op) {
  const auto num_weights = std::ranges::count_if(op.reads, [&](TensorId id) {
    return plan.tensors()[static_cast<std::size_t>(id)].role == TensorRole::kWeight;
  });
  return num_weights > 1;
}

// Empty when the op is executed.
std::string reason_against(const Plan& plan, const Op& op, const KernelOp& kernel) {
  const std::span<const DType> dtypes = executed_dtypes(kernel.kernel);
  if (dtypes.empty()) return unknown_kernel(kernel.kernel);
  if (std::ranges::find(dtypes, kernel.dtype) == dtypes.end()) {
    return "executed: " + names_of(dtypes);
  }
  const bool is_product = std::ranges::find(kProducts, kernel.kernel) != kProducts.end();
  if (is_product && adds_bias(plan, op)) return "no kernel of this project adds a bias";
  return refused_size(kernel);
}

}  // namespace

std::span<const DType> executed_dtypes(std::string_view kernel) {
  const auto kernels = executed_kernels();
  const auto found = std::ranges::find(kernels, kernel, &Executed::kernel);
  return found == kernels.end() ? std::span<const DType>() : found->dtypes;
}

std::vector<Refusal> refusals(const Plan& plan) {
  std::vector<Refusal> found;
  for (const Op& op : plan.ops()) {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel == nullptr) continue;
    std::string reason = reason_against(plan, op, *kernel);
    if (reason.empty()) continue;
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
