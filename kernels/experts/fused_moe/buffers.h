#pragma once

// The memory that a layer of fused_moe works in on each GPU, without CUDA: what its plan allocates,
// and what says beforehand how much that is.

#include <cstddef>
#include <cstdint>

#include "kernels/experts/fused_moe/shape.h"
#include "sim/plan/plan.h"
#include "sim/units/units.h"

namespace orrery {

inline constexpr std::int64_t kFusedTileRows = 160;  // of x in a tile, at most
// Rows of logits that are made together, and slots of which a block has all tables in shared
// memory.
inline constexpr std::int64_t kFusedLogitRows = 64;
inline constexpr std::int64_t kMostLogitParts = 32;
inline constexpr std::int64_t kFusedSharedSlots = 292;

namespace fused_moe {

struct Control {
  std::uint32_t launches;              // complete ones
  std::uint32_t blocks;                // that have read it
  std::uint32_t stuck;                 // a Wait, once one has ended in vain
  std::uint32_t place;                 // which counter
  unsigned long long gemm_ticket;      // next task, launch << 32
  unsigned long long combine_ticket;   // next rows to be added up, launch << 32
  unsigned long long quantize_ticket;  // next rows between the layers, launch << 32
};

}  // namespace fused_moe

// Elements of each buffer of a rank; parts_sm90.cuh says what lies in them. Room for any routing:
// all tokens of all ranks may come to one rank.
struct FusedMoeBuffers {
  std::int64_t most_tiles = 0;  // of rows, of all experts
  std::size_t element = 2;      // bytes, of what experts multiply
  std::size_t rows = 0;         // elements, [most_rows, hidden]
  std::size_t results = 0;     // bf16, [num_choices, hidden]; none where rows of one rank are these
  std::size_t h = 0;           // bf16, [most_rows, ffn]
  std::size_t h_fp8 = 0;       // 1 byte each, [most_rows, ffn], of fp8 alone
  std::size_t row_scales = 0;  // 4 bytes each, [3, most_rows], of fp8 alone
  std::size_t row_token = 0;   // 4 bytes each, [num_choices]; the next two likewise
  std::size_t token_rows = 0;  //
  std::size_t token_weights = 0;  //
  std::size_t row_tile = 0;       // 8 bytes each, [num_choices]
  std::size_t counts = 0;         // 8 bytes each, [num_sms, slots + 1]
  std::size_t starts = 0;         // 8 bytes each, [2, ranks, slots + 1]
  std::size_t logits = 0;         // 4 bytes each, parts of few tokens' logits, [rows, experts]
  std::size_t row_starts = 0;     // 4 bytes each, [num_sms, slots + 1], of many slots alone
  std::size_t counters = 0;       // 4 bytes each, [4, most_tiles] and [num_sms]
  std::size_t controls = 0;
};
// Where logits of `tokens` are made in parts, each of some columns of x, since there are too few
// tokens for blocks to make those of their own: as many parts as blocks of 64 tokens leave SMs for.
struct LogitParts {
  int parts = 1;  // 1: blocks make those of their own tokens
  int steps = 0;  // of 64 columns each, of a part
};
LogitParts logit_parts(const FusedMoeShape& shape, std::int64_t tokens, int num_sms);

// On a GPU of num_sms SMs, of a shape that require_fused_moe_shape takes. None without tokens.
FusedMoeBuffers fused_moe_buffers(const FusedMoeShape& shape, int num_sms);

// Where in one piece of memory lies what other ranks write, for processes that map each other's
// pieces: bytes from its beginning, where `rows` lie. Alike for all ranks of a layer.
struct FusedMoeArea {
  std::size_t row_scales = 0;
  std::size_t results = 0;
  std::size_t starts = 0;
  std::size_t counters = 0;
  std::size_t bytes = 0;  // of all
};
FusedMoeArea fused_moe_area(const FusedMoeBuffers& buffers);

// Bytes asked for; the driver rounds each buffer up.
struct FusedMoeMemory {
  Bytes rows;      // of x, from all ranks
  Bytes results;   // from all ranks
  Bytes between;   // the layers of experts
  Bytes tables;    // of own tokens: where their rows and results are, weights
  Bytes counters;  // counts, starts, logits in parts, counters of tiles
  [[nodiscard]] Bytes total() const { return rows + results + between + tables + counters; }
};
FusedMoeMemory memory_of(const FusedMoeBuffers& buffers);

// The shape of an op, bf16 or fp8, of softmax scores; ranks are as many as have all its experts,
// rounded down. Throws std::invalid_argument as dim().
FusedMoeShape fused_moe_shape(DType dtype, const Dims& dims);

}  // namespace orrery
