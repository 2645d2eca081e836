#include "sim/parallel/context_rows.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/kernel_spec.h"

namespace orrery {
namespace {

bool has_dim(const KernelOp& kernel, std::string_view name) {
  return std::ranges::find(kernel.dims, name, &Dim::name) != kernel.dims.end();
}

void check_takes_part(const Op& op) {
  const auto& kernel = std::get<KernelOp>(op.body);
  const auto refuse = [&](const std::string& why) {
    throw std::invalid_argument("op \"" + op.name + "\" (" + kernel.kernel + ") " + why +
                                ", which cp cannot split; expected mla_form auto, or cp 1");
  };
  if (kernel_spec(kernel.kernel).prior.composite != Composite::kNone) {
    refuse("has all of attention in one op");
  }
  const bool is_of_prompt =
      std::ranges::find(kernel.dims, axis::kTokens, &Dim::axis) != kernel.dims.end();
  if (!is_prefill_attention(op) && is_of_prompt) refuse("attends to each token of a prompt alone");
  if (is_prefill_attention(op) && dim(kernel.dims, "query") == 1 &&
      kernel_spec(kernel.kernel).slots[1].use != Use::kCache) {
    refuse("expands the context of decodes");
  }
}

}  // namespace

bool is_attention(const Op& op) {
  const auto* kernel = std::get_if<KernelOp>(&op.body);
  return kernel != nullptr && has_dim(*kernel, "batch") && has_dim(*kernel, "context") &&
         kernel_spec(kernel->kernel).prior.arithmetic == Arithmetic::kAttention;
}

bool is_prefill_attention(const Op& op) {
  return is_attention(op) && has_dim(std::get<KernelOp>(op.body), "query");
}

SplitPart zigzag_part(std::int64_t query, const Place& place) {
  return {.size = query,
          .block = ceil_div(query, 2 * place.num_places()),
          .place = place,
          .is_zigzag = true};
}

ContextRows::ContextRows(const Plan& plan, const Mesh& mesh)
    : cp_(mesh.cp),
      deals_decodes_(mesh.cp_decodes == CpDecodes::kDealt),
      place_(Place().add({.ways = mesh.cp, .stride = 1})) {
  for (const Op& op : plan.ops()) {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel == nullptr) continue;
    const auto rows = std::ranges::find(kernel->dims, axis::kTokens, &Dim::axis);
    if (has_dim(*kernel, "queries") && has_dim(*kernel, "keys")) {
      throw std::invalid_argument("op \"" + op.name + "\" (" + kernel->kernel +
                                  ") attends for all sequences in one call, which cp cannot split; "
                                  "expected attention form split, or cp 1");
    }
    if (tokens_ == 0 && rows != kernel->dims.end()) tokens_ = rows->size;
    if (!is_attention(op)) continue;
    check_takes_part(op);
    if (!is_prefill_attention(op)) continue;
    const auto& out = plan.tensors()[static_cast<std::size_t>(op.writes.front())];
    prefill_ = out.axes.front().size;
    batch_ = dim(kernel->dims, "batch");
    query_ = dim(kernel->dims, "query");
  }
  // Prompts of unequal lengths are dealt out as if they were one.
  if (batch_ * query_ != prefill_) {
    batch_ = 1;
    query_ = prefill_;
  }
}

std::int64_t ContextRows::query(std::int64_t query) const {
  return local_size(zigzag_part(query, place_));
}

std::int64_t ContextRows::context(std::int64_t query, std::int64_t context) const {
  return context + (query - this->query(query)) / 2;
}

std::int64_t ContextRows::prefill_local() const {
  return prefill_ > 0 ? batch_ * query(query_) : 0;
}

std::int64_t ContextRows::decodes_local() const {
  return deals_decodes_ ? own_decodes() : tokens_ - prefill_;
}

SplitPart ContextRows::decodes_part() const {
  const std::int64_t decodes = tokens_ - prefill_;
  if (!deals_decodes_) return whole_part(decodes);
  return {.size = decodes, .block = own_decodes(), .place = place_};
}

std::int64_t ContextRows::sampled(std::int64_t seqs) const {
  return deals_decodes() ? seqs - (tokens_ - prefill_) + own_decodes() : seqs;
}

Axis ContextRows::sampled(Rewrite& rewrite, const Axis& seqs) const {
  if (!deals_decodes()) return seqs;
  Split split;
  if (const std::int64_t prompts = seqs.size - (tokens_ - prefill_); prompts > 0) {
    split.parts.push_back(whole_part(prompts));
  }
  split.parts.push_back(decodes_part());
  return rewrite.with_split({seqs.name, sampled(seqs.size)}, split);
}

std::int64_t ContextRows::local(std::int64_t tokens) const {
  if (tokens == tokens_) return prefill_local() + decodes_local();
  return prefill_local() + ceil_div(tokens - prefill_, cp_);
}

Axis ContextRows::local(Rewrite& rewrite, const Axis& tokens) const {
  const bool is_known =
      tokens.split == kNoSplit && (tokens.size == tokens_ || tokens.size == prefill_);
  if (!is_known) return {tokens.name, local(tokens.size), kUnknownSplit};
  Split split;
  if (prefill_ > 0) {
    split.parts.assign(static_cast<std::size_t>(batch_), zigzag_part(query_, place_));
  }
  if (tokens.size > prefill_) split.parts.push_back(decodes_part());
  return rewrite.with_split(tokens, split);
}

std::int64_t ContextRows::stored(std::int64_t tokens) const {
  return prefill_local() + ceil_div(tokens - prefill_, cp_);
}

}  // namespace orrery
