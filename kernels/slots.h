#pragma once

// The operands of a kernel by name: what each is for, of which format, and how its axes follow from
// the kernel's dims.

#include <cstdint>
#include <string_view>
#include <vector>

namespace orrery {

// Sizes of an operand's axes, written as they are read, the first one first:
//
//   "groups, n, k"                 dims of the kernel
//   "tokens, 2*ffn"                products and sums of dims and numbers
//   "tokens*min(topk,experts)"     the smaller of two dims
//   "m.., k"                       at least m
//   "room, k"                      no dim: a size of the call, the same wherever it stands
//   "tokens, .."                   any size
//   "rows, k | groups, bound, k"   one of several forms
//
// Throws std::invalid_argument for other text. No spaces within an axis.
struct SlotAxes {
  struct Factor {
    std::string_view name;
    std::string_view at_most;  // the smaller of the two dims; empty: `name` alone
  };
  struct Term {
    std::int64_t times = 1;
    std::vector<Factor> factors;
  };
  struct Axis {
    std::vector<Term> sum;  // empty: any size
    bool is_least = false;
  };

  SlotAxes(const char* axes);  // NOLINT(google-explicit-constructor): a text where it is written
  std::string_view text;
  std::vector<std::vector<Axis>> forms;
};

enum class SlotType : std::uint8_t {
  kOfOp,        // the dtype of the op
  kOfOpOrBf16,  // bf16 where an engine's kernel narrows weights alone; our own take that of the op
  kBf16,
  kResult,  // of sums in fp32: bf16, where the op is fp16 that
  kFp32,
  kInt32,
  kAny  // a cache of a format of its own; weights that engines keep a copy of in the op's dtype
};

enum class Use : std::uint8_t {
  kActivation,  // of any role but weight and cache
  kWeight,
  kCache,   // a layer of the KV cache, or of the states
  kCounts,  // numbers that the device finds and the kernel reads: rows of groups, or of all
  kInput    // what the host knows of the step
};

struct Slot {
  std::string_view name;
  SlotAxes axes;
  SlotType type = SlotType::kOfOp;
  Use use = Use::kActivation;
  bool is_result = false;      // written, not read
  bool is_optional = false;    // a tensor that does not fit belongs to a later slot
  bool is_in_parts = false;    // one or several tensors, whose rows follow each other
  std::string_view may_alias;  // a result that may lie where this read lies
};

}  // namespace orrery
