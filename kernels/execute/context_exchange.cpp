#include "kernels/execute/context_exchange.h"

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention/kv_append/kv_append.h"
#include "kernels/attention/kv_gather/kv_gather.h"
#include "kernels/binding/context_memory.h"
#include "kernels/comm/collectives/collective.h"
#include "kernels/execute/collective_operands.h"
#include "kernels/execute/context_share.h"
#include "kernels/execute/pack_columns.h"
#include "kernels/rows/embedding/embedding.h"

namespace orrery {
namespace {

bool is_of_kind(const CollectiveContext& context, CollectiveKind kind) {
  return std::get<CommOp>(context.op.body).kind == kind && !context.reads.empty() &&
         !context.writes.empty();
}

// Latents and rotated keys of all tokens, [num_keys, latent] and [num_keys, rope].
Launch bind_latent_gather(const CollectiveContext& context) {
  const KvShape& shape = context.kv.shape();
  const ContextTables tables = context.tables.context;
  const Operand& latents = context.writes[0];
  const Operand& rotated = context.writes[1];
  const KvGatherShape keys{.tokens = tables.num_keys,
                           .sequences = 1,
                           .latent = latents.tensor->axes.back().size,
                           .rope = rotated.tensor->axes.back().size};
  if (keys.latent + keys.rope != shape.head_dim || latents.tensor->dtype != DType::kBf16 ||
      rotated.tensor->dtype != DType::kBf16 || rows_of(*latents.tensor) < tables.num_keys ||
      rows_of(*rotated.tensor) < tables.num_keys) {
    refuse(context, "of latents, expected all tokens of the prompts in bf16");
  }
  const PagedKv<bf16> cache{.keys = reinterpret_cast<bf16*>(context.kv.keys(context.kv_layer)),
                            .block_size = shape.block_size,
                            .num_blocks = static_cast<std::int32_t>(shape.num_blocks)};
  const LatentMemory memory = latent_memory(context.tables, context.resources, shape.head_dim);
  const std::int64_t all_rows = tables.given_rows() * context.tables.context_ranks;
  const std::int64_t slots = shape.num_blocks * shape.block_size;
  const CollectiveCall call{.kind = CollectiveKind::kAllGather,
                            .dtype = DType::kBf16,
                            .count = all_rows * shape.head_dim,
                            .input = memory.own,
                            .output = memory.all};
  // What the ranks have given is a cache in blocks of one row, of one sequence.
  const PagedKv<const bf16> given{.keys = memory.all,
                                  .block_table = tables.key_sources,
                                  .blocks_per_sequence = tables.num_keys,
                                  .block_size = 1,
                                  .num_blocks = static_cast<std::int32_t>(all_rows)};
  const LatentRows rows{.latents = static_cast<const bf16*>(latents.data),
                        .rotated = static_cast<const bf16*>(rotated.data),
                        .latent = keys.latent,
                        .rope = keys.rope};
  return
      [=, width = shape.head_dim, starts = context.tables.prefill_key_starts,
       to_latents = static_cast<bf16*>(latents.data), to_rotated = static_cast<bf16*>(rotated.data),
       &communicator = context.group.communicator(context.rank)](const cuda::Stream& stream) {
        embedding(stream, tables.cached_slots, cache.keys, memory.own + tables.prompt_rows * width,
                  tables.cached_rows, width, slots);
        nccl_collective(communicator, stream, call);
        kv_gather(stream, given, starts, keys, to_latents, to_rotated);
        kv_append_latent(stream, rows, tables.key_slots, cache, tables.num_keys);
      };
}

}  // namespace

bool gathers_cache(const CollectiveContext& context) {
  return is_of_kind(context, CollectiveKind::kAllGather) &&
         context.reads[0].tensor->role == TensorRole::kKvCache;
}

Launch bind_cache_gather(const CollectiveContext& context) {
  const KvShape& shape = context.kv.shape();
  if (shape.dtype != DType::kBf16 || context.kv_layer < 0 ||
      context.tables.context.prompt_rows == 0 ||
      context.writes.size() != (shape.is_latent ? 2U : 1U)) {
    refuse(context, "of a cache, expected keys and values, or latents, of prompts in bf16");
  }
  if (shape.is_latent) return bind_latent_gather(context);
  const std::int64_t width = shape.kv_heads * shape.head_dim;
  const std::int64_t slots = shape.num_blocks * shape.block_size;
  const PagedKv<bf16> cache{.keys = reinterpret_cast<bf16*>(context.kv.keys(context.kv_layer)),
                            .values = reinterpret_cast<bf16*>(context.kv.values(context.kv_layer)),
                            .block_size = shape.block_size,
                            .num_blocks = static_cast<std::int32_t>(shape.num_blocks)};
  const ContextMemory memory = context_memory(context.tables, context.resources, width);
  const ContextTables tables = context.tables.context;
  const std::int64_t given = tables.given_rows();
  const std::int64_t all_rows = 2 * given * context.tables.context_ranks;
  const CollectiveCall call{.kind = CollectiveKind::kAllGather,
                            .dtype = DType::kBf16,
                            .count = all_rows * width,
                            .input = memory.own,
                            .output = memory.all};
  return [=, &communicator = context.group.communicator(context.rank)](const cuda::Stream& stream) {
    bf16* const cached = memory.own + tables.prompt_rows * width;
    const auto take = [&](const bf16* from, bf16* to) {
      embedding(stream, tables.cached_slots, from, to, tables.cached_rows, width, slots);
    };
    take(cache.keys, cached);
    take(cache.values, cached + given * width);
    nccl_collective(communicator, stream, call);
    const auto place = [&](const bf16* from, bf16* to) {
      embedding(stream, tables.key_sources, from, to, tables.num_keys, width, all_rows - given);
    };
    place(memory.all, memory.keys);
    place(memory.all + given * width, memory.values);
    kv_append(stream, memory.keys, memory.values, tables.key_slots, cache, tables.num_keys, width);
  };
}

bool swaps_cache(const CollectiveContext& context) {
  return is_of_kind(context, CollectiveKind::kSendRecv) &&
         context.reads[0].tensor->role == TensorRole::kKvCache;
}

Launch bind_cache_swap(const CollectiveContext& context) {
  const KvShape& shape = context.kv.shape();
  const ContextTables& tables = context.tables.context;
  const auto pair = context.plan.ranks(context.op.ranks);
  if (shape.dtype != DType::kBf16 || shape.is_latent || !tables.is_ring() || pair.size() != 2) {
    refuse(context, "of a cache, expected keys and values of prompts in bf16 between two ranks");
  }
  const int other = pair[0] == context.rank ? 1 : 0;
  const std::int64_t width = shape.kv_heads * shape.head_dim;
  const ContextMemory memory = context_memory(context.tables, context.kernel_resources, width);
  const std::int64_t count = 2 * tables.given_rows() * width;
  const int others_rank = tables.rank + pair[static_cast<std::size_t>(other)] - context.rank;
  bf16* const received = memory.all + others_rank * count;
  return [=, given = memory.own,
          &communicator = context.group.communicator(context.rank)](const cuda::Stream& stream) {
    const cuda::NcclLibrary& nccl = cuda::nccl();
    const auto size = static_cast<std::size_t>(count);
    ORRERY_NCCL(nccl.group_start());
    ORRERY_NCCL(nccl.send(given, size, ncclBfloat16, other, communicator.get(), stream.get()));
    ORRERY_NCCL(nccl.recv(received, size, ncclBfloat16, other, communicator.get(), stream.get()));
    ORRERY_NCCL(nccl.group_end());
  };
}

bool gathers_decodes(const CollectiveContext& context) {
  return is_of_kind(context, CollectiveKind::kAllGather) &&
         context.writes[0].tensor->axes.front().name == axis::kDecodes;
}

namespace {

// Some columns of rows, one behind the other.
struct ColumnCopy {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::int64_t rows = 0;
  std::int64_t stride = 0;   // bytes of a row
  std::int64_t columns = 0;  // of these
};

void copy_columns(const cuda::Stream& stream, const ColumnCopy& copy) {
  const auto width = static_cast<std::size_t>(copy.columns);
  ORRERY_CUDA(cudaMemcpy2DAsync(copy.to, width, copy.from, static_cast<std::size_t>(copy.stride),
                                width, static_cast<std::size_t>(copy.rows),
                                cudaMemcpyDeviceToDevice, stream.get()));
}

// The rank's decodes in `own`, whose last rows they are, to `all`.
ColumnCopy own_decodes(const CollectiveContext& context, const Operand& own, const Operand& all) {
  const int ranks = context.group.communicator(context.rank).size();
  const std::int64_t rows = rows_of(*all.tensor) / ranks;
  const std::int64_t columns = bytes_in(*all.tensor) / rows_of(*all.tensor);
  const std::int64_t stride = bytes_in(*own.tensor) / rows_of(*own.tensor);
  const std::int64_t first = own.first_column * (columns / all.tensor->axes.back().size);
  if (own.data == nullptr || all.data == nullptr || own.tensor->dtype != all.tensor->dtype ||
      own.scales != nullptr || rows_of(*own.tensor) < rows || first + columns > stride) {
    refuse(context, "of decodes, expected their rows behind those of prompts");
  }
  const std::int64_t skipped = rows_of(*own.tensor) - rows;
  return {.from = bytes_at(own) + skipped * stride + first,
          .rows = rows,
          .stride = stride,
          .columns = columns};
}

}  // namespace

Launch bind_decode_gather(const CollectiveContext& context) {
  const cuda::Communicator& communicator = context.group.communicator(context.rank);
  if (context.reads.size() != context.writes.size()) refuse(context, "into other tensors");
  std::vector<ColumnCopy> copies;
  std::vector<CollectiveCall> calls;
  for (std::size_t i = 0; i < context.reads.size(); ++i) {
    ColumnCopy own = own_decodes(context, context.reads[i], context.writes[i]);
    const std::byte* sent = own.from;
    if (own.columns < own.stride) {
      own.to = context.resources.scratch("all_gather of decodes " + std::to_string(i),
                                         static_cast<std::size_t>(own.rows * own.columns));
      sent = own.to;
      copies.push_back(own);
    }
    calls.push_back({.kind = CollectiveKind::kAllGather,
                     .dtype = DType::kInt8,
                     .count = bytes_in(*context.writes[i].tensor),
                     .input = sent,
                     .output = context.writes[i].data});
  }
  return [copies = std::move(copies), calls = std::move(calls),
          &communicator](const cuda::Stream& stream) {
    for (const ColumnCopy& copy : copies) copy_columns(stream, copy);
    ORRERY_NCCL(cuda::nccl().group_start());
    for (const CollectiveCall& call : calls) nccl_collective(communicator, stream, call);
    ORRERY_NCCL(cuda::nccl().group_end());
  };
}

bool exchanges_prompts(const CollectiveContext& context) {
  return is_of_kind(context, CollectiveKind::kAllToAll) && context.reads.size() == 1 &&
         has_part_of_tokens(context.plan, *context.reads[0].tensor) &&
         !has_part_of_tokens(context.plan, *context.writes[0].tensor);
}

Launch bind_prompt_exchange(const CollectiveContext& context) {
  const cuda::Communicator& communicator = context.group.communicator(context.rank);
  const Operand& input = context.reads[0];
  const Operand& output = context.writes[0];
  const ContextTables tables = context.tables.context;
  const std::int64_t bytes = bytes_in(*input.tensor);
  const std::int64_t columns = output.tensor->axes.back().size;
  if (input.tensor->dtype != DType::kBf16 || output.tensor->dtype != DType::kBf16 ||
      rows_of(*input.tensor) != tables.prompt_rows || rows_of(*output.tensor) != tables.step_rows ||
      columns * communicator.size() != input.tensor->axes.back().size) {
    refuse(context, "of rows of prompts, expected heads in bf16 that divide over its ranks");
  }
  std::byte* const packed =
      context.resources.scratch("all_to_all of prompts", static_cast<std::size_t>(2 * bytes));
  std::byte* const received = packed + bytes;
  const ColumnParts parts{.from = bytes_at(input),
                          .to = packed,
                          .rows = tables.prompt_rows,
                          .columns = columns * static_cast<std::int64_t>(sizeof(bf16)),
                          .parts = communicator.size()};
  const CollectiveCall call{.kind = CollectiveKind::kAllToAll,
                            .dtype = DType::kInt8,
                            .count = bytes,
                            .input = packed,
                            .output = received};
  return [=, &communicator](const cuda::Stream& stream) {
    pack_columns(stream, std::span(&parts, 1));
    nccl_collective(communicator, stream, call);
    embedding(stream, tables.row_sources, reinterpret_cast<const bf16*>(received),
              static_cast<bf16*>(output.data), tables.step_rows, columns,
              tables.prompt_rows * communicator.size());
  };
}

}  // namespace orrery
