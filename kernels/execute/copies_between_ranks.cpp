#include "kernels/execute/copies_between_ranks.h"

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/execute/collective_operands.h"

namespace orrery {
namespace {

using cuda::Communicator;
using cuda::nccl;
using cuda::Stream;

// Memory that moves as it is.
struct Piece {
  void* data = nullptr;
  std::int64_t bytes = 0;
};
std::vector<Piece> pieces_of(std::span<const Operand> operands) {
  std::vector<Piece> pieces;
  for (const Operand& operand : operands) {
    pieces.push_back({.data = operand.data, .bytes = bytes_in(*operand.tensor)});
    if (operand.scales != nullptr) {
      pieces.push_back({.data = operand.scales,
                        .bytes = rows_of(*operand.tensor) * std::int64_t{sizeof(float)}});
    }
  }
  return pieces;
}

// Place in the group of the first rank on which what the op reads is present.
int sender(const CollectiveContext& context) {
  for (const int rank : context.group.ranks) {
    const auto is_present = [&](TensorId id) {
      return context.plan.contains(context.plan.tensors()[static_cast<std::size_t>(id)].ranks,
                                   rank);
    };
    if (std::ranges::all_of(context.op.reads, is_present)) return context.group.place(rank);
  }
  refuse(context, "of tensors that are together on none of its ranks");
}

}  // namespace

Launch bind_broadcast(const CollectiveContext& context) {
  const Communicator& communicator = context.group.communicator(context.rank);
  const int root = sender(context);
  std::vector<Piece> from = pieces_of(context.reads);
  std::vector<Piece> to = pieces_of(context.writes);
  if (from.size() != to.size()) refuse(context, "of tensors into tensors of other kinds");
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (from[i].bytes != to[i].bytes) refuse(context, "into a tensor of another size");
    // The sender may have no copy of what arrives, nor the others of what is sent.
    if (to[i].data == nullptr) to[i].data = from[i].data;
    if (from[i].data == nullptr) from[i].data = to[i].data;
  }
  return [&communicator, root, from, to](const Stream& stream) {
    ORRERY_NCCL(nccl().group_start());
    for (std::size_t i = 0; i < from.size(); ++i) {
      ORRERY_NCCL(nccl().broadcast(from[i].data, to[i].data,
                                   static_cast<std::size_t>(from[i].bytes), ncclInt8, root,
                                   communicator.get(), stream.get()));
    }
    ORRERY_NCCL(nccl().group_end());
  };
}

}  // namespace orrery
