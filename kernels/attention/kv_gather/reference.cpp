#include "kernels/attention/kv_gather/reference.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/binding/kernel_call.h"

namespace orrery::reference {

KvGatherResult kv_gather(const KvGatherOperands& operands) {
  const std::int64_t width = operands.latent + operands.rope;
  const std::int64_t sequences = std::ssize(operands.lengths);
  const std::int64_t columns = sequences == 0 ? 0 : std::ssize(operands.block_table) / sequences;
  KvGatherResult result;
  for (std::int64_t s = 0; s < sequences; ++s) {
    for (std::int64_t t = 0; t < operands.lengths[static_cast<std::size_t>(s)]; ++t) {
      const std::int64_t entry = s * columns + t / operands.block_size;
      const std::int64_t slot =
          operands.block_table[static_cast<std::size_t>(entry)] * operands.block_size +
          t % operands.block_size;
      if (t / operands.block_size >= columns || slot < 0 ||
          (slot + 1) * width > std::ssize(operands.cache)) {
        throw std::invalid_argument("kv_gather: slot " + std::to_string(slot) +
                                    " is outside of the cache");
      }
      const auto row = operands.cache.begin() + slot * width;
      result.latents.insert(result.latents.end(), row, row + operands.latent);
      result.rotated.insert(result.rotated.end(), row + operands.latent, row + width);
    }
  }
  return result;
}

KvGatherResult cached_latents(const KvLayer& cache, std::int64_t block_size,
                              const SequenceRows& sequence, std::int64_t latent,
                              std::int64_t rope) {
  const auto length = static_cast<std::int32_t>(sequence.length);
  const KvGatherResult all = kv_gather({.cache = cache.keys,
                                        .block_table = sequence.blocks,
                                        .lengths = std::span(&length, 1),
                                        .latent = latent,
                                        .rope = rope,
                                        .block_size = block_size});
  KvGatherResult stored;
  for (std::int64_t i = 0; i < length; ++i) {
    const std::int64_t block = sequence.blocks[static_cast<std::size_t>(i / block_size)];
    const std::int64_t slot = block * block_size + i % block_size;
    if (cache.has[static_cast<std::size_t>(slot)] == 0) continue;  // on another rank
    const auto add = [&](Values& to, const Values& from, std::int64_t width) {
      to.insert(to.end(), from.begin() + i * width, from.begin() + (i + 1) * width);
    };
    add(stored.latents, all.latents, latent);
    add(stored.rotated, all.rotated, rope);
  }
  return stored;
}

Results kv_gather_reference(const KernelCall& call) {
  const std::int64_t latent = size_of(call, "kv_lora_rank");
  const std::int64_t rope = size_of(call, "rope_dim");
  Results results{zeros_written(call, "latents"), zeros_written(call, "rotated")};
  std::int64_t row = 0;
  for (const SequenceRows& sequence : call.part.prefill) {
    const KvGatherResult rows = cached_latents(*call.kv, call.block_size, sequence, latent, rope);
    std::ranges::copy(rows.latents, results[0].begin() + row * latent);
    std::ranges::copy(rows.rotated, results[1].begin() + row * rope);
    row += sequence.length;
  }
  return results;
}

}  // namespace orrery::reference
