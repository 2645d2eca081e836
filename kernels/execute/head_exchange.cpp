#include "kernels/execute/head_exchange.h"

#include <string>
#include <utility>
#include <vector>

#include "kernels/comm/collectives/collective.h"
#include "kernels/execute/collective_operands.h"
#include "kernels/execute/column_slices.h"

namespace orrery {
namespace {

struct Exchange {
  ColumnParts pack;
  CollectiveCall call;
};

}  // namespace

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
  std::vector<Exchange> exchanges;
  for (std::size_t i = 0; i < context.reads.size(); ++i) {
    const Operand& input = context.reads[i];
    const Operand& output = context.writes[i];
    const std::int64_t bytes = bytes_in(*input.tensor);
    const std::int64_t rows = rows_of(*input.tensor);
    const std::int64_t columns = bytes / rows / communicator.size();
    if (input.data == nullptr || output.data == nullptr || bytes != bytes_in(*output.tensor) ||
        columns * rows * communicator.size() != bytes) {
      refuse(context, "of heads that do not divide over its ranks");
    }
    // Tensors have scratch of their own: all are packed before the first is sent.
    std::byte* const scratch = context.resources.scratch("all_to_all of heads " + std::to_string(i),
                                                         static_cast<std::size_t>(bytes));
    exchanges.push_back({.pack = {.from = bytes_at(input),
                                  .to = scratch,
                                  .rows = rows,
                                  .columns = columns,
                                  .parts = communicator.size()},
                         .call = {.kind = CollectiveKind::kAllToAll,
                                  .dtype = DType::kInt8,
                                  .count = bytes,
                                  .input = scratch,
                                  .output = output.data}});
  }
  return [exchanges = std::move(exchanges), &communicator](const cuda::Stream& stream) {
    for (const Exchange& exchange : exchanges) pack_columns(stream, exchange.pack);
    ORRERY_NCCL(cuda::nccl().group_start());
    for (const Exchange& exchange : exchanges) {
      nccl_collective(communicator, stream, exchange.call);
    }
    ORRERY_NCCL(cuda::nccl().group_end());
  };
}

}  // namespace orrery
