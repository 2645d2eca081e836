#pragma once

// What a launch of the megakernel gives its blocks.

#include <cstdint>

#include "kernels/cuda/dtypes.h"
#include "kernels/megakernel/record.h"
#include "sim/megakernel/instruction.h"

namespace orrery::megakernel {

// Where the first SM that waited too long stood; in host memory that the device sees.
struct Failure {
  std::uint32_t is_set = 0;
  std::int32_t sm = 0;
  std::int32_t instruction = 0;  // its place in the SM's queue
  std::int32_t unit = 0;         // of the board, which did not come
};

struct Parameters {
  const Instruction* instructions = nullptr;  // with addresses in place of weights' numbers
  const std::int32_t* first = nullptr;        // of each SM's instructions
  std::uint32_t* board = nullptr;             // [2, board_units]
  std::int64_t board_units = 0;               // of one copy, with token_unit's
  std::int32_t token_unit = 0;       // where sequence 0's next token is; the others' follow
  std::uint32_t* forward = nullptr;  // the number of the last forward, and whether to give up
  Failure* failure = nullptr;
  Record* records = nullptr;    // null: none are kept
  std::int64_t limit_ns = 0;    // that a wait may take
  std::int32_t lost_unit = -1;  // for tests: what is written there never arrives
  std::int32_t steps = 1;       // forwards of this launch, each with the token of the one before
  // Of the step.
  const std::int32_t* token_ids = nullptr;
  const std::int32_t* positions = nullptr;
  const std::int64_t* slots = nullptr;
  const std::int32_t* lengths = nullptr;
  const std::int32_t* block_table = nullptr;
  std::int64_t blocks_per_sequence = 0;
  const float* cosines = nullptr;
  const float* sines = nullptr;
  // Of the model.
  const bf16* embedding = nullptr;
  bf16* keys = nullptr;  // of layer 0; its values, then those of the layers after it follow
  std::int64_t pool_elements = 0;
  std::int32_t pool_blocks = 0;
  std::int32_t block_shift = 0;  // log2 of the tokens of a block
  std::int32_t box_keys = 0;     // of one copy
  std::int32_t boxes = 0;        // copies of a tile
  bf16* logits = nullptr;
  std::int32_t* next_tokens = nullptr;  // of the last step
  std::int32_t* step_tokens = nullptr;  // [steps, sequences]
  std::int32_t hidden = 0;
  std::int32_t heads = 0;
  std::int32_t kv_heads = 0;
  std::int32_t vocab = 0;
  std::int32_t stages = 0;       // of the ring of pages
  std::int32_t input_bytes = 0;  // of shared memory
  std::int32_t attention_bytes = 0;
  float epsilon = 0;
  float scale_log2 = 0;
};

// Addresses stand in these words of an instruction, low half first.
inline constexpr int kWeightAddress = 16;
inline constexpr int kGainAddress = 18;
inline constexpr int kScaleAddress = 20;  // of the weight's rows, fp32; bf16: null

}  // namespace orrery::megakernel
