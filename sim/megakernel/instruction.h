#pragma once

// What one instruction of the megakernel says: 32 words, read by every warp of the SM that runs it.
// No CUDA.

#include <cstdint>

namespace orrery::megakernel {

// What instructions take.
inline constexpr int kMostSequences = 8;
inline constexpr int kMostHeadsOfOne = 8;        // query heads of a kv head
inline constexpr int kKeyPageBytes = 32 * 1024;  // of keys and values that pass at once
inline constexpr int kPageRows = 16;             // of weights
inline constexpr int kPageRowBytes = 2048;       // of each of them

// Instructions of an SM end with kEnd. All but kPick are a page of kernels/megakernel/*.cuh.
enum class Opcode : std::int32_t {
  kEnd,
  kQkv,        // RMSNorm, rows of the projection to queries, keys and values
  kAttention,  // rope and cache of the new token, one part of the keys of one kv head
  kOutput,     // merge of the parts, rows of the projection back, residual
  kGateUp,     // RMSNorm, rows of gate and up, SiLU(gate) up
  kDown,       // rows of the projection back, residual
  kLogits,     // final RMSNorm, rows of the vocabulary, the largest of them
  kPick        // the largest of all SMs': the next token
};

inline constexpr std::int32_t kNowhere = -1;

// Boards hold what instructions tell each other: units of 4 bytes, two bf16 or one fp32, that are
// missing until they are written. A reader waits for a unit to be there, so that the arrival of a
// value is its own counter. [sequences, units of a vector] from the offset on.
struct Instruction {
  Opcode opcode = Opcode::kEnd;
  std::int32_t layer = 0;
  std::int32_t first_row = 0;     // of the weight; kAttention: the sequence
  std::int32_t num_rows = 0;      // kGateUp: of gate, and as many of up; kAttention: the kv head
  std::int32_t width = 0;         // columns of the weight
  std::int32_t weight = 0;        // its place in the table of weights
  std::int32_t gain = 0;          // of the norm; kAttention: of the heads' norms, or kNowhere
  std::int32_t whole_rows = 0;    // that the output vector has; kGateUp: where rows of up begin
  std::int32_t input = 0;         // board; kNowhere: the token's embedding
  std::int32_t output = 0;        // board
  std::int32_t residual = 0;      // board; kNowhere: the token's embedding
  std::int32_t part = 0;          // kAttention: of `parts`; kLogits: the place of its candidate
  std::int32_t parts = 0;         // of the keys; kPick: candidates
  std::int32_t scores = 0;        // board of log2 of the sums, [sequences, heads, parts]
  std::int32_t weight_bytes = 2;  // of an element: 2 bf16; 1 fp8, with a scale for each row
  std::int32_t unused[17] = {};

  bool operator==(const Instruction&) const = default;
};
inline constexpr int kInstructionWords = 32;
static_assert(sizeof(Instruction) == kInstructionWords * sizeof(std::int32_t));

}  // namespace orrery::megakernel
