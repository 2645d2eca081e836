#include "kernels/attention/kv_append/reference.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/binding/kernel_call.h"

namespace orrery::reference {

std::vector<double> kv_append(std::span<const double> cache, std::span<const double> rows,
                              std::span<const std::int64_t> slots, std::size_t width) {
  if (rows.size() != slots.size() * width) {
    throw std::invalid_argument("kv_append: rows are not slots x width");
  }
  std::vector<double> result(cache.begin(), cache.end());
  for (std::size_t token = 0; token < slots.size(); ++token) {
    if (slots[token] < 0) continue;
    const std::size_t at = static_cast<std::size_t>(slots[token]) * width;
    if (at + width > result.size()) {
      throw std::invalid_argument("kv_append: slot " + std::to_string(slots[token]) +
                                  " is outside of the cache");
    }
    std::ranges::copy(rows.subspan(token * width, width),
                      result.begin() + static_cast<std::ptrdiff_t>(at));
  }
  return result;
}

namespace {

// Latents, and rotated keys behind them.
Results append_latents(const KernelCall& call) {
  const std::int64_t latent = columns_read(call, "x");
  const std::int64_t width = size_of(call, "width");
  Values rows(call.part.slots.size() * static_cast<std::size_t>(width));
  put_columns(rows, width, 0, read(call, "x"), latent);
  put_columns(rows, width, latent, columns_of_view(call, "rotated"), width - latent);
  call.kv->keys = kv_append(call.kv->keys, rows, call.part.slots, static_cast<std::size_t>(width));
  return {{}};
}

}  // namespace

// Keys and values are the last columns of a row.
Results kv_append_reference(const KernelCall& call) {
  for (const std::int64_t slot : call.part.slots) {
    if (slot >= 0) call.kv->has[static_cast<std::size_t>(slot)] = 1;
  }
  if (has_operand(call, "rotated")) return append_latents(call);
  const Values& x = read(call, "x");
  const std::int64_t tokens = std::ssize(call.part.slots);
  const std::int64_t width = size_of(call, "width") / 2;
  const std::int64_t stride = static_cast<std::int64_t>(x.size()) / tokens;
  for (std::int64_t row = 0; row < tokens; ++row) {
    const std::int64_t slot = call.part.slots[static_cast<std::size_t>(row)];
    if (slot < 0) continue;
    const auto keys = x.begin() + (row + 1) * stride - 2 * width;
    std::copy_n(keys, width, call.kv->keys.begin() + slot * width);
    std::copy_n(keys + width, width, call.kv->values.begin() + slot * width);
  }
  return {{}};
}

}  // namespace orrery::reference
