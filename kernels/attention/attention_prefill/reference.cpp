#include "kernels/attention/attention_prefill/reference.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "kernels/binding/kernel_call.h"

namespace orrery::reference {
namespace {

// Row `row` of head `head` of [rows, heads, dim].
std::span<const double> vector_at(std::span<const double> data, std::int64_t row,
                                  std::int64_t heads, std::int64_t head, std::int64_t dim) {
  const std::int64_t begin = (row * heads + head) * dim;
  if (row < 0 || begin + dim > static_cast<std::int64_t>(data.size())) {
    throw std::invalid_argument("attention: row " + std::to_string(row) + " lies outside");
  }
  return data.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(dim));
}

}  // namespace

std::vector<QueryToken> query_tokens(std::span<const PrefillChunk> sequences) {
  std::vector<QueryToken> tokens;
  std::int64_t key_row = 0;
  for (const PrefillChunk& sequence : sequences) {
    for (std::int64_t i = 0; i < sequence.query; ++i) {
      tokens.push_back({.row = static_cast<std::int64_t>(tokens.size()),
                        .position = sequence.context + i,
                        .key_row = key_row});
    }
    key_row += sequence.query + sequence.context;
  }
  return tokens;
}

AttentionRow attention_row(std::span<const double> q, std::span<const double> keys,
                           std::span<const double> values, const AttentionShape& shape,
                           const QueryToken& token, std::int64_t head) {
  const std::int64_t first = std::max<std::int64_t>(0, token.position - shape.window + 1);
  if (first > token.position) throw std::invalid_argument("attention: a token without keys");
  const std::int64_t kv_head = head / (shape.heads / shape.kv_heads);
  const auto query = vector_at(q, token.row, shape.heads, head, shape.qk_dim);
  std::vector<double> scores;
  for (std::int64_t i = first; i <= token.position; ++i) {
    const auto key = vector_at(keys, token.key_row + i, shape.kv_heads, kv_head, shape.qk_dim);
    double dot = 0;
    for (std::size_t d = 0; d < query.size(); ++d) dot += query[d] * key[d];
    scores.push_back(shape.scale * dot);
  }
  const double largest = std::ranges::max(scores);
  AttentionRow row{.out = std::vector<double>(static_cast<std::size_t>(shape.v_dim))};
  double sum = 0;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const double weight = std::exp(scores[i] - largest);
    const auto value = vector_at(values, token.key_row + first + static_cast<std::int64_t>(i),
                                 shape.kv_heads, kv_head, shape.v_dim);
    for (std::size_t d = 0; d < value.size(); ++d) row.out[d] += weight * value[d];
    sum += weight;
  }
  for (double& x : row.out) x /= sum;
  row.lse = largest + std::log(sum);
  return row;
}

namespace {

// Keys, values and which slots have them, one behind the other.
KvLayer unpacked(const Values& all, const KvLayer& like) {
  const auto values = all.begin() + std::ssize(like.keys);
  const auto has = values + std::ssize(like.values);
  return {.keys = {all.begin(), values}, .values = {values, has}, .has = {has, all.end()}};
}

struct CachedRows {
  Values keys;    // [tokens of the sequence, width]
  Values values;  // the same
  std::vector<std::int64_t> positions;
  // Those that a token at `position` sees.
  [[nodiscard]] std::int64_t num_seen(std::int64_t position) const {
    return std::ranges::upper_bound(positions, position) - positions.begin();
  }
};

// Of `kv`: all tokens, or those that are stored there.
CachedRows cached_rows(const KernelCall& call, const KvLayer& kv, const SequenceRows& sequence,
                       std::int64_t width) {
  CachedRows rows;
  for (std::int64_t i = 0; i < sequence.length; ++i) {
    const std::int64_t block = sequence.blocks[static_cast<std::size_t>(i / call.block_size)];
    const std::int64_t slot = block * call.block_size + i % call.block_size;
    if (kv.has[static_cast<std::size_t>(slot)] == 0) continue;
    const auto append = [&](Values& to, const Values& from) {
      to.insert(to.end(), from.begin() + slot * width, from.begin() + (slot + 1) * width);
    };
    append(rows.keys, kv.keys);
    append(rows.values, kv.values);
    rows.positions.push_back(i);
  }
  return rows;
}

}  // namespace

Results attend(const KernelCall& call, const std::vector<SequenceRows>& sequences,
               std::int64_t first_row) {
  const Values& x = read(call, "q");
  const std::int64_t stride = static_cast<std::int64_t>(x.size()) / call.part.rows.tokens;
  const AttentionShape shape{
      .heads = size_of(call, "heads"),
      .kv_heads = size_of(call, "kv_heads"),
      .qk_dim = size_of(call, "head_dim"),
      .v_dim = size_of(call, "head_dim"),
      .window = size_of(call, "window"),
      .scale = 1 / std::sqrt(static_cast<double>(size_of(call, "head_dim")))};
  const std::int64_t width = shape.heads * shape.v_dim;
  const KvLayer kv =
      has_operand(call, "shards") ? unpacked(read(call, "shards"), *call.kv) : *call.kv;
  Values out = zeros_written(call, "out");
  Values lse;
  if (call.op.writes.size() > 1) lse = padded(Values{}, out.size() / shape.v_dim, -INFINITY);
  for (const SequenceRows& sequence : sequences) {
    const CachedRows cached = cached_rows(call, kv, sequence, shape.kv_heads * shape.v_dim);
    const auto rows = std::span(x).subspan(static_cast<std::size_t>(sequence.row * stride),
                                           static_cast<std::size_t>(sequence.query * stride));
    const Values q = columns_of(rows, stride, 0, width);
    for (std::int64_t i = 0; i < sequence.query; ++i) {
      const std::int64_t seen =
          cached.num_seen(call.part.positions[static_cast<std::size_t>(sequence.row + i)]);
      for (std::int64_t head = 0; seen > 0 && head < shape.heads; ++head) {
        const AttentionRow row =
            attention_row(q, cached.keys, cached.values, shape,
                          {.row = i, .position = seen - 1, .key_row = 0}, head);
        const std::int64_t at = (sequence.row - first_row + i) * shape.heads + head;
        std::ranges::copy(row.out, out.begin() + at * shape.v_dim);
        if (!lse.empty()) lse[static_cast<std::size_t>(at)] = row.lse;
      }
    }
  }
  Results results{std::move(out)};
  if (!lse.empty()) results.push_back(std::move(lse));
  return results;
}

Results attention_prefill_reference(const KernelCall& call) {
  return attend(call, call.part.prefill, 0);
}

}  // namespace orrery::reference
