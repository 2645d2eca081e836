#include "kernels/execute/collective_binding.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/comm/collectives/collective.h"
#include "kernels/execute/all_to_all_v.h"
#include "kernels/execute/collective_operands.h"
#include "kernels/execute/column_slices.h"
#include "kernels/execute/context_exchange.h"
#include "kernels/execute/copied_exchange.h"
#include "kernels/execute/copies_between_ranks.h"
#include "kernels/execute/even_exchange.h"
#include "kernels/execute/head_exchange.h"
#include "kernels/execute/pack_columns.h"
#include "kernels/execute/rank_program.h"
#include "kernels/execute/side_exchange.h"
#include "kernels/rows/embedding/embedding.h"

namespace orrery {
namespace {

using cuda::Communicator;
using cuda::Stream;

const Communicator& communicator_of(const CollectiveContext& context) {
  return context.group.communicator(context.rank);
}

void copy(const Stream& stream, void* to, const void* from, std::int64_t bytes) {
  ORRERY_CUDA(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice,
                              stream.get()));
}

const Operand& only(const CollectiveContext& context, std::span<const Operand> operands) {
  if (operands.size() != 1 || operands[0].data == nullptr) {
    refuse(context, "of " + std::to_string(operands.size()) +
                        " tensors, expected one, present on all ranks");
  }
  return operands[0];
}

// What the op reads but for counts, which say how many rows matter: all are moved.
std::span<const Operand> without_counts(const CollectiveContext& context) {
  const bool has_counts = context.reads.size() == 2 && context.writes.size() == 1 &&
                          context.reads[1].tensor->dtype == DType::kInt32;
  return has_counts ? context.reads.first(1) : context.reads;
}

// Our kernel and its peers; null: NCCL serves the op.
struct OwnAllReduce {
  AllReduceAlgorithm algorithm = AllReduceAlgorithm::kNccl;
  const AllReducePeers* peers = nullptr;
};
OwnAllReduce own_all_reduce(const CollectiveContext& context) {
  const CommGroup& group = context.group;
  const auto own = group.all_reduce.find(context.op.stream);
  if (own == group.all_reduce.end()) return {};
  const int size = static_cast<int>(group.ranks.size());
  const std::int64_t bytes = bytes_in(*only(context, context.reads).tensor);
  const AllReduceAlgorithm algorithm = choose_all_reduce(bytes, size);
  const AllReducePeers& peers = own->second.peers(group.place(context.rank));
  if (algorithm == AllReduceAlgorithm::kNccl ||
      all_reduce_slot_bytes(algorithm, bytes, size) > peers.half_bytes) {
    return {};
  }
  return {.algorithm = algorithm, .peers = &peers};
}

Launch bind_all_reduce(const CollectiveContext& context) {
  const Operand& input = only(context, context.reads);
  const Operand& output = only(context, context.writes);
  const DType dtype = input.tensor->dtype;
  const std::int64_t count = num_elements(*input.tensor);
  if (count != num_elements(*output.tensor)) refuse(context, "into a tensor of another size");
  const CollectiveCall call{.kind = CollectiveKind::kAllReduce,
                            .dtype = dtype,
                            .count = count,
                            .input = input.data,
                            .output = output.data};
  if (const OwnAllReduce own = own_all_reduce(context); own.peers != nullptr) {
    return [call, own](const Stream& stream) {
      all_reduce(stream, *own.peers, own.algorithm, call.dtype, call.input, call.output,
                 call.count);
    };
  }
  return [call, &communicator = communicator_of(context)](const Stream& stream) {
    nccl_collective(communicator, stream, call);
  };
}

// Bytes that every rank gives, and where those of all ranks go.
struct Gather {
  const void* share = nullptr;
  void* all = nullptr;
  std::int64_t share_bytes = 0;
};

void gather(const Stream& stream, const Communicator& communicator, const Gather& call) {
  nccl_collective(communicator, stream,
                  {.kind = CollectiveKind::kAllGather,
                   .dtype = DType::kInt8,
                   .count = call.share_bytes * communicator.size(),
                   .input = call.share,
                   .output = call.all});
}

// Rows follow each other: in place, or by way of scratch memory where the last share is cut.
Launch bind_gather_rows(const CollectiveContext& context, const char* purpose, const void* share,
                        void* whole, std::int64_t share_bytes, std::int64_t whole_bytes) {
  const Communicator& communicator = communicator_of(context);
  const std::int64_t all_bytes = share_bytes * communicator.size();
  if (all_bytes < whole_bytes) refuse(context, "of shares that are shorter than the whole");
  if (all_bytes == whole_bytes) {
    return [&communicator, call = Gather{share, whole, share_bytes}](const Stream& stream) {
      gather(stream, communicator, call);
    };
  }
  std::byte* const scratch =
      context.resources.scratch(purpose, static_cast<std::size_t>(all_bytes));
  return [&communicator, call = Gather{share, scratch, share_bytes}, whole,
          whole_bytes](const Stream& stream) {
    gather(stream, communicator, call);
    copy(stream, whole, call.all, whole_bytes);
  };
}

// Blocks of columns one behind the other, [blocks, rows, block bytes], that a tensor of rows has
// side by side; the last may be cut.
struct ColumnBlocks {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::int64_t rows = 0;
  std::int64_t block = 0;    // bytes of a row in a block
  std::int64_t columns = 0;  // bytes of a row
};
void put_side_by_side(const Stream& stream, const ColumnBlocks& blocks) {
  for (std::int64_t at = 0; at < blocks.columns; at += blocks.block) {
    ORRERY_CUDA(cudaMemcpy2DAsync(
        blocks.to + at, static_cast<std::size_t>(blocks.columns), blocks.from + at * blocks.rows,
        static_cast<std::size_t>(blocks.block),
        static_cast<std::size_t>(std::min(blocks.block, blocks.columns - at)),
        static_cast<std::size_t>(blocks.rows), cudaMemcpyDeviceToDevice, stream.get()));
  }
}

// Columns: shares arrive one behind the other, [ranks, rows, columns], and are interleaved.
Launch bind_gather_columns(const CollectiveContext& context, const Operand& share,
                           const Operand& whole) {
  const Communicator& communicator = communicator_of(context);
  const std::int64_t rows = rows_of(*share.tensor);
  const std::int64_t share_bytes = bytes_in(*share.tensor);
  const std::int64_t columns = share_bytes / rows;
  const std::int64_t whole_columns = bytes_in(*whole.tensor) / rows;
  if (columns * communicator.size() < whole_columns) {
    refuse(context, "of shares that are shorter than the whole");
  }
  std::byte* const scratch = context.resources.scratch(
      "all_gather", static_cast<std::size_t>(share_bytes * communicator.size()));
  const ColumnBlocks blocks{.from = scratch,
                            .to = bytes_at(whole),
                            .rows = rows,
                            .block = columns,
                            .columns = whole_columns};
  return [=, &communicator, call = Gather{share.data, scratch, share_bytes}](const Stream& stream) {
    gather(stream, communicator, call);
    put_side_by_side(stream, blocks);
  };
}

// Which part of a whole each has aside.
bool is_as_long(const Axis& a, const Axis& b) { return a.name == b.name && a.size == b.size; }

// The axis in which they differ; 0 where the whole has one more axis in front, the ranks.
std::size_t gathered_axis(const CollectiveContext& context, const Operand& share,
                          const Operand& whole) {
  const auto& axes = share.tensor->axes;
  const auto& whole_axes = whole.tensor->axes;
  if (whole_axes.size() == axes.size() + 1 &&
      std::ranges::equal(axes, std::span(whole_axes).subspan(1), is_as_long)) {
    return 0;
  }
  if (axes.size() != whole_axes.size()) refuse(context, "into a tensor of another shape");
  return static_cast<std::size_t>(std::ranges::mismatch(axes, whole_axes).in1 - axes.begin());
}

Launch bind_gather_one(const CollectiveContext& context, const Operand& share,
                       const Operand& whole) {
  const std::size_t axis = gathered_axis(context, share, whole);
  const bool is_last = axis + 1 >= share.tensor->axes.size();
  const std::int64_t rows = rows_of(*share.tensor);
  if (axis > 0 && !is_last) refuse(context, "along an axis that is neither first nor last");
  if (axis > 0 && rows > 1) {
    if (share.scales != nullptr) refuse(context, "of fp8 columns, expected rows");
    return bind_gather_columns(context, share, whole);
  }
  Launch data = bind_gather_rows(context, "all_gather", share.data, whole.data,
                                 bytes_in(*share.tensor), bytes_in(*whole.tensor));
  if (share.scales == nullptr) return data;
  constexpr std::int64_t kFloat = sizeof(float);
  Launch scales = bind_gather_rows(context, "all_gather scales", share.scales, whole.scales,
                                   rows * kFloat, rows_of(*whole.tensor) * kFloat);
  return [data = std::move(data), scales = std::move(scales)](const Stream& stream) {
    data(stream);
    scales(stream);
  };
}

// A launch of each tensor into its own.
template <typename Bind>
Launch bind_each(const CollectiveContext& context, const Bind& bind) {
  const auto reads = without_counts(context);
  if (reads.empty() || reads.size() != context.writes.size()) {
    refuse(context, "of " + std::to_string(reads.size()) + " tensors into " +
                        std::to_string(context.writes.size()) + ", expected as many");
  }
  std::vector<Launch> launches;
  launches.reserve(reads.size());
  for (std::size_t i = 0; i < reads.size(); ++i) {
    launches.push_back(
        bind(only(context, reads.subspan(i, 1)), only(context, context.writes.subspan(i, 1))));
  }
  if (launches.size() == 1) return std::move(launches.front());
  return [launches = std::move(launches)](const Stream& stream) {
    for (const Launch& launch : launches) launch(stream);
  };
}

// Of an op whose shares all are whole parts, one behind the other, of what they are gathered into;
// else none.
std::vector<Gather> whole_gathers(const CollectiveContext& context) {
  const auto reads = without_counts(context);
  const std::int64_t size = communicator_of(context).size();
  if (reads.size() != context.writes.size()) return {};
  std::vector<Gather> gathers;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    const Operand& share = reads[i];
    const Operand& whole = context.writes[i];
    if (share.data == nullptr || whole.data == nullptr) return {};
    const std::int64_t rows = rows_of(*share.tensor);
    const bool is_by_rows = gathered_axis(context, share, whole) == 0 || rows == 1;
    const std::int64_t bytes = bytes_in(*share.tensor);
    if (!is_by_rows || bytes * size != bytes_in(*whole.tensor)) return {};
    gathers.push_back({share.data, whole.data, bytes});
    if (share.scales == nullptr) continue;
    constexpr std::int64_t kFloat = sizeof(float);
    gathers.push_back({share.scales, whole.scales, rows * kFloat});
  }
  return gathers;
}

// Several gathers without anything between them are one call, and one kernel, of NCCL.
Launch bind_all_gather(const CollectiveContext& context) {
  if (std::vector<Gather> gathers = whole_gathers(context); gathers.size() > 1) {
    return [gathers = std::move(gathers),
            &communicator = communicator_of(context)](const Stream& stream) {
      ORRERY_NCCL(cuda::nccl().group_start());
      for (const Gather& call : gathers) gather(stream, communicator, call);
      ORRERY_NCCL(cuda::nccl().group_end());
    };
  }
  return bind_each(context, [&](const Operand& share, const Operand& whole) {
    return bind_gather_one(context, share, whole);
  });
}

Launch bind_gather_sampled(const CollectiveContext& context) {
  const Operand& input = only(context, context.reads);
  const Operand& output = only(context, context.writes);
  const Communicator& communicator = communicator_of(context);
  const std::int64_t columns = output.tensor->axes.back().size;
  const std::int64_t rows = rows_of(*output.tensor) / communicator.size();
  if (input.tensor->dtype != DType::kBf16 || input.tensor->axes.back().size != columns ||
      rows * communicator.size() != rows_of(*output.tensor)) {
    refuse(context, "of sampled rows, expected as many of each rank, whole and in bf16");
  }
  Gather call{.share = input.data,
              .all = output.data,
              .share_bytes = bytes_in(*output.tensor) / communicator.size()};
  if (context.tables.samples_all_rows) {
    return [call, &communicator](const Stream& stream) { gather(stream, communicator, call); };
  }
  auto* const picked = reinterpret_cast<bf16*>(context.resources.scratch(
      "sampled rows of a rank", static_cast<std::size_t>(call.share_bytes)));
  call.share = picked;
  return [=, &communicator, ids = context.tables.sampled_rows,
          from = static_cast<const bf16*>(input.data),
          tokens = rows_of(*input.tensor)](const Stream& stream) {
    embedding(stream, ids, from, picked, rows, columns, tokens);
    gather(stream, communicator, call);
  };
}

// Parts of the columns one behind the other, in scratch memory, for NCCL to add up.
Launch bind_reduce_scatter_columns(const CollectiveContext& context, const Operand& whole,
                                   const Operand& share) {
  const Communicator& communicator = communicator_of(context);
  const std::int64_t bytes = bytes_in(*share.tensor);
  const std::int64_t rows = rows_of(*share.tensor);
  if (bytes * communicator.size() != bytes_in(*whole.tensor)) {
    refuse(context, "into slices that are not those of all ranks");
  }
  std::byte* const scratch = context.resources.scratch(
      "reduce_scatter columns", static_cast<std::size_t>(bytes * communicator.size()));
  const ColumnParts parts{.from = bytes_at(whole),
                          .to = scratch,
                          .rows = rows,
                          .columns = bytes / rows,
                          .parts = communicator.size()};
  const CollectiveCall call{.kind = CollectiveKind::kReduceScatter,
                            .dtype = whole.tensor->dtype,
                            .count = num_elements(*whole.tensor),
                            .input = scratch,
                            .output = share.data};
  return [=, &communicator](const Stream& stream) {
    pack_columns(stream, std::span(&parts, 1));
    nccl_collective(communicator, stream, call);
  };
}

Launch bind_reduce_scatter(const CollectiveContext& context) {
  const Operand& whole = only(context, without_counts(context));
  const Operand& share = only(context, context.writes);
  const Communicator& communicator = communicator_of(context);
  const auto& axes = whole.tensor->axes;
  if (axes.size() > 1 && axes.size() == share.tensor->axes.size() &&
      share.tensor->axes.back().size < axes.back().size) {
    return bind_reduce_scatter_columns(context, whole, share);
  }
  CollectiveCall call{.kind = CollectiveKind::kReduceScatter,
                      .dtype = whole.tensor->dtype,
                      .count = num_elements(*share.tensor) * communicator.size(),
                      .input = whole.data,
                      .output = share.data};
  const std::int64_t whole_count = num_elements(*whole.tensor);
  if (call.count < whole_count) refuse(context, "into shares that are shorter than the whole");
  if (call.count == whole_count) {
    return [call, &communicator](const Stream& stream) {
      nccl_collective(communicator, stream, call);
    };
  }
  // Padding rows hold whatever was there: they reach padding rows of the last share alone.
  const std::int64_t whole_bytes = bytes_in(*whole.tensor);
  const std::int64_t all_bytes = whole_bytes / whole_count * call.count;
  std::byte* const scratch =
      context.resources.scratch("reduce_scatter", static_cast<std::size_t>(all_bytes));
  call.input = scratch;
  return [call, &communicator, scratch, from = whole.data, whole_bytes](const Stream& stream) {
    copy(stream, scratch, from, whole_bytes);
    nccl_collective(communicator, stream, call);
  };
}

Launch bind_equal_all_to_all(const CollectiveContext& context, const Operand& input,
                             const Operand& output) {
  const std::int64_t bytes = bytes_in(*input.tensor);
  if (bytes != bytes_in(*output.tensor)) refuse(context, "into a tensor of another size");
  CollectiveCall call{.kind = CollectiveKind::kAllToAll,
                      .dtype = DType::kInt8,
                      .count = bytes,
                      .input = input.data,
                      .output = output.data};
  CollectiveCall scales = call;
  scales.count = rows_of(*input.tensor) * std::int64_t{sizeof(float)};
  scales.input = input.scales;
  scales.output = output.scales;
  return [call, scales, &communicator = communicator_of(context)](const Stream& stream) {
    nccl_collective(communicator, stream, call);
    if (scales.input != nullptr) nccl_collective(communicator, stream, scales);
  };
}

Launch bind_columns_of_ranks(const CollectiveContext& context, const Operand& input,
                             const Operand& output) {
  const Communicator& communicator = communicator_of(context);
  if (input.scales != nullptr) refuse(context, "of fp8 columns, expected rows");
  const std::int64_t bytes = bytes_in(*input.tensor);
  const std::int64_t rows = rows_of(*output.tensor);
  std::byte* const received =
      context.resources.scratch("all_to_all of columns", static_cast<std::size_t>(bytes));
  const ColumnBlocks blocks{.from = received,
                            .to = bytes_at(output),
                            .rows = rows,
                            .block = bytes / rows_of(*input.tensor),
                            .columns = bytes_in(*output.tensor) / rows};
  const CollectiveCall call{.kind = CollectiveKind::kAllToAll,
                            .dtype = DType::kInt8,
                            .count = bytes,
                            .input = input.data,
                            .output = received};
  return [=, &communicator](const Stream& stream) {
    nccl_collective(communicator, stream, call);
    put_side_by_side(stream, blocks);
  };
}

Launch bind_all_to_all(const CollectiveContext& context) {
  const bool has_counts = context.reads.size() == 3 && context.writes.size() == 1;
  if (has_counts) return bind_all_to_all_v(context);
  const bool are_counts = std::ranges::all_of(
      context.reads, [](const Operand& read) { return read.tensor->dtype == DType::kInt32; });
  Launch each = bind_each(context, [&](const Operand& input, const Operand& output) {
    const bool are_columns = brings_columns(CollectiveKind::kAllToAll, *input.tensor,
                                            *output.tensor, communicator_of(context).size());
    return are_columns ? bind_columns_of_ranks(context, input, output)
                       : bind_equal_all_to_all(context, input, output);
  });
  if (!are_counts || context.writes.size() == 1) return each;
  return [each = std::move(each)](const Stream& stream) {
    ORRERY_NCCL(cuda::nccl().group_start());
    each(stream);
    ORRERY_NCCL(cuda::nccl().group_end());
  };
}

}  // namespace

bool is_own_all_reduce(const CollectiveContext& context) {
  return std::get<CommOp>(context.op.body).kind == CollectiveKind::kAllReduce &&
         own_all_reduce(context).peers != nullptr;
}

Launch bind_collective(const CollectiveContext& context) {
  if (context.move != RowMove::kNone) return bind_even_exchange(context);
  if (std::get<CommOp>(context.op.body).is_copied) return bind_copied_exchange(context);
  if (swaps_cache(context)) return bind_cache_swap(context);
  if (const auto sides = one_way(context.plan, context.op)) {
    return bind_side_exchange(context, *sides);
  }
  if (gathers_cache(context)) return bind_cache_gather(context);
  if (gathers_decodes(context)) return bind_decode_gather(context);
  if (exchanges_prompts(context)) return bind_prompt_exchange(context);
  if (sends_slice(context)) return bind_slice(context);
  if (deals_heads(context)) return bind_head_exchange(context);
  if (gathers_sampled(context.plan, context.op)) return bind_gather_sampled(context);
  switch (std::get<CommOp>(context.op.body).kind) {
    case CollectiveKind::kAllReduce:
      return bind_all_reduce(context);
    case CollectiveKind::kAllGather:
      return bind_all_gather(context);
    case CollectiveKind::kReduceScatter:
      return bind_reduce_scatter(context);
    case CollectiveKind::kAllToAll:
      return bind_all_to_all(context);
    case CollectiveKind::kSendRecv:
      refuse(context, "in which both ranks send");
    case CollectiveKind::kBroadcast:
      return bind_broadcast(context);
  }
  throw std::invalid_argument("a collective of an unknown kind");
}

}  // namespace orrery
