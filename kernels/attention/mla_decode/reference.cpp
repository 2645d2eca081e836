#include "kernels/attention/mla_decode/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "kernels/attention/attention_prefill/reference.h"
#include "kernels/attention/kv_gather/reference.h"
#include "kernels/binding/kernel_call.h"

namespace orrery::reference {
namespace {

void check_sizes(const MlaDecodeOperands& x) {
  const auto sequences = static_cast<std::int64_t>(x.lengths.size());
  const std::int64_t key = x.latent + x.rope;
  const auto fits = [](std::size_t size, std::int64_t unit) {
    return unit > 0 && size % static_cast<std::size_t>(unit) == 0;
  };
  if (x.q.size() != static_cast<std::size_t>(sequences * x.heads * key)) {
    throw std::invalid_argument("q is not [sequences, heads, latent + rope]");
  }
  if (!fits(x.cache.size(), x.block_size * key)) {
    throw std::invalid_argument("cache is not [num_blocks, block_size, latent + rope]");
  }
  if (sequences > 0 && !fits(x.block_table.size(), sequences)) {
    throw std::invalid_argument("block_table is not [sequences, blocks per sequence]");
  }
}

// Rows of the cache that hold one sequence's tokens.
std::vector<std::span<const double>> rows_of(const MlaDecodeOperands& x, std::size_t sequence) {
  const std::size_t blocks = x.block_table.size() / x.lengths.size();
  const auto key = static_cast<std::size_t>(x.latent + x.rope);
  std::vector<std::span<const double>> rows;
  for (std::int64_t token = 0; token < x.lengths[sequence]; ++token) {
    const std::int64_t block =
        x.block_table[sequence * blocks + static_cast<std::size_t>(token / x.block_size)];
    const auto row = static_cast<std::size_t>(block * x.block_size + token % x.block_size);
    rows.push_back(x.cache.subspan(row * key, key));
  }
  return rows;
}

// Attention of one query over `rows`; writes out [latent] and returns the log of the sum.
double attend(std::span<const double> q, const std::vector<std::span<const double>>& rows,
              double scale, std::span<double> out) {
  std::ranges::fill(out, 0.0);
  if (rows.empty()) return -std::numeric_limits<double>::infinity();
  std::vector<double> scores;
  scores.reserve(rows.size());
  for (const auto row : rows) {
    scores.push_back(scale * std::inner_product(q.begin(), q.end(), row.begin(), 0.0));
  }
  const double largest = std::ranges::max(scores);
  double sum = 0;
  for (std::size_t token = 0; token < rows.size(); ++token) {
    const double weight = std::exp(scores[token] - largest);
    sum += weight;
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += weight * rows[token][i];
  }
  for (double& value : out) value /= sum;
  return largest + std::log(sum);
}

}  // namespace

MlaDecodeResult mla_decode(const MlaDecodeOperands& x) {
  check_sizes(x);
  const auto heads = static_cast<std::size_t>(x.heads);
  const auto latent = static_cast<std::size_t>(x.latent);
  const auto key = static_cast<std::size_t>(x.latent + x.rope);
  MlaDecodeResult result{.out = std::vector<double>(x.lengths.size() * heads * latent),
                         .lse = std::vector<double>(x.lengths.size() * heads)};
  for (std::size_t sequence = 0; sequence < x.lengths.size(); ++sequence) {
    const auto rows = rows_of(x, sequence);
    for (std::size_t head = 0; head < heads; ++head) {
      const std::size_t row = sequence * heads + head;
      result.lse[row] = attend(x.q.subspan(row * key, key), rows, x.scale,
                               std::span(result.out).subspan(row * latent, latent));
    }
  }
  return result;
}

// Each decode over the latents of its sequence, which are keys and values of all heads.
Results mla_decode_reference(const KernelCall& call) {
  const std::int64_t heads = size_of(call, "heads");
  const std::int64_t latent = size_of(call, "kv_lora_rank");
  const std::int64_t rope = size_of(call, "rope_dim");
  const std::int64_t head_dim = columns_read(call, "q") / heads;
  const AttentionShape shape{.heads = heads,
                             .kv_heads = 1,
                             .qk_dim = latent + rope,
                             .v_dim = latent,
                             .scale = 1 / std::sqrt(static_cast<double>(head_dim))};
  Values out = zeros_written(call, "out");
  Values lse;
  if (call.op.writes.size() > 1) lse = padded(Values{}, out.size() / latent, -INFINITY);
  for (const SequenceRows& sequence : call.part.decodes) {
    const std::int64_t row = sequence.row - call.part.rows.prefill;
    const auto rows_of = [&](std::string_view slot, std::int64_t at) {
      const std::int64_t width = columns_read(call, slot);
      return std::span(read(call, slot)).subspan(at * width, width);
    };
    Values q(static_cast<std::size_t>(heads * shape.qk_dim));
    const auto of_latents = rows_of("latent", row);
    put_columns(q, shape.qk_dim, 0, Values(of_latents.begin(), of_latents.end()), latent);
    put_columns(q, shape.qk_dim, latent,
                columns_of(rows_of("q", sequence.row), head_dim, head_dim - rope, rope), rope);
    const KvGatherResult cached = cached_latents(*call.kv, call.block_size, sequence, latent, rope);
    Values keys(cached.latents.size() + cached.rotated.size());
    put_columns(keys, shape.qk_dim, 0, cached.latents, latent);
    put_columns(keys, shape.qk_dim, latent, cached.rotated, rope);
    const std::int64_t seen = std::ssize(cached.latents) / latent;
    for (std::int64_t head = 0; seen > 0 && head < heads; ++head) {
      const AttentionRow found = attention_row(
          q, keys, cached.latents, shape, {.row = 0, .position = seen - 1, .key_row = 0}, head);
      const std::int64_t at = row * heads + head;
      std::ranges::copy(found.out, out.begin() + at * latent);
      if (!lse.empty()) lse[static_cast<std::size_t>(at)] = found.lse;
    }
  }
  Results results{std::move(out)};
  if (!lse.empty()) results.push_back(std::move(lse));
  return results;
}

}  // namespace orrery::reference
