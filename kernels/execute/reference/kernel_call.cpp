#include "kernels/execute/reference/kernel_call.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "kernels/attention/attention_prefill/reference.h"
#include "kernels/dense/gemm/reference.h"
#include "kernels/dense/quantize/reference.h"
#include "kernels/execute/reference/call_operands.h"
#include "kernels/execute/reference/mla_call.h"
#include "kernels/execute/reference/moe_call.h"
#include "kernels/harness/rounding.h"
#include "kernels/rows/embedding/reference.h"
#include "kernels/rows/residual_add/reference.h"
#include "kernels/rows/rms_norm/reference.h"
#include "kernels/rows/sample/reference.h"
#include "kernels/rows/silu_mul/reference.h"

namespace orrery::reference {
namespace {

// Columns [first, first + count) of the rows [row, row + rows) of x [.., stride].
Values columns_of(std::span<const double> x, std::int64_t stride, std::int64_t first,
                  std::int64_t count, std::int64_t row, std::int64_t rows) {
  Values result;
  result.reserve(static_cast<std::size_t>(rows * count));
  for (std::int64_t i = row; i < row + rows; ++i) {
    const auto begin = x.begin() + (i * stride + first);
    result.insert(result.end(), begin, begin + count);
  }
  return result;
}

// Parts of one input, in order, of `rows` rows in all; the sampled rows of it where it has more.
Values input_rows(const KernelCall& call, std::size_t num_parts, std::int64_t rows,
                  std::int64_t columns) {
  Values x;
  for (std::size_t i = 0; i < num_parts; ++i) {
    const Values& part = read(call, i);
    x.insert(x.end(), part.begin(), part.end());
  }
  const auto found = static_cast<std::int64_t>(x.size()) / columns;
  if (found == rows) return x;
  if (rows != call.part.rows.seqs || found < rows) {
    refuse(call, "reads " + std::to_string(found) + " rows, expected " + std::to_string(rows));
  }
  Values gathered;
  for (const std::int64_t row : call.part.sampled) {
    const Values one = columns_of(x, columns, 0, columns, row, 1);
    gathered.insert(gathered.end(), one.begin(), one.end());
  }
  return gathered;
}

Results run_gemm(const KernelCall& call) {
  const std::int64_t m = size_of(call, "m");
  const std::int64_t n = size_of(call, "n");
  const std::int64_t k = size_of(call, "k");
  const bool has_bias = tensor_of(call, call.op.reads.back()).axes.size() == 1;
  const std::size_t num_parts = call.reads.size() - (has_bias ? 2 : 1);
  Values y = gemm(input_rows(call, num_parts, m, k), read(call, num_parts), m, n, k);
  if (has_bias) {
    const Values& bias = read(call, num_parts + 1);
    for (std::size_t i = 0; i < y.size(); ++i) y[i] += bias[i % bias.size()];
  }
  return {std::move(y)};
}

Results run_quantize(const KernelCall& call) {
  return {input_rows(call, call.reads.size(), size_of(call, "tokens"), size_of(call, "hidden"))};
}

Results run_embedding(const KernelCall& call) {
  std::vector<std::int32_t> ids = call.part.token_ids;
  for (std::int32_t& id : ids) id -= static_cast<std::int32_t>(call.first_vocab_row);
  return {embedding(ids, read(call, 1), static_cast<std::size_t>(size_of(call, "hidden")))};
}

// Rows of query, key and value heads, of which all but the values are normed each by itself, with
// one gain for query heads and one for key heads.
Results norm_heads(const KernelCall& call) {
  const std::int64_t tokens = size_of(call, "tokens");
  const std::int64_t width = size_of(call, "hidden");
  const std::span<const double> gains = read(call, 1);
  const auto head_dim = static_cast<std::int64_t>(gains.size()) / 2;
  Values x = read(call, 0);
  const std::int64_t stride = static_cast<std::int64_t>(x.size()) / tokens;
  const std::int64_t queries = width - (stride - width);  // as many values as keys follow
  for (std::int64_t row = 0; row < tokens; ++row) {
    for (std::int64_t at = 0; at < width; at += head_dim) {
      const auto head = x.begin() + row * stride + at;
      const Values normed =
          rms_norm(Values(head, head + head_dim),
                   gains.subspan(at < queries ? 0 : head_dim, head_dim), call.numbers.norm_epsilon);
      std::ranges::copy(normed, head);
    }
  }
  return {std::move(x)};
}

Results run_rms_norm(const KernelCall& call) {
  if (call.op.writes[0] == call.op.reads[0]) return norm_heads(call);
  const Values& gain = read(call, 1);
  if (static_cast<std::int64_t>(gain.size()) != size_of(call, "hidden")) {
    refuse(call, "has a gain of " + std::to_string(gain.size()) + " for rows of " +
                     std::to_string(size_of(call, "hidden")));
  }
  return {rms_norm(read(call, 0), gain, call.numbers.norm_epsilon)};
}

Results run_add_rms_norm(const KernelCall& call) {
  Values sum = rounded(residual_add(read(call, 1), read(call, 0)),
                       tensor_of(call, call.op.writes[1]), call.rounding);
  Values normed = rms_norm(sum, read(call, 2), call.numbers.norm_epsilon);
  return {std::move(normed), std::move(sum)};
}

Results run_residual_add(const KernelCall& call) {
  return {residual_add(read(call, 0), read(call, 1))};
}

Results run_silu_mul(const KernelCall& call) {
  return {silu_mul(read(call, 0), static_cast<std::size_t>(size_of(call, "ffn")))};
}

// Rows of query, key and value heads, of which all but the values turn.
Results run_rope(const KernelCall& call) {
  const std::int64_t tokens = size_of(call, "tokens");
  const std::int64_t heads = size_of(call, "heads");
  const std::int64_t head_dim = size_of(call, "head_dim");
  if (call.reads.size() != 1) refuse(call, "turns queries and keys of two tensors");
  Values x = read(call, 0);
  const std::int64_t stride = static_cast<std::int64_t>(x.size()) / tokens;
  const std::int64_t width = heads * head_dim;
  const RopeLayout layout{.heads = static_cast<std::size_t>(heads),
                          .head_dim = static_cast<std::size_t>(head_dim),
                          .rotary_dim = static_cast<std::size_t>(head_dim)};
  const Values rotated =
      rope(columns_of(x, stride, 0, width, 0, tokens), call.part.positions, call.rope, layout);
  for (std::int64_t row = 0; row < tokens; ++row) {
    std::copy_n(rotated.begin() + row * width, width, x.begin() + row * stride);
  }
  return {std::move(x)};
}

// Keys and values are the last columns of a row.
Results run_kv_append(const KernelCall& call) {
  const Values& x = read(call, 0);
  const std::int64_t tokens = size_of(call, "tokens");
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

struct CachedRows {
  Values keys;    // [tokens of the sequence, width]
  Values values;  // the same
};

CachedRows cached_rows(const KernelCall& call, const SequenceRows& sequence, std::int64_t width) {
  CachedRows rows;
  for (std::int64_t i = 0; i < sequence.context + sequence.query; ++i) {
    const std::int64_t block = sequence.blocks[static_cast<std::size_t>(i / call.block_size)];
    const std::int64_t slot = block * call.block_size + i % call.block_size;
    const auto append = [&](Values& to, const Values& from) {
      to.insert(to.end(), from.begin() + slot * width, from.begin() + (slot + 1) * width);
    };
    append(rows.keys, call.kv->keys);
    append(rows.values, call.kv->values);
  }
  return rows;
}

// Each sequence's new tokens over its cache, which holds them already. `first_row`: the row of the
// step that is row 0 of the result.
Results attend(const KernelCall& call, const std::vector<SequenceRows>& sequences,
               std::int64_t first_row) {
  const Values& x = read(call, 0);
  const std::int64_t stride = static_cast<std::int64_t>(x.size()) / call.part.rows.tokens;
  const AttentionShape shape{
      .heads = size_of(call, "heads"),
      .kv_heads = size_of(call, "kv_heads"),
      .qk_dim = size_of(call, "head_dim"),
      .v_dim = size_of(call, "head_dim"),
      .window = size_of(call, "window"),
      .scale = 1 / std::sqrt(static_cast<double>(size_of(call, "head_dim")))};
  const std::int64_t width = shape.heads * shape.v_dim;
  Values out(static_cast<std::size_t>(num_elements(tensor_of(call, call.op.writes[0]))));
  for (const SequenceRows& sequence : sequences) {
    const CachedRows cached = cached_rows(call, sequence, shape.kv_heads * shape.v_dim);
    const Values q = columns_of(x, stride, 0, width, sequence.row, sequence.query);
    for (std::int64_t i = 0; i < sequence.query; ++i) {
      for (std::int64_t head = 0; head < shape.heads; ++head) {
        const AttentionRow row =
            attention_row(q, cached.keys, cached.values, shape,
                          {.row = i, .position = sequence.context + i, .key_row = 0}, head);
        const std::int64_t at = (sequence.row - first_row + i) * width + head * shape.v_dim;
        std::ranges::copy(row.out, out.begin() + at);
      }
    }
  }
  return {std::move(out)};
}

Results run_attention_prefill(const KernelCall& call) { return attend(call, call.part.prefill, 0); }

Results run_attention_decode(const KernelCall& call) {
  return attend(call, call.part.decodes, call.part.rows.prefill);
}

Results run_sample(const KernelCall& call) {
  const Values& logits = read(call, 0);
  const auto vocab = static_cast<std::size_t>(size_of(call, "vocab"));
  Values tokens;
  for (std::size_t row = 0; row * vocab < logits.size(); ++row) {
    tokens.push_back(argmax(std::span(logits).subspan(row * vocab, vocab)));
  }
  return {std::move(tokens)};
}

struct KernelReference {
  std::string_view kernel;
  Results (*run)(const KernelCall& call);
};
constexpr auto kReferences = std::to_array<KernelReference>({
    {"add_rms_norm", run_add_rms_norm},
    {"attention_decode", run_attention_decode},
    {"attention_prefill", run_attention_prefill},
    {"embedding", run_embedding},
    {"gemm", run_gemm},
    {"kv_append", run_kv_append},
    {"quantize", run_quantize},
    {"residual_add", run_residual_add},
    {"rms_norm", run_rms_norm},
    {"rope", run_rope},
    {"sample", run_sample},
    {"silu_mul", run_silu_mul},
});

const KernelReference* find_reference(std::string_view kernel) {
  const auto* const found = std::ranges::find(kReferences, kernel, &KernelReference::kernel);
  return found == kReferences.end() ? nullptr : found;
}

}  // namespace

void require_reference(const Op& op) {
  const auto* kernel = std::get_if<KernelOp>(&op.body);
  if (kernel == nullptr || find_reference(kernel->kernel) != nullptr) return;
  if (find_moe_reference(kernel->kernel) != nullptr || is_mla_kernel(kernel->kernel)) return;
  throw std::invalid_argument("op \"" + printed_name(op) + "\": kernel " + kernel->kernel +
                              " has no reference that runs plans");
}

std::vector<std::vector<double>> run_kernel(const KernelCall& call) {
  require_reference(call.op);
  if (const auto run = find_mla_reference(call); run != nullptr) return run(call);
  if (const auto run = find_moe_reference(call.kernel.kernel); run != nullptr) return run(call);
  return find_reference(call.kernel.kernel)->run(call);
}

std::vector<double> rounded(std::vector<double> values, const Tensor& tensor, Rounding rounding) {
  if (rounding == Rounding::kNone) return values;
  if (tensor.dtype == DType::kBf16) return round_bf16(values);
  if (tensor.dtype != DType::kFp8) return values;
  const auto columns = static_cast<std::size_t>(tensor.axes.back().size);
  return quantize(values, quantize_scales(values, columns, columns), columns, columns);
}

}  // namespace orrery::reference
