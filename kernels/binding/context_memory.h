#pragma once

// Memory of a step's prompts over context-parallel ranks: what the ranks give of keys and values,
// and the whole of them, or what they give of latents. The same for all layers, which follow each
// other on one stream.

#include <cstddef>
#include <cstdint>

#include "kernels/binding/bind_context.h"
#include "kernels/binding/bind_resources.h"
#include "kernels/cuda/dtypes.h"

namespace orrery {

struct ContextMemory {
  bf16* all = nullptr;   // [ranks, 2, given_rows, width]: of each rank keys, then values
  bf16* own = nullptr;   // what this rank gives, where the others' lies
  bf16* keys = nullptr;  // [num_keys, width]
  bf16* values = nullptr;
};

inline ContextMemory context_memory(const StepTables& tables, BindResources& resources,
                                    std::int64_t width) {
  const ContextTables& context = tables.context;
  const std::int64_t given = 2 * context.given_rows() * width;
  const auto take = [&](const char* purpose, std::int64_t elements) {
    return reinterpret_cast<bf16*>(
        resources.scratch(purpose, static_cast<std::size_t>(elements) * sizeof(bf16)));
  };
  ContextMemory memory{.all = take("keys of ranks", tables.context_ranks * given),
                       .keys = take("keys of prompts", 2 * context.num_keys * width)};
  memory.own = memory.all + context.rank * given;
  memory.values = memory.keys + context.num_keys * width;
  return memory;
}

struct LatentMemory {
  bf16* all = nullptr;  // [ranks, given_rows, width]
  bf16* own = nullptr;  // what this rank gives, where the others' lies
};

inline LatentMemory latent_memory(const StepTables& tables, BindResources& resources,
                                  std::int64_t width) {
  const std::int64_t given = tables.context.given_rows() * width;
  LatentMemory memory{.all = reinterpret_cast<bf16*>(resources.scratch(
                          "latents of ranks",
                          static_cast<std::size_t>(tables.context_ranks * given) * sizeof(bf16)))};
  memory.own = memory.all + tables.context.rank * given;
  return memory;
}

}  // namespace orrery
