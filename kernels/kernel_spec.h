#pragma once

// What a kernel is, without CUDA: the names of its dims, how its work follows from them, how it may
// be sharded, and what is known of its time before it is measured. A spec is
// kernels/<family>/<kernel>/<kernel>.cpp, and its line in kernels/CMakeLists.txt is what lists it.
// The plan's text form, `verify`, the cost model and the bindings all work from specs.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/slots.h"
#include "sim/plan/plan.h"
#include "sim/units/units.h"

namespace orrery {

// Amounts that follow from shapes alone: the least a kernel must compute and move.
struct Work {
  Flops flops;
  Bytes bytes_read;
  Bytes bytes_written;
  Seconds links;  // that what it sends to other GPUs takes, which no GPU's memory or clock changes
};

// A call of our own kernel as the blocks of its launch divide it.
struct LaunchWork {
  // What the GPU computes and moves until the last block ends, over what needs to be.
  double computed = 1;
  double moved = 1;
  // That blocks do something else: begin, change rows, merge results; none: Prior::floor.
  std::optional<Seconds> beside;
  // Computing and moving take (computing^p + moving^p)^(1/p): one after the other with 1.
  double overlap = 1;
};

struct DimSpec {
  std::string_view name;
  std::string_view meaning;  // one phrase, with unit where there is one
  // Sharding this dim leaves a partial result on each rank that must be reduced over them.
  bool is_contraction = false;
  // The kernel needs the whole dim on one rank (argmax over vocab): gather before it.
  bool must_be_whole = false;
  bool may_be_zero = false;  // else a dim is at least 1
  // Where our own kernel takes a few sizes only; its launcher says the same.
  std::vector<std::int64_t> executed;
  // The host knows this count when it gets to the op, and launches nothing for none.
  bool zero_is_not_launched = false;
};

// Which units bound a large call, and so what the clock at the power limit does to it.
enum class Arithmetic : std::uint8_t {
  kGemm,       // tensor cores, in the op's dtype
  kAttention,  // tensor cores in bf16 and softmax between; the op's dtype is that of the cache
  kRows        // row by row or element by element: mostly bytes
};

// A part of a layer that engines run under one name and tables measure as one call.
enum class Composite : std::uint8_t {
  kNone,
  kAttentionModule,  // attention with its projections; dtype is that of their GEMMs
  kRoutedExperts     // both GEMMs of the routed experts and what lies between
};

// Which dims measured times are interpolated over: those along which time / work-model time is
// smooth. Dims by name; rows that agree in all others form a family.
struct TableGrid {
  std::vector<std::string_view> axes;  // at most 3, the slowest first; empty: the first three dims
  std::string_view tied;     // follows the last axis where both are equal (kv_heads of MHA)
  std::string_view ignored;  // names something and does not change the time
  // The last so many axes are the shape of the weights: the first alone varies within one shape.
  int shape_axes = 0;
  bool is_scattered = false;  // measured along curves: rows of a call and what follows from them
  bool is_cut_twice = false;  // the last two axes cut one layer, which tables do by either
  bool is_by_way = false;     // rows of different ways (KernelSpec::way) are families of their own
  // Large calls are as efficient as the next smaller ones. Rows of milliseconds, during which the
  // board comes to its power limit while they are timed, are left out.
  bool is_flat_for_long_calls = false;
};

inline constexpr double kNoBlocks = -1;

// What is known of a kernel's time before any row, and the scale in which rows are interpolated.
// Where a spec does not say where its numbers are from, the shipped tables measure the kernel: 0.6
// of the dense peak and 0.8 of the HBM rate are what large shapes reach on H200 (cf.
// AIConfigurator's own factor 0.8), the floor is about the smallest time of the tables, the spread
// half of the 95th percentile of the held-out errors (docs/data.md).
struct Prior {
  Arithmetic arithmetic = Arithmetic::kRows;
  double flops = 0;   // of the peak
  double hbm = 0;     // of the HBM rate
  Seconds floor;      // of the smallest call
  double spread = 0;  // relative standard deviation of an interpolated time
  TableGrid grid;
  // Thread blocks of a call; null or 0: as many as fill the GPU, or not known. kNoBlocks: it leaves
  // its work to a NIC and holds no SMs meanwhile.
  double (*blocks)(DType dtype, const Dims& dims) = nullptr;
  // What is computed over what needs to be, where tiles have empty rows; null: 1.
  double (*padding)(DType dtype, const Dims& dims) = nullptr;
  // Of our own kernel on so many SMs, what its rows are interpolated by: those of all SMs of an
  // H200 (launch_gpu.h). Null: the work alone.
  LaunchWork (*launch)(DType dtype, const Dims& dims, int num_sms) = nullptr;
  // It tells calls of different ways apart as their times do; else among rows of one way alone.
  bool launch_holds_across_ways = false;
  // The kernel and dims whose rows answer a call where it has none of its own; null: none.
  KernelOp (*same_work)(const KernelOp& op) = nullptr;
  Composite composite = Composite::kNone;
  bool quantizes = false;  // a narrower format with scales is all that it makes
  // Reads next to nothing but what calls before it have written, so some of it is in the L2 cache.
  bool reads_what_was_written = false;
  // A call takes the host several launches, or one through a library that looks for its kernel.
  bool is_issued_slowly = false;
  // Whether the GEMM that reads its result begins before it ends and fetches weights meanwhile;
  // null: none does.
  bool (*precedes_streamed_weights)(const Dims& dims) = nullptr;
};

// What a kernel does for routed experts.
enum class RoutedRole : std::uint8_t {
  kNone,
  kSort,     // chooses experts and sorts tokens by them: the first op of a routed layer
  kGather,   // rows in the order of their experts
  kScatter,  // adds weighed rows to those of their tokens
  kCombine,  // rows that came rank by rank, sorted by expert
  kSplit,    // the inverse of it
  kLayer     // all of them, and what moves between ranks
};

struct KernelSpec {
  std::string_view name;
  std::string_view summary;
  std::vector<DimSpec> dims;
  std::vector<DimSpec> optional_dims;  // that a call may have behind these; rows are of none
  std::vector<Slot> slots;             // in the order of an op's reads, then of its writes
  // Throws std::invalid_argument when a dim is missing or dims contradict each other.
  Work (*work)(DType dtype, const Dims& dims) = nullptr;
  // Which of several ways our own kernel takes a call, from 1 on, where times of one way are smooth
  // and those of different ways jump; 0: none of them. `sizes` in the order of dims. Null: there is
  // one way.
  int (*way)(DType dtype, std::span<const std::int64_t> sizes) = nullptr;
  // Of our own kernel, where it has as many blocks as fill the GPU: pieces of work that a block
  // does one after the other, of which the first is dealt to it and the others go to whoever is
  // free. 1: all its work is dealt to it. 0 or null: none, as of small blocks, or not known.
  int (*rounds)(DType dtype, const Dims& dims) = nullptr;
  Prior prior;
  RoutedRole routed = RoutedRole::kNone;
  // Norms and additions of the residual stream: a token's result depends on that token alone, and
  // they cost next to nothing else.
  bool is_on_residual = false;
  // Linear in what it reads in the shape of its result, so parts of a sum over ranks may be added
  // up behind it.
  bool is_sum = false;
  // Its launcher takes so many blocks fewer as KernelOp::free_sms says.
  bool leaves_sms = false;
  // What it reads is read back when the step has ended.
  bool keeps_inputs = false;
  // Scratch memory of a call on an H200; null: none, or what gemms share.
  Bytes (*workspace)(DType dtype, const Dims& dims) = nullptr;
  // Dtypes in which a kernel of this project executes it; none: it is a kernel of engines, which
  // plans are made of and no code here runs.
  std::vector<DType> executed;
  // Why our own kernel does not take such dims, each of a size that it takes; empty: it takes them.
  // Null: it takes all.
  std::string (*refusal)(const Dims& dims) = nullptr;
  std::string_view instead;  // what is executed in place of a kernel of engines
};

// All specs, in a fixed order. Thread safe; the table is built on first use.
std::span<const KernelSpec> kernel_specs();
// Null when unknown.
const KernelSpec* find_kernel_spec(std::string_view name);
// Throws std::invalid_argument with the nearest known name.
const KernelSpec& kernel_spec(std::string_view name);
// The first of that role, which is not kNone.
const KernelSpec& kernel_of(RoutedRole role);
// Throws as kernel_spec.
RoutedRole routed_role(const KernelOp& op);
// Work of one kernel call. Throws std::invalid_argument on an unknown kernel or a missing dim.
Work work_of(const KernelOp& op);
// Throws as kernel_spec, and std::invalid_argument unless the call has exactly the spec's dims, in
// its order and perhaps optional ones behind them, none below its least, which do not contradict
// each other.
void check_call(const KernelOp& op);
// Scratch memory of the call of `rank` that needs most: calls share it.
Bytes workspace_of(const Plan& plan, int rank);
// False where a dim is zero that keeps the host from launching. Throws as kernel_spec.
bool is_launched(const KernelOp& op);
// The slot of each operand of a call, in order: places in the spec's `slots`. Parts of one operand
// have the same slot. Throws as kernel_spec, and std::invalid_argument that names the first tensor
// that fits no slot, or the slot that no tensor fits.
struct OperandSlots {
  std::vector<std::uint8_t> reads;
  std::vector<std::uint8_t> writes;
};
OperandSlots operand_slots(const KernelOp& op, std::span<const Tensor* const> reads,
                           std::span<const Tensor* const> writes);
OperandSlots operand_slots(const Plan& plan, const Op& op);  // of a kernel op

}  // namespace orrery
