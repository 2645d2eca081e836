#pragma once

// A decode step's plan as instructions of the megakernel: which rows of which weight each SM takes,
// in which order, and where on the board it finds and leaves values. No CUDA.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/megakernel/instruction.h"
#include "sim/plan/plan.h"

namespace orrery::megakernel {

// Sizes of a dense decoder whose step was recognised.
struct ModelShape {
  std::int64_t batch = 0;  // sequences, one new token each
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t ffn = 0;  // columns of the down-projection
  std::int64_t vocab = 0;
  std::int64_t context = 0;     // tokens that the attention of the plan reads, the new one included
  bool has_head_norms = false;  // of queries and keys
  bool operator==(const ModelShape&) const = default;
};

// A weight that instructions name: tensor `tensor` of the plan, copy `copy`.
struct WeightName {
  TensorId tensor = -1;
  std::int32_t copy = 0;
  bool operator==(const WeightName&) const = default;
};

struct Program {
  ModelShape shape;
  std::vector<WeightName> weights;  // by Instruction::weight and gain
  TensorId embedding = -1;
  TensorId logits = -1;
  TensorId next_tokens = -1;
  TensorId kv_cache = -1;                              // of layer 0
  std::vector<std::vector<Instruction>> instructions;  // by SM, each ends with kEnd
  std::int64_t board_units = 0;
  std::int64_t attention_parts = 0;
};

// How rows are dealt out to SMs. All give each SM a run of neighbouring rows of each weight. The
// first three cut them evenly and differ in who takes the rows that are left over.
enum class Schedule : std::uint8_t {
  kRoundRobin,    // left-over rows from SM 0 on, in every phase
  kZigZag,        // from SM 0 on and from the last SM back, in turns
  kWave,          // where the phase before ended
  kLeastBytes,    // two rows at a time to the SM that has least bytes so far, attention included
  kCriticalPath,  // two rows at a time to the SM that ends the phase first with them, counted in
                  // pages from when it can begin: a phase ends with its last SM
  kPool           // whole blocks of 16 rows, to the SM that is the first to be free
};
inline constexpr std::array<std::string_view, 6> kSchedules = {
    "round_robin", "zig_zag", "wave", "least_bytes", "critical_path", "pool"};
// Throws std::invalid_argument naming the nearest.
Schedule parse_schedule(std::string_view text);

struct CompileOptions {
  int num_sms = 132;
  Schedule schedule = Schedule::kCriticalPath;
  // Of keys that one instruction of attention has. Fewer pages are read by more SMs at once, but
  // each further part is merged by all SMs; one part needs no merge.
  std::int64_t pages_of_part = 4;
};

// The program of a plan of one rank. Of fp8 weights each row has a scale; what the plan quantises
// of activations stays bf16 here. Throws std::invalid_argument naming the op that has no
// instruction (expected: a dense decoder in bf16, or with fp8 weights, with RMSNorm, rotary
// positions, grouped-query attention and SiLU), or a size that instructions do not take.
Program compile(const Plan& plan, const CompileOptions& options);

// Numbers of sequences that the kernel is built for; the interpreter runs programs of others too.
inline constexpr std::array<std::int64_t, 4> kBatchSizes = {1, 2, 4, 8};

// Pages of a block's shared memory beside what the kernel keeps there for this model, as its launch
// counts them (kernels/megakernel/megakernel_sm90.cu); on any device of architecture hopper. Throws
// std::invalid_argument where fewer than three fit.
std::int64_t num_pages(const ModelShape& shape);

// That the kernel runs steps of this plan: throws std::invalid_argument as compile() and
// num_pages() do, and for another number of sequences than kBatchSizes, naming the nearest.
void require_runs(const Plan& plan);

// Keys of a page of shared memory, with as many values.
std::int64_t page_keys(std::int64_t head_dim);

std::string_view to_text(Opcode opcode);
// What an instruction is, for messages and traces: "layers.3 gate_up rows 62..124".
std::string describe(const Instruction& instruction);

}  // namespace orrery::megakernel
