#pragma once

// What a kernel op of a plan is given to become a launch: its operands on a rank, the step, the
// rank's cache and memory. A kernel that can be executed has its `bind` in GpuKernel.

#include <span>
#include <string_view>
#include <vector>

#include "kernels/binding/kv_pool.h"
#include "kernels/binding/step_input.h"
#include "kernels/harness/gpu_kernel.h"
#include "kernels/kernel_spec.h"
#include "sim/plan/plan.h"

namespace orrery {

class BindResources;  // kernels/binding/bind_resources.h
class FusedMoePlan;   // kernels/experts/fused_moe/fused_moe.h

// A layer of experts as one kernel over several ranks, and the place of this one among them.
struct RankedMoe {
  const FusedMoePlan* plan = nullptr;  // null: one rank
  int place = 0;
};

// A tensor of the op on this rank. Row-major in the order of its axes.
struct Operand {
  void* data = nullptr;
  float* scales = nullptr;  // fp8: one for each row (activations: token, weights: output column)
  const Tensor* tensor = nullptr;
  // The columns that the op works on; 0 of them: all. `data` is where those of the tensor begin.
  std::int64_t first_column = 0;
  std::int64_t num_columns = 0;
  const std::int32_t* host = nullptr;  // i32 tensors that a d2h_sync op of the step has copied:
                                       // what it found, at launch time
};

// Keys of a step's prompts that rows of this rank attend to in one call.
struct AttendedKeys {
  std::int64_t first = 0;  // among those of ContextTables
  std::int64_t count = 0;
  std::span<const PrefillPiece> pieces;  // host, of this rank
};

// Prompts over context-parallel ranks. Each gives keys and values of its own new rows and, behind
// them, of what it has cached; those of all make the keys of the prompts.
struct ContextTables {
  int rank = 0;
  std::int64_t prompt_rows = 0;  // of the step's prompts on each rank, padding included; 0: none
  std::int64_t cached_rows = 0;  // given beside them
  std::int64_t num_keys = 0;     // of all sequences
  std::int64_t step_rows = 0;    // of all ranks' prompts together
  const std::int32_t* key_sources =
      nullptr;                              // [num_keys], rows of what all give (context_memory.h)
  const std::int64_t* key_slots = nullptr;  // [num_keys], slots of new ones; -1: not stored here
  const std::int32_t* cached_slots = nullptr;  // [cached_rows], slots
  const std::int32_t* row_sources = nullptr;   // [step_rows]: rank * prompt_rows + row there
  const std::int32_t* own_rows = nullptr;      // [prompt_rows + decodes], rows of the step
  std::vector<AttendedKeys> keys;              // all of them; in a ring those of each rank
  [[nodiscard]] bool is_ring() const { return keys.size() > 1; }
  [[nodiscard]] std::int64_t given_rows() const { return prompt_rows + cached_rows; }
};

// What the step computes, on the device of this rank: addresses that stay for the life of the
// executor (a captured graph is replayed after their contents changed), sizes known on the host.
struct StepTables {
  std::int64_t num_rows = 0;  // tokens and what pads them; 0: rows are not the rank's own
  const std::int32_t* token_ids = nullptr;  // [tokens], less the first row of this rank's embedding
  const std::int32_t* positions = nullptr;  // [tokens]
  const std::int64_t* slots =
      nullptr;  // [tokens], of kv_append: block * block_size + row; -1: none
  const std::int32_t* sampled_rows = nullptr;    // [seqs], rows of tokens that are sampled
  const std::int32_t* decode_lengths = nullptr;  // [decodes], the new token included; 0: padding
  const std::int32_t* decode_blocks = nullptr;   // [decodes, blocks_per_sequence]
  const std::int32_t* prefill_blocks = nullptr;  // [prefill sequences, blocks_per_sequence]
  // [prefill sequences + 1]: the first of each sequence's tokens, cached ones and new ones, where
  // those of all sequences follow each other
  const std::int32_t* prefill_key_starts = nullptr;
  std::int64_t blocks_per_sequence = 0;
  std::span<const PrefillChunk> prefill;  // host
  // Rows of prefill in the plan, behind which decodes begin: at least the new tokens of `prefill`.
  std::int64_t prefill_rows = 0;
  std::int64_t num_decodes = 0;
  // Ranks that the context is dealt out over. With several, a KV op's dims count the rows that a
  // rank stores on average; slots say which these are of all rows of the step, and of prompts where
  // among the rows that the rank gives they lie.
  int context_ranks = 1;
  // Decodes are dealt out to these ranks: token ids, positions and sampled rows are of the rank's
  // own, slots and what attention reads are of all decodes.
  bool deals_decodes = false;
  ContextTables context;
  std::int64_t max_context =
      0;  // of the decodes, a hint; a captured graph keeps that of its capture
  bool samples_all_rows = false;   // sampled_rows is 0, 1, 2, ...: nothing to gather
  const float* cosines = nullptr;  // [max_positions, head_dim / 2]
  const float* sines = nullptr;
};

struct BindContext {
  const KernelOp& op;
  const KernelSpec& spec;          // of its kernel
  std::span<const Operand> reads;  // in the op's order, KV cache tensors with null data
  std::span<const Operand> writes;
  const OperandSlots& slots;  // of these, as executed_slots() has found them
  const StepTables& tables;
  const ModelNumbers& numbers;
  const KvPool* kv = nullptr;     // of this rank
  std::int64_t kv_layer = -1;     // of the KV tensor that the op uses, -1: none
  int rank_of_keys = -1;          // in a ring, whose keys attention to prompts sees
  BindResources& resources;       // of this rank's stream
  std::int64_t first_expert = 0;  // of this rank's experts
  RankedMoe ranked_moe;
  // What comes right before it on its stream is a kernel that writes none of its counts, and that
  // lets others start only after its own predecessors have ended, as those do that read no weights:
  // whoever writes the counts has ended then.
  bool counts_are_there = false;
};

}  // namespace orrery
