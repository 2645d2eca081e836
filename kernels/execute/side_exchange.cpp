#include "kernels/execute/side_exchange.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/execute/collective_operands.h"
#include "kernels/execute/side_rows.h"

namespace orrery {
namespace {

using cuda::nccl;
using cuda::Stream;

// Memory to or from one rank of the communicator.
struct Piece {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  int peer = 0;
};

std::vector<PeerRows> rows_between(const CollectiveContext& context, const Sides& sides,
                                   std::int64_t sent, std::int64_t received) {
  try {
    return side_rows(sides, context.rank, sent, received);
  } catch (const std::invalid_argument& error) {
    refuse(context, error.what());
  }
}

// Those of tensor `i`, of which this rank has one end.
void add_pieces(const CollectiveContext& context, const Sides& sides, std::size_t i, bool sends,
                std::vector<Piece>& pieces) {
  const Operand& input = context.reads[i];
  const Operand& output = context.writes[i];
  const Operand& own = sends ? input : output;
  const std::int64_t sent = rows_of(*input.tensor);
  const std::int64_t received = rows_of(*output.tensor);
  const std::int64_t row_bytes = bytes_in(*own.tensor) / rows_of(*own.tensor);
  if (input.tensor->dtype != output.tensor->dtype ||
      bytes_in(*input.tensor) / sent != bytes_in(*output.tensor) / received) {
    refuse(context, "between two sides, into rows of another size");
  }
  if (own.data == nullptr) refuse(context, "between two sides, of rows that are not there");
  constexpr std::int64_t kFloat = sizeof(float);
  for (const PeerRows& rows : rows_between(context, sides, sent, received)) {
    const int peer = context.group.place(rows.peer);
    pieces.push_back({.data = bytes_at(own) + rows.first * row_bytes,
                      .bytes = static_cast<std::size_t>(rows.count * row_bytes),
                      .peer = peer});
    if (own.scales == nullptr) continue;
    pieces.push_back({.data = reinterpret_cast<std::byte*>(own.scales + rows.first),
                      .bytes = static_cast<std::size_t>(rows.count * kFloat),
                      .peer = peer});
  }
}

}  // namespace

Launch bind_side_exchange(const CollectiveContext& context, const Sides& sides) {
  if (context.reads.size() != context.writes.size()) {
    refuse(context, "between two sides, of " + std::to_string(context.reads.size()) +
                        " tensors into " + std::to_string(context.writes.size()) +
                        ", expected as many");
  }
  const bool sends = std::ranges::find(sides.senders, context.rank) != sides.senders.end();
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < context.reads.size(); ++i) {
    add_pieces(context, sides, i, sends, pieces);
  }
  return [&communicator = context.group.communicator(context.rank), sends,
          pieces = std::move(pieces)](const Stream& stream) {
    ORRERY_NCCL(nccl().group_start());
    for (const Piece& piece : pieces) {
      if (sends) {
        ORRERY_NCCL(nccl().send(piece.data, piece.bytes, ncclInt8, piece.peer, communicator.get(),
                                stream.get()));
      } else {
        ORRERY_NCCL(nccl().recv(piece.data, piece.bytes, ncclInt8, piece.peer, communicator.get(),
                                stream.get()));
      }
    }
    ORRERY_NCCL(nccl().group_end());
  };
}

}  // namespace orrery
