#pragma once

// What the roles of mla_decode's kernel share: sizes, the block's shared memory, its stages.

#include <cstdint>

#include "kernels/attention/mla_decode/mla_decode.h"
#include "kernels/attention/mla_decode/split.h"
#include "kernels/attention/mla_decode/workspace.h"
#include "kernels/cuda/ring.cuh"
#include "kernels/cuda/sm90.cuh"

namespace orrery::mla {

constexpr int kRows = 64;  // query heads of a block
constexpr int kTokens = kMlaTileTokens;
constexpr int kPanels = kMlaKey / 64;  // of 64 elements: what the 128-byte swizzle spans
constexpr int kValuePanels = kMlaLatent / 64;
constexpr int kPanelBytes = kTokens * 128;
constexpr int kTileBytes = kPanels * kPanelBytes;
constexpr int kStages = 2;       // of a tile's second side
constexpr int kFirstStages = 3;  // of its first side
constexpr int kHeldPanels = 5;   // of the queries in registers; the others in shared memory
constexpr int kWarpGroup = 128;
constexpr int kMaxGroups = 2;  // of heads

using namespace sm90;

struct Parameters {
  const std::int32_t* block_table = nullptr;
  std::int64_t blocks_per_sequence = 0;
  std::int32_t block_size = 0;
  const std::int32_t* lengths = nullptr;
  std::int32_t sequences = 0;
  std::int32_t heads = 0;
  std::int32_t groups = 0;  // of 64 heads
  std::int32_t units = 0;
  float scale_log2 = 0;  // of the scores, times log2 e
  bf16* out = nullptr;
  float* lse = nullptr;
  MlaWorkspace workspace;
};

// The part of this unit.
struct Part {
  int sequence = 0;
  int tile = 0;
  int tiles = 0;
  int position = 0;  // of its first tile in the row of all tiles
  int quota = 0;     // tiles per unit; 0: sequences are whole
};

constexpr int kQueryStage = 0;
constexpr int kEndStage = -1;
constexpr int kFirstTile = 1;  // of a piece
constexpr int kLastTile = 2;

// What a stage holds.
struct Stage {
  int tokens = 0;  // of the tile, or kQueryStage, or kEndStage
  int flags = 0;
  int sequence = 0;
  int slot = 0;  // of the workspace, or -1 where the piece is a whole sequence
};

// The panels that are the values of one warpgroup, loaded and freed together; the second side has
// the rotated part too, whose place the weights take.
__device__ constexpr int panel_begin(int side) { return side * (kValuePanels / 2); }
__device__ constexpr int panel_end(int side) { return side == 0 ? kValuePanels / 2 : kPanels; }
__device__ constexpr int panels_of(int side) { return panel_end(side) - panel_begin(side); }

struct Shared {
  alignas(1024) std::uint8_t first[kFirstStages][panels_of(0) * kPanelBytes];
  alignas(1024) std::uint8_t second[kStages][panels_of(1) * kPanelBytes];
  alignas(1024) std::uint8_t query[(kPanels - kHeldPanels) * kRows * 128];
  Stage stage[2][kStages];        // by phase: written while the one before may still be read
  float rescale[kStages][kRows];  // of the output so far, before this tile is added
  float inverse[kStages][kRows];  // of the sum of exponentials, with the last tile of a piece
  std::uint64_t full_first[kFirstStages];
  std::uint64_t empty_first[kFirstStages];
  std::uint64_t full[kStages];
  std::uint64_t empty[kStages];
  std::uint64_t ready[kStages];  // weights lie in the tile's last panel
  Part part;
};

__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline std::uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

}  // namespace orrery::mla
