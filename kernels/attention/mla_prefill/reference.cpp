#include "kernels/attention/attention_prefill/reference.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/binding/kernel_call.h"

namespace orrery::reference {

// Keys and values of the sequences follow each other; the rotated part of a key is that of all
// heads.
Results mla_prefill_reference(const KernelCall& call) {
  const std::int64_t heads = size_of(call, "heads");
  const AttentionShape shape{
      .heads = heads,
      .kv_heads = heads,
      .qk_dim = size_of(call, "qk_head_dim"),
      .v_dim = size_of(call, "v_head_dim"),
      .scale = 1 / std::sqrt(static_cast<double>(size_of(call, "qk_head_dim")))};
  const std::int64_t rope = call.numbers.head_dim;
  const std::int64_t plain = shape.qk_dim - rope;
  const Values rotated = columns_of_view(call, "rotated");
  Values keys(read(call, "keys").size() / static_cast<std::size_t>(plain) *
              static_cast<std::size_t>(shape.qk_dim));
  put_columns(keys, shape.qk_dim, 0, read(call, "keys"), plain);
  for (std::int64_t head = 0; head < heads; ++head) {
    put_columns(keys, heads * shape.qk_dim, head * shape.qk_dim + plain, rotated, rope);
  }
  Values out = zeros_written(call, "out");
  for (const SequenceRows& sequence : call.part.prefill) {
    for (std::int64_t i = 0; i < sequence.query; ++i) {
      const std::int64_t row = sequence.row + i;
      for (std::int64_t head = 0; head < heads; ++head) {
        const AttentionRow found =
            attention_row(read(call, "q"), keys, read(call, "values"), shape,
                          {.row = row,
                           .position = call.part.positions[static_cast<std::size_t>(row)],
                           .key_row = sequence.key_row},
                          head);
        std::ranges::copy(found.out, out.begin() + (row * heads + head) * shape.v_dim);
      }
    }
  }
  return {std::move(out)};
}

}  // namespace orrery::reference
