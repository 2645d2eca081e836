#include "kernels/attention/mla_decode/mla_decode.h"

#include <cstdint>

#include "kernels/compare/c_api.h"

namespace orrery::compare {

// Bytes of scratch memory into *bytes (host memory).
extern "C" int orrery_mla_decode_workspace_bytes(void* stream, std::int64_t sequences,
                                                 std::int64_t heads, std::int64_t* bytes) {
  return guarded(stream, [&](const cuda::Stream&) {
    *bytes = static_cast<std::int64_t>(
        mla_decode_workspace_bytes({.sequences = static_cast<std::int32_t>(sequences),
                                    .heads = static_cast<std::int32_t>(heads)}));
  });
}

extern "C" int orrery_mla_decode(void* stream, const void* q, const void* cache,
                                 const std::int32_t* block_table, const std::int32_t* lengths,
                                 std::int64_t sequences, std::int64_t heads,
                                 std::int64_t blocks_per_sequence, std::int64_t num_blocks,
                                 float scale, void* out, float* lse, void* workspace) {
  return guarded(stream, [&](const cuda::Stream& on) {
    const PagedKv<const bf16> paged{.keys = static_cast<const bf16*>(cache),
                                    .block_table = block_table,
                                    .blocks_per_sequence = blocks_per_sequence,
                                    .block_size = kDefaultBlockSize,
                                    .num_blocks = static_cast<std::int32_t>(num_blocks)};
    mla_decode(on, joined_queries(static_cast<const bf16*>(q)), paged, lengths,
               {.sequences = static_cast<std::int32_t>(sequences),
                .heads = static_cast<std::int32_t>(heads)},
               scale, static_cast<bf16*>(out), lse, workspace);
  });
}

}  // namespace orrery::compare
