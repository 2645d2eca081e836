#include "kernels/attention/kv_gather/reference.h"

#include <stdexcept>
#include <string>

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

}  // namespace orrery::reference
