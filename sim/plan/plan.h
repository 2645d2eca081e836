#pragma once

// The Plan: a typed graph of kernel, communication and host ops placed on ranks and streams. It
// says what runs where and after what, never how long. `simulate` (sim/des) and `execute`
// (kernels/execute) are its two interpreters.
//
//   * Ops are appended and may only refer to earlier ops and to tensors already added, so a Plan is
//     acyclic by construction.
//   * An op with several ranks is SPMD: a kernel or host op runs on each of its ranks by itself; a
//     communication op is one collective with all its ranks as participants. An op and one of its
//     ranks together are called a task.
//   * A tensor is present on each rank of its rank set with the same local shape. Reading a tensor
//     on a rank waits for the latest earlier op that wrote it on that rank.
//   * An op reads and writes views: a tensor, or a range of its columns or of its rows.
//   * An axis of a tensor may be a part of a longer one: its split (sim/plan/split.h) says which
//     elements of the whole each rank has, and so which tokens of the KV cache and which sequences.
//     An axis without a split is not part of a longer one.
//   * Tasks of one (rank, stream) run in the order of the ops (stream order is implicit). `after`
//     is for control dependencies only.
//   * `repeat`: a run of ops [first, last) that stands for `count` consecutive copies of itself
//     (equal layers). Interpreters and metrics treat it as unrolled; `unroll` writes it out.
//   * A pipeline gives ops and tensors the stage that they are of, and the micro-batch; their names
//     are those of the plan before.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sim/plan/split.h"
#include "sim/units/units.h"

namespace orrery {

// Storage and arithmetic formats. kFp8 is e4m3 with per-tensor or per-token scales, kFp8Block e4m3
// with 128x128 block scales (DeepSeek), kMxfp4 and kInt4 four-bit weights with group scales, kNvfp4
// four-bit weights and activations (Blackwell).
enum class DType : std::uint8_t {
  kFp32,
  kBf16,
  kFp16,
  kFp8,
  kFp8Block,
  kMxfp4,
  kNvfp4,
  kInt4,
  kInt8,
  kInt32
};
std::string_view to_text(DType dtype);     // "bf16", "fp8", "fp8_block", ...
DType parse_dtype(std::string_view text);  // throws std::invalid_argument with the known names
double bytes_per_element(DType dtype);  // scales of block formats included (fp8_block 1 + 4/16384)

// Names of tensor axes. Parallel passes shard axes by these names and know nothing else of a model.
namespace axis {
inline constexpr std::string_view kTokens = "tokens";  // rows of the step: prefill + decode tokens
// Rows of all data-parallel ranks that have even parts of them (sim/parallel/balanced_rows.cpp).
inline constexpr std::string_view kAllTokens = "all_tokens";
inline constexpr std::string_view kSeqs = "seqs";  // sequences (rows of logits)
// Rows of the decodes of all ranks among which decodes are dealt out (sim/parallel/context.cpp).
inline constexpr std::string_view kDecodes = "decodes";
inline constexpr std::string_view kHidden = "hidden";
inline constexpr std::string_view kHeads = "heads";  // query heads (times head_dim where flat)
inline constexpr std::string_view kKvHeads = "kv_heads";
inline constexpr std::string_view kHeadDim = "head_dim";
inline constexpr std::string_view kQkv = "qkv";        // fused q, k and v columns
inline constexpr std::string_view kLatent = "latent";  // MLA / MFA compressed rank
inline constexpr std::string_view kFfn = "ffn";        // dense FFN columns
inline constexpr std::string_view kExpertFfn = "expert_ffn";
inline constexpr std::string_view kExperts = "experts";
inline constexpr std::string_view kVocab = "vocab";
inline constexpr std::string_view kContext = "context";  // cached tokens
inline constexpr std::string_view kState = "state";      // elements kept for a sequence
}  // namespace axis

// What outlives a step is a weight or a cache: kKvCache grows with each token, [tokens, ...];
// kState is of one size per sequence however long it is (linear attention), [seqs, state].
enum class TensorRole : std::uint8_t { kWeight, kActivation, kKvCache, kInput, kOutput, kState };
std::string_view to_text(TensorRole role);            // "weight", "activation", "kv_cache", ...
TensorRole parse_tensor_role(std::string_view text);  // this and its like throw as parse_dtype does
inline bool is_cache(TensorRole role) {
  return role == TensorRole::kKvCache || role == TensorRole::kState;
}

using TensorId = std::int32_t;
using OpId = std::int32_t;
using GroupId = std::int32_t;  // an interned, ascending set of ranks
using SplitId = std::int32_t;  // an interned Split, from 0
inline constexpr SplitId kNoSplit = -1;
// Of a plan of several ranks in the first text form, which does not say what of the whole they
// have.
inline constexpr SplitId kUnknownSplit = -2;

struct Axis {
  std::string name;
  std::int64_t size = 0;  // on each rank
  SplitId split = kNoSplit;
  auto operator<=>(const Axis&) const = default;
};

struct Tensor {
  std::string name;
  DType dtype = DType::kBf16;
  std::vector<Axis> axes;  // local shape on each rank
  TensorRole role = TensorRole::kActivation;
  GroupId ranks = 0;
  std::int16_t stage = -1;        // of a pipeline; -1: there is none
  std::int16_t micro_batch = -1;  // -1: of none, or of all
  // Of a weight or cache in a run that a pipeline divides: how many of the run's copies the stages
  // before hold (num_copies).
  std::int32_t first_copy = 0;
  bool operator==(const Tensor&) const = default;
};
std::int64_t num_elements(const Tensor& tensor);
Bytes bytes_of(const Tensor& tensor);

// One named dimension of a kernel call; `axis` is the tensor axis it follows when that is sharded
// (empty: never sharded). A fused dimension such as gate+up columns is ffn with size 2*ffn.
struct Dim {
  std::string name;
  std::int64_t size = 0;
  std::string axis;
  bool operator==(const Dim&) const = default;
};
using Dims = std::vector<Dim>;
std::int64_t dim(const Dims& dims,
                 std::string_view name);  // throws std::invalid_argument if absent

struct KernelOp {
  std::string kernel;  // a registered kernel spec (kernels/kernel_spec.h)
  DType dtype = DType::kBf16;
  Dims dims;
  int free_sms = 0;  // SMs that its launch leaves to collectives beside it (KernelSpec::leaves_sms)
  bool operator==(const KernelOp&) const = default;
};

enum class CollectiveKind : std::uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kSendRecv,
  kBroadcast
};
std::string_view to_text(CollectiveKind kind);  // "all_reduce", "send_recv", ...
CollectiveKind parse_collective_kind(std::string_view text);

// `bytes_per_rank`: all_reduce, broadcast and send_recv: the buffer; all_gather: each rank's
// contribution; reduce_scatter: each rank's full input; all_to_all: all that one rank sends, its
// own share included.
struct CommOp {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  DType dtype = DType::kBf16;
  Bytes bytes_per_rank;
  bool is_copied = false;  // all_to_all only: by copy engines in place of kernels
  bool operator==(const CommOp&) const = default;
};

enum class HostKind : std::uint8_t { kLaunchGap, kD2hSync, kScheduler, kSampling };
std::string_view to_text(HostKind kind);  // "launch_gap", "d2h_sync", "scheduler", "sampling"
HostKind parse_host_kind(std::string_view text);
struct HostOp {
  HostKind kind = HostKind::kScheduler;
  bool operator==(const HostOp&) const = default;
};

using OpBody = std::variant<KernelOp, CommOp, HostOp>;

// What an op reads or writes: a tensor, `num_columns` of its last axis from `first_column` on, or
// `num_rows` of its first from `first_row` on.
struct TensorView {
  TensorId tensor = -1;
  std::int32_t first_column = 0;
  std::int32_t num_columns = 0;  // 0: all
  std::int32_t first_row = 0;
  std::int32_t num_rows = 0;  // 0: all

  TensorView() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): a tensor is the view of all of it
  TensorView(TensorId whole) : tensor(whole) {}
  TensorView(TensorId of, std::int32_t first, std::int32_t count)
      : tensor(of), first_column(first), num_columns(count) {}
  // NOLINTNEXTLINE(google-explicit-constructor): most readers ask which tensor it is
  operator TensorId() const { return tensor; }
  static TensorView of_rows(TensorId of, std::int64_t first, std::int64_t count) {
    TensorView view(of);
    view.first_row = static_cast<std::int32_t>(first);
    view.num_rows = static_cast<std::int32_t>(count);
    return view;
  }
  [[nodiscard]] bool has_all_columns() const { return num_columns == 0; }
  [[nodiscard]] bool has_all_rows() const { return num_rows == 0; }
  [[nodiscard]] bool is_whole() const { return has_all_columns() && has_all_rows(); }
  bool operator==(const TensorView&) const = default;
  bool operator==(TensorId id) const { return tensor == id; }
};
using TensorViews = std::vector<TensorView>;
// `tensor` with the view's rows alone, which are part of no longer axis.
Tensor tensor_of_rows(const Tensor& tensor, const TensorView& view);

struct Op {
  std::string name;
  OpBody body;
  GroupId ranks = 0;
  int stream = 0;  // the same stream number on each rank; 0 is the main compute stream
  TensorViews reads;
  TensorViews writes;
  std::vector<OpId> after;
  std::int16_t stage = -1;  // as of Tensor
  std::int16_t micro_batch = -1;
  bool operator==(const Op&) const = default;
};
// "s1.m3.layers.0.rope": the name with the stage and micro-batch of a pipeline before it, as
// timelines, traces and messages print it.
std::string printed_name(const Op& op);
std::string printed_name(const Tensor& tensor);

struct Repeat {
  OpId first = 0;
  OpId last = 0;           // one past the end
  std::int64_t count = 1;  // total number of copies, >= 1
  bool operator==(const Repeat&) const = default;
};

class Plan {
 public:
  // Only saves allocations.
  void reserve(std::size_t num_ops, std::size_t num_tensors);
  // Interns the set; ranks are sorted and must be distinct, >= 0 and not empty.
  GroupId add_group(std::vector<int> ranks);
  // Interns the split. Throws as check_split.
  SplitId add_split(const Split& split);
  // Both throw std::invalid_argument when an id refers to something not yet added, or on a negative
  // stream. Cost is linear in the op's own reads, writes and after.
  TensorId add_tensor(Tensor tensor);
  OpId add_op(Op op);
  // The run [first, last) of ops added so far; runs may not overlap. count >= 1. Kept by `first`.
  void add_repeat(Repeat repeat);

  [[nodiscard]] const std::vector<Op>& ops() const { return ops_; }
  [[nodiscard]] const std::vector<Tensor>& tensors() const { return tensors_; }
  [[nodiscard]] const std::vector<Repeat>& repeats() const { return repeats_; }
  [[nodiscard]] std::span<const int> ranks(GroupId group) const;  // ascending
  [[nodiscard]] bool contains(GroupId group, int rank) const;
  [[nodiscard]] int num_groups() const { return static_cast<int>(groups_.size()); }
  [[nodiscard]] const std::vector<Split>& splits() const { return splits_; }
  // Null where the axis has none, or one that is not known.
  [[nodiscard]] const Split* split_of(const Axis& axis) const {
    return axis.split < 0 ? nullptr : &splits_[static_cast<std::size_t>(axis.split)];
  }
  // Of the axis that this one is a part of: its own where it is of none.
  [[nodiscard]] std::int64_t whole_size(const Axis& axis) const;
  // What `rank` has of the axis, as ranges_of. Throws std::invalid_argument for an unknown split.
  [[nodiscard]] std::vector<AxisRange> ranges_of(const Axis& axis, int rank,
                                                 int micro_batch = 0) const;
  [[nodiscard]] int num_ranks() const { return num_ranks_; }  // highest rank + 1
  // How often op `id` runs when the plan is unrolled.
  [[nodiscard]] std::int64_t multiplicity(OpId id) const;

  bool operator==(const Plan&) const = default;

 private:
  std::vector<Op> ops_;
  std::vector<Tensor> tensors_;
  std::vector<Repeat> repeats_;
  std::vector<std::vector<int>> groups_;
  std::map<std::vector<int>, GroupId> group_ids_;
  std::vector<Split> splits_;
  int num_ranks_ = 0;
};

// The grammar of a Plan. Checks each kernel op against its spec (known kernel, exactly its dims in
// the spec's order, all positive; SMs left by kernels alone that can leave some; operands that are
// those of its slots: which there must be, their role, dtype and axes, which result may lie where a
// read lies), that a collective has at least two ranks (send_recv exactly two) and moves a positive
// number of bytes, that what an op reads and writes is present on all its ranks (on one of them at
// least for send_recv, broadcast and all_to_all, whose senders and receivers may differ), that
// activations and outputs are written before they are read on each rank, that weights are never
// written, that a view lies inside its tensor. Checks each split: the local size is that of its
// shares, all ranks of a tensor (and micro-batches) together have the whole, along all its axes at
// once, and what an op reads and writes along one axis is split alike. Throws std::invalid_argument
// naming the op and what would be right. This, to_text and parse_plan know the kernels: they are
// defined in sim/grammar.
void verify(const Plan& plan);

// How many tensors each tensor stands for when the plan is unrolled (num_copies(p)[tensor id]):
//   * a weight, KV cache or state: m when every op that uses it runs m times (each copy of a layer
//     has its own, also when several runs of m share it, as micro-batches do); else 1, of all;
//   * an input: 1;
//   * an activation or output: its run's count when only ops of repeated runs use it and each of
//     these runs writes it before reading it; else 1 (carried from copy to copy, or read later).
std::vector<std::int64_t> num_copies(const Plan& plan);

// A plan without repeats: each run written out `count` times, its ops named "<name>#<copy>", and
// tensors copied as num_copies says, named likewise. `after` an op of a run from outside it means
// after its last copy.
Plan unroll(const Plan& plan);

// Text form, one line per group, split, tensor, op and repeat; parse_plan(to_text(p)) == p:
//
//   plan 2                                         the form
//   group g0 0-7                                   also 0,4,8 and 0-316/4 (every fourth)
//   split p0 128256/16032 by 8x1                   in blocks of 16032 over 8 places, 1 rank apart
//   split p1 14336/1792 by 8x1 14336/1792 by 8x1   two parts, gate and up
//   tensor t0 embed.weight weight bf16 [vocab=16032/p0,hidden=8192] g0
//   op o0 embed kernel embedding bf16 tokens=64:tokens hidden=8192:hidden vocab=16032:vocab g0 s0
//       ids=t0 table=t1 -> y=t2                    (on the same line; dims are name=size:axis)
//   op o1 reduce comm all_reduce bf16 1048576B g0 s1 reads t2 writes t2 after o0
//   op o2 schedule host scheduler g0 s0
//   op o3 norm kernel rms_norm bf16 tokens=64:tokens hidden=512 g0 s0 stage 1 micro_batch 3
//       x=t3[1536:2048] gain=t4 -> y=t5            columns 1536 to 2047 of t3
//   op o4 sort kernel index_shuffling fp32 ... g0 s0 scores=t6[64:128,:] -> ...   rows 64 to 127
//   op o5 down kernel grouped_gemm bf16 ... leaves 24 g0 s0 ...        SMs to collectives beside it
//   repeat o0-o1 x80                               both ends included
//
// Operands of kernels have the names of the spec's slots, in any order; tensors that are one
// operand together stand as "x=t3,t4". Those of other ops stand by position; so may those of a
// kernel, and do where they are not what its slots take.
//
// Digits of a place stand with the most significant first, "by 2x8,8x1", one of the micro-batch
// as "4xm"; a part that each rank has whole is its size alone. Behind them may stand "zigzag", or
// "at 0,300,500", where uneven shares begin. A tensor of a pipeline has "stage 1 micro_batch 3 copy
// 40" behind its group, of which each may be missing; "/?" is a split that is not known. A name
// with other characters than letters, digits and "_.-/#+*" is quoted, with C escapes for the quote,
// the backslash and the line end. Empty lines and lines that start with "#" are ignored. parse_plan
// throws std::invalid_argument with the line number. It also reads the first form, which has no
// first line, no splits and views, and stages and micro-batches before names ("s1.m3.norm"): what
// follows from it is restored (sim/grammar/first_form.h).
std::string to_text(const Plan& plan);
Plan parse_plan(std::string_view text);

struct MemoryUse {
  Bytes weights;
  Bytes kv_cache;     // what the step adds to it
  Bytes states;       // of the sequences of the step
  Bytes activations;  // peak over the order of ops of activation, input and output tensors alive
};
// Memory of `rank`. Weights and caches count num_copies times. Activations live from their first
// to their last use, inputs from the start, outputs to the end; what a run of several copies reads
// before writing it lives through the whole run. 0 <= rank, else std::invalid_argument.
MemoryUse memory_of(const Plan& plan, int rank);
// Elements of all weights present on `rank`, num_copies times each. Throws as memory_of.
std::int64_t num_weight_elements(const Plan& plan, int rank);

}  // namespace orrery
