#include "kernels/execute/reference/mla_call.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

#include "kernels/attention/attention_prefill/reference.h"
#include "kernels/attention/kv_append/reference.h"
#include "kernels/attention/kv_gather/reference.h"
#include "kernels/dense/batched_gemm/reference.h"
#include "kernels/execute/reference/call_operands.h"
#include "kernels/rows/rms_norm/reference.h"

namespace orrery::reference {
namespace {

std::int64_t columns_read(const KernelCall& call, std::size_t index) {
  return tensor_of(call, call.op.reads.at(index)).axes.back().size;
}

// Columns [first, first + count) of all rows of x [.., stride].
Values columns_of(std::span<const double> x, std::int64_t stride, std::int64_t first,
                  std::int64_t count) {
  Values result;
  for (auto row = x.begin(); row != x.end(); row += stride) {
    result.insert(result.end(), row + first, row + first + count);
  }
  return result;
}

void put_columns(Values& x, std::int64_t stride, std::int64_t first, const Values& columns,
                 std::int64_t count) {
  for (std::int64_t row = 0; row * count < std::ssize(columns); ++row) {
    std::copy_n(columns.begin() + row * count, count, x.begin() + row * stride + first);
  }
}

Values written_zeros(const KernelCall& call, std::size_t index) {
  return Values(static_cast<std::size_t>(num_elements(tensor_of(call, call.op.writes.at(index)))));
}

// Of what the op reads at `index`, the columns that it reads.
Values view_of(const KernelCall& call, std::size_t index) {
  const TensorView& view = call.op.reads.at(index);
  if (view.is_whole()) return read(call, index);
  return columns_of(read(call, index), columns_read(call, index), view.first_column,
                    view.num_columns);
}

Results norm_part(const KernelCall& call) {
  return {rms_norm(view_of(call, 0), read(call, 1), call.numbers.norm_epsilon)};
}

// The last elements of each query head and the columns of keys turn.
Results rope_apart(const KernelCall& call) {
  const std::int64_t rotary = size_of(call, "head_dim");
  const std::int64_t heads = size_of(call, "heads") - 1;
  const auto rotated = [&](std::size_t index, std::int64_t num_heads, std::int64_t first) {
    const std::int64_t stride = columns_read(call, index) / num_heads;
    Values x = read(call, index);
    const Values last = columns_of(x, stride, first, rotary);
    const RopeLayout layout{.heads = static_cast<std::size_t>(num_heads),
                            .head_dim = static_cast<std::size_t>(rotary),
                            .rotary_dim = static_cast<std::size_t>(rotary)};
    put_columns(x, stride, first, rope(last, call.part.positions, call.rope, layout), rotary);
    return x;
  };
  return {rotated(0, heads, columns_read(call, 0) / heads - rotary),
          rotated(1, 1, call.op.reads[1].first_column)};
}

Results append_latents(const KernelCall& call) {
  const std::int64_t latent = columns_read(call, 0);
  const std::int64_t width = size_of(call, "width");
  Values rows(static_cast<std::size_t>(size_of(call, "tokens") * width));
  put_columns(rows, width, 0, read(call, 0), latent);
  put_columns(rows, width, latent, view_of(call, 1), width - latent);
  call.kv->keys = kv_append(call.kv->keys, rows, call.part.slots, static_cast<std::size_t>(width));
  return {{}};
}

// All cached tokens of a sequence and its new ones, out of the cache.
KvGatherResult cached_rows(const KernelCall& call, const SequenceRows& sequence,
                           std::int64_t latent, std::int64_t rope) {
  const auto length = static_cast<std::int32_t>(sequence.context + sequence.query);
  return kv_gather({.cache = call.kv->keys,
                    .block_table = sequence.blocks,
                    .lengths = std::span(&length, 1),
                    .latent = latent,
                    .rope = rope,
                    .block_size = call.block_size});
}

Results gather_latents(const KernelCall& call) {
  const std::int64_t latent = size_of(call, "kv_lora_rank");
  const std::int64_t rope = size_of(call, "rope_dim");
  Results results{written_zeros(call, 0), written_zeros(call, 1)};
  std::int64_t row = 0;
  for (const SequenceRows& sequence : call.part.prefill) {
    const KvGatherResult rows = cached_rows(call, sequence, latent, rope);
    std::ranges::copy(rows.latents, results[0].begin() + row * latent);
    std::ranges::copy(rows.rotated, results[1].begin() + row * rope);
    row += sequence.context + sequence.query;
  }
  return results;
}

// Keys and values of the sequences follow each other; the rotated part of a key is that of all
// heads.
Results attend_expanded(const KernelCall& call) {
  const std::int64_t heads = size_of(call, "heads");
  const AttentionShape shape{
      .heads = heads,
      .kv_heads = heads,
      .qk_dim = size_of(call, "qk_head_dim"),
      .v_dim = size_of(call, "v_head_dim"),
      .scale = 1 / std::sqrt(static_cast<double>(size_of(call, "qk_head_dim")))};
  const std::int64_t rope = call.numbers.head_dim;
  const std::int64_t plain = shape.qk_dim - rope;
  const Values rotated = view_of(call, 2);
  Values keys(read(call, 1).size() / static_cast<std::size_t>(plain) *
              static_cast<std::size_t>(shape.qk_dim));
  put_columns(keys, shape.qk_dim, 0, read(call, 1), plain);
  for (std::int64_t head = 0; head < heads; ++head) {
    put_columns(keys, heads * shape.qk_dim, head * shape.qk_dim + plain, rotated, rope);
  }
  Values out = written_zeros(call, 0);
  std::int64_t key_row = 0;
  for (const SequenceRows& sequence : call.part.prefill) {
    for (std::int64_t i = 0; i < sequence.query; ++i) {
      const std::int64_t row = sequence.row + i;
      for (std::int64_t head = 0; head < heads; ++head) {
        const AttentionRow found =
            attention_row(read(call, 0), keys, read(call, 3), shape,
                          {.row = row, .position = sequence.context + i, .key_row = key_row}, head);
        std::ranges::copy(found.out, out.begin() + (row * heads + head) * shape.v_dim);
      }
    }
    key_row += sequence.context + sequence.query;
  }
  return {std::move(out)};
}

// Each decode over the latents of its sequence, which are keys and values of all heads.
Results attend_latents(const KernelCall& call) {
  const std::int64_t heads = size_of(call, "heads");
  const std::int64_t latent = size_of(call, "kv_lora_rank");
  const std::int64_t rope = size_of(call, "rope_dim");
  const std::int64_t head_dim = columns_read(call, 1) / heads;
  const AttentionShape shape{.heads = heads,
                             .kv_heads = 1,
                             .qk_dim = latent + rope,
                             .v_dim = latent,
                             .scale = 1 / std::sqrt(static_cast<double>(head_dim))};
  Values out = written_zeros(call, 0);
  for (const SequenceRows& sequence : call.part.decodes) {
    const std::int64_t row = sequence.row - call.part.rows.prefill;
    const auto rows_of = [&](std::size_t index, std::int64_t at) {
      const std::int64_t width = columns_read(call, index);
      return std::span(read(call, index)).subspan(at * width, width);
    };
    Values q(static_cast<std::size_t>(heads * shape.qk_dim));
    const auto of_latents = rows_of(0, row);
    put_columns(q, shape.qk_dim, 0, Values(of_latents.begin(), of_latents.end()), latent);
    put_columns(q, shape.qk_dim, latent,
                columns_of(rows_of(1, sequence.row), head_dim, head_dim - rope, rope), rope);
    const KvGatherResult cached = cached_rows(call, sequence, latent, rope);
    Values keys(cached.latents.size() + cached.rotated.size());
    put_columns(keys, shape.qk_dim, 0, cached.latents, latent);
    put_columns(keys, shape.qk_dim, latent, cached.rotated, rope);
    for (std::int64_t head = 0; head < heads; ++head) {
      const AttentionRow found =
          attention_row(q, keys, cached.latents, shape,
                        {.row = 0, .position = sequence.context, .key_row = 0}, head);
      std::ranges::copy(found.out, out.begin() + (row * heads + head) * latent);
    }
  }
  return {std::move(out)};
}

// The first k elements of each head of the last m rows, by weights as they expand latents or, as
// wide as the result, from the other side.
Results multiply_heads(const KernelCall& call) {
  const std::int64_t batch = size_of(call, "batch");
  const std::int64_t m = size_of(call, "m");
  const std::int64_t k = size_of(call, "k");
  const std::int64_t stride = columns_read(call, 0);
  const bool skips_prefill = tensor_of(call, call.op.reads[0]).axes.front().size > m;
  const std::int64_t first = skips_prefill ? call.part.rows.prefill : 0;
  const auto rows = std::span(read(call, 0)).subspan(first * stride, m * stride);
  const BatchedGemmSize size{.batch = batch,
                             .m = m,
                             .n = size_of(call, "n"),
                             .k = k,
                             .w_is_transposed = columns_read(call, 1) == size_of(call, "n")};
  return {batched_gemm(columns_of(rows, stride / batch, 0, k), read(call, 1), size)};
}

}  // namespace

bool is_mla_kernel(std::string_view kernel) {
  return kernel == "kv_gather" || kernel == "mla_prefill" || kernel == "mla_decode";
}

MlaReference find_mla_reference(const KernelCall& call) {
  const std::string_view kernel = call.kernel.kernel;
  if (kernel == "kv_gather") return gather_latents;
  if (kernel == "mla_prefill") return attend_expanded;
  if (kernel == "mla_decode") return attend_latents;
  if (kernel == "rope" && call.op.reads.size() == 2) return rope_apart;
  if (kernel == "kv_append" && call.op.reads.size() == 2) return append_latents;
  if (kernel == "batched_gemm" && tensor_of(call, call.op.reads[0]).axes.size() == 2) {
    return multiply_heads;
  }
  const bool norms_part = kernel == "rms_norm" && !call.op.reads[0].is_whole();
  return norms_part ? norm_part : nullptr;
}

}  // namespace orrery::reference
