#pragma once

// Device memory of a rank that executes plans, by what holds it: as it is predicted (footprint.h),
// or as the device saw it go (kernels/execute).

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/units/units.h"

namespace orrery {

struct RankMemory {
  Bytes context;  // CUDA context and modules, before anything is allocated
  Bytes weights;
  Bytes kv_cache;
  Bytes states;       // of sequences
  Bytes activations;  // the arena of the step that needs most
  Bytes workspace;    // scratch memory of kernels
  Bytes graphs;
  Bytes communication;  // NCCL's, and the receive areas of our all-reduce
  Bytes other;          // tables of the step; measured: whatever else is in use
  [[nodiscard]] Bytes total() const;
};

// Names and sizes of the terms, in the order of memory.csv, the total last; states where a model
// has any.
std::vector<std::pair<std::string_view, Bytes>> memory_terms(const RankMemory& memory);

// memory.csv of ranks: rank,term,bytes.
std::string memory_csv(const std::map<int, RankMemory>& by_rank);

}  // namespace orrery
