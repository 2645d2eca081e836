#include "kernels/execute/side_exchange.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cuda/stream_flags.h"
#include "kernels/execute/collective_operands.h"
#include "kernels/execute/side_rows.h"

namespace orrery {
namespace {

using cuda::nccl;
using cuda::Stream;

// Memory to or from one rank.
struct Piece {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  int peer = 0;
  std::byte* landing = nullptr;  // of what is sent, in the memory of `peer`; null: NCCL moves it
};

// A tensor of the op, of which this rank has one end.
struct Exchanged {
  const Operand& own;
  TensorId received;
  std::int64_t sent_rows = 0;  // on each rank
  std::int64_t received_rows = 0;
  std::int64_t row_bytes = 0;
};

bool is_sender(const Sides& sides, int rank) {
  return std::ranges::find(sides.senders, rank) != sides.senders.end();
}

std::vector<PeerRows> rows_between(const CollectiveContext& context, const Sides& sides,
                                   const Exchanged& tensor) {
  try {
    return side_rows(sides, context.rank, tensor.sent_rows, tensor.received_rows);
  } catch (const std::invalid_argument& error) {
    refuse(context, error.what());
  }
}

Exchanged exchanged(const CollectiveContext& context, const Sides& sides, std::size_t i) {
  const Operand& input = context.reads[i];
  const Operand& output = context.writes[i];
  const Operand& own = is_sender(sides, context.rank) ? input : output;
  const std::int64_t sent = rows_of(*input.tensor);
  const std::int64_t received = rows_of(*output.tensor);
  if (input.tensor->dtype != output.tensor->dtype ||
      bytes_in(*input.tensor) / sent != bytes_in(*output.tensor) / received) {
    refuse(context, "between two sides, into rows of another size");
  }
  if (own.data == nullptr) refuse(context, "between two sides, of rows that are not there");
  return {.own = own,
          .received = context.op.writes[i].tensor,
          .sent_rows = sent,
          .received_rows = received,
          .row_bytes = bytes_in(*own.tensor) / rows_of(*own.tensor)};
}

// Where `rows` and their scales land; nulls for those that this rank receives, or NCCL moves.
struct Landing {
  std::byte* rows = nullptr;
  std::byte* scales = nullptr;
};
Landing landing_of(const CollectiveContext& context, const Sides& sides, const Exchanged& tensor,
                   const PeerRows& rows) {
  const SideWorkspace* const workspace = context.sides.workspace;
  if (workspace == nullptr || !is_sender(sides, context.rank)) return {};
  const std::int64_t first =
      first_on_peer(sides, context.rank, rows.peer, tensor.sent_rows, tensor.received_rows);
  const auto id = static_cast<std::size_t>(tensor.received);
  const SideLayout& layout = *context.sides.layout;
  std::byte* const area = workspace->area(rows.peer);
  Landing landing{.rows = area + layout.rows[id] + first * tensor.row_bytes};
  if (tensor.own.scales != nullptr) {
    landing.scales = area + layout.scales[id] + first * std::int64_t{sizeof(float)};
  }
  return landing;
}

void add_pieces(const CollectiveContext& context, const Sides& sides, const Exchanged& tensor,
                std::vector<Piece>& pieces) {
  constexpr std::int64_t kFloat = sizeof(float);
  const Operand& own = tensor.own;
  for (const PeerRows& rows : rows_between(context, sides, tensor)) {
    const Landing landing = landing_of(context, sides, tensor, rows);
    pieces.push_back({.data = bytes_at(own) + rows.first * tensor.row_bytes,
                      .bytes = static_cast<std::size_t>(rows.count * tensor.row_bytes),
                      .peer = rows.peer,
                      .landing = landing.rows});
    if (own.scales == nullptr) continue;
    pieces.push_back({.data = reinterpret_cast<std::byte*>(own.scales + rows.first),
                      .bytes = static_cast<std::size_t>(rows.count * kFloat),
                      .peer = rows.peer,
                      .landing = landing.scales});
  }
}

std::vector<int> peers_of(const std::vector<Piece>& pieces) {
  std::vector<int> peers;
  for (const Piece& piece : pieces) {
    if (std::ranges::find(peers, piece.peer) == peers.end()) peers.push_back(piece.peer);
  }
  return peers;
}

// By NCCL's send and receive, all in one group.
Launch bind_by_nccl(const CollectiveContext& context, bool sends, std::vector<Piece> pieces) {
  for (Piece& piece : pieces) piece.peer = context.group.place(piece.peer);
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

// By copies into the receivers' memory, each of which then finds its flag set.
Launch bind_to_peers(const CollectiveContext& context, std::vector<Piece> pieces) {
  const SideWorkspace& workspace = *context.sides.workspace;
  const std::int64_t flag =
      context.sides.layout->flag(context.sides.task, context.rank, workspace.num_ranks());
  std::vector<std::uint32_t*> flags;
  for (const int peer : peers_of(pieces)) flags.push_back(workspace.flags(peer) + flag);
  return [pieces = std::move(pieces), flags = std::move(flags)](const Stream& stream) {
    for (const Piece& piece : pieces) {
      ORRERY_CUDA(cudaMemcpyAsync(piece.landing, piece.data, piece.bytes, cudaMemcpyDeviceToDevice,
                                  stream.get()));
    }
    cuda::set_flags(stream, flags);
  };
}

// The rows are where they are wanted as soon as all who send some have set their flags.
Launch bind_from_peers(const CollectiveContext& context, const std::vector<Piece>& pieces) {
  const SideWorkspace& workspace = *context.sides.workspace;
  std::vector<std::uint32_t*> flags;
  for (const int peer : peers_of(pieces)) {
    flags.push_back(workspace.flags(context.rank) +
                    context.sides.layout->flag(context.sides.task, peer, workspace.num_ranks()));
  }
  return [flags = std::move(flags)](const Stream& stream) { cuda::await_flags(stream, flags); };
}

}  // namespace

Launch bind_side_exchange(const CollectiveContext& context, const Sides& sides) {
  if (context.reads.size() != context.writes.size()) {
    refuse(context, "between two sides, of " + std::to_string(context.reads.size()) +
                        " tensors into " + std::to_string(context.writes.size()) +
                        ", expected as many");
  }
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < context.reads.size(); ++i) {
    add_pieces(context, sides, exchanged(context, sides, i), pieces);
  }
  const bool sends = is_sender(sides, context.rank);
  if (context.sides.workspace == nullptr) return bind_by_nccl(context, sends, std::move(pieces));
  return sends ? bind_to_peers(context, std::move(pieces)) : bind_from_peers(context, pieces);
}

}  // namespace orrery
