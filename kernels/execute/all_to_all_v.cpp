#include "kernels/execute/all_to_all_v.h"

#include <span>
#include <vector>

#include "kernels/execute/collective_operands.h"
#include "kernels/execute/host_counts.h"

namespace orrery {
namespace {

using cuda::Communicator;
using cuda::nccl;
using cuda::Stream;

// Rows of `bytes` each that one rank has for or from every rank, one behind the other.
struct RowParts {
  std::byte* data = nullptr;
  std::int64_t bytes = 0;
};

void all_to_all_v(const Stream& stream, const Communicator& communicator, const RowParts& from,
                  std::span<const std::int64_t> sent, const RowParts& to,
                  std::span<const std::int64_t> received) {
  std::int64_t send_at = 0;
  std::int64_t receive_at = 0;
  for (std::size_t peer = 0; peer < sent.size(); ++peer) {
    const auto rank = static_cast<int>(peer);
    if (sent[peer] > 0) {
      ORRERY_NCCL(nccl().send(from.data + send_at * from.bytes,
                              static_cast<std::size_t>(sent[peer] * from.bytes), ncclInt8, rank,
                              communicator.get(), stream.get()));
    }
    if (received[peer] > 0) {
      ORRERY_NCCL(nccl().recv(to.data + receive_at * to.bytes,
                              static_cast<std::size_t>(received[peer] * to.bytes), ncclInt8, rank,
                              communicator.get(), stream.get()));
    }
    send_at += sent[peer];
    receive_at += received[peer];
  }
}

}  // namespace

Launch bind_all_to_all_v(const CollectiveContext& context) {
  const CountedRows rows = counted_rows(context);
  return [rows, &communicator = context.group.communicator(context.rank)](const Stream& stream) {
    const std::vector<std::int64_t> sent = rows.sent.rows(communicator.size(), "sends");
    const std::vector<std::int64_t> received = rows.received.rows(communicator.size(), "receives");
    constexpr std::int64_t kFloat = sizeof(float);
    ORRERY_NCCL(nccl().group_start());
    all_to_all_v(stream, communicator, {bytes_at(rows.input), rows.row_bytes}, sent,
                 {bytes_at(rows.output), rows.row_bytes}, received);
    if (rows.input.scales != nullptr) {
      all_to_all_v(stream, communicator, {reinterpret_cast<std::byte*>(rows.input.scales), kFloat},
                   sent, {reinterpret_cast<std::byte*>(rows.output.scales), kFloat}, received);
    }
    ORRERY_NCCL(nccl().group_end());
  };
}

}  // namespace orrery
