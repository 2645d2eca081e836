#include "kernels/execute/head_exchange.h"

#include <string>
#include <utility>
#include <vector>

#include "kernels/comm/collectives/collective.h"
#include "kernels/execute/collective_operands.h"
#include "kernels/execute/pack_columns.h"

namespace orrery {

bool deals_heads(const CollectiveContext& context) {
  if (std::get<CommOp>(context.op.body).kind != CollectiveKind::kAllToAll) return false;
  if (context.reads.empty() || context.writes.empty()) return false;
  const auto& from = context.reads[0].tensor->axes;
  const auto& to = context.writes[0].tensor->axes;
  return to.size() == from.size() + 1 && to.front().name == "parts";
}

Launch bind_head_exchange(const CollectiveContext& context) {
  const cuda::Communicator& communicator = context.group.communicator(context.rank);
  if (context.reads.size() != context.writes.size()) refuse(context, "into other tensors");
  std::vector<ColumnParts> packed;
  std::vector<CollectiveCall> calls;
  for (std::size_t i = 0; i < context.reads.size(); ++i) {
    const Operand& input = context.reads[i];
    const Operand& output = context.writes[i];
    const std::int64_t bytes = bytes_in(*input.tensor);
    // Rows of a rank lie together, heads of one do in one row alone.
    const bool deals_rows = input.tensor->axes.back().size == output.tensor->axes.back().size;
    const std::int64_t rows = deals_rows ? 1 : rows_of(*input.tensor);
    const std::int64_t columns = bytes / rows / communicator.size();
    if (input.data == nullptr || output.data == nullptr || bytes != bytes_in(*output.tensor) ||
        columns * rows * communicator.size() != bytes) {
      refuse(context, "of heads, or rows, that do not divide over its ranks");
    }
    const void* sent = input.data;
    if (rows > 1) {
      std::byte* const scratch = context.resources.scratch(
          "all_to_all of heads " + std::to_string(i), static_cast<std::size_t>(bytes));
      packed.push_back({.from = bytes_at(input),
                        .to = scratch,
                        .rows = rows,
                        .columns = columns,
                        .parts = communicator.size()});
      sent = scratch;
    }
    calls.push_back({.kind = CollectiveKind::kAllToAll,
                     .dtype = DType::kInt8,
                     .count = bytes,
                     .input = sent,
                     .output = output.data});
  }
  return [packed = std::move(packed), calls = std::move(calls),
          &communicator](const cuda::Stream& stream) {
    if (!packed.empty()) pack_columns(stream, packed);
    ORRERY_NCCL(cuda::nccl().group_start());
    for (const CollectiveCall& call : calls) nccl_collective(communicator, stream, call);
    ORRERY_NCCL(cuda::nccl().group_end());
  };
}

}  // namespace orrery
