#include "kernels/execute/all_to_all_v.h"

#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/execute/collective_operands.h"

namespace orrery {
namespace {

using cuda::Communicator;
using cuda::nccl;
using cuda::Stream;

// Counts on the host, in as many equal parts as there are ranks: rows to or from each.
struct HostCounts {
  const std::int32_t* counts = nullptr;
  std::int64_t per_rank = 0;
  std::int64_t most = 0;  // rows that the tensor has room for

  // Throws std::runtime_error when they do not fit.
  [[nodiscard]] std::vector<std::int64_t> rows(int ranks, const char* what) const {
    std::vector<std::int64_t> rows(static_cast<std::size_t>(ranks));
    std::int64_t sum = 0;
    for (std::int64_t i = 0; i < per_rank * ranks; ++i) {
      const std::int64_t count = counts[i];
      sum += count;
      if (count < 0 || sum > most) {
        throw std::runtime_error("all_to_all " + std::string(what) + " " + std::to_string(sum) +
                                 " rows by its counts, expected 0 to " + std::to_string(most));
      }
      rows[static_cast<std::size_t>(i / per_rank)] += count;
    }
    return rows;
  }
};

HostCounts host_counts(const CollectiveContext& context, const Operand& counts,
                       const Operand& rows) {
  const std::int64_t size = context.group.communicator(context.rank).size();
  const std::int64_t count = num_elements(*counts.tensor);
  const std::string named = "\"" + counts.tensor->name + "\"";
  if (counts.tensor->dtype != DType::kInt32 || count % size != 0) {
    refuse(context, "by counts " + named + ", " + std::to_string(count) + " of " +
                        std::string(to_text(counts.tensor->dtype)) +
                        "; expected i32, as many for each of " + std::to_string(size) + " ranks");
  }
  if (counts.host == nullptr) {
    refuse(context, "by counts " + named +
                        " that the host has not read; expected a d2h_sync op of them before it");
  }
  return {.counts = counts.host, .per_rank = count / size, .most = rows_of(*rows.tensor)};
}

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
  const Operand input = context.reads[0];
  const Operand output = context.writes[0];
  if (input.data == nullptr || output.data == nullptr) {
    refuse(context, "of rows that are not on all ranks");
  }
  const std::int64_t bytes = bytes_in(*input.tensor) / rows_of(*input.tensor);
  if (bytes != bytes_in(*output.tensor) / rows_of(*output.tensor)) {
    refuse(context, "into rows of another size");
  }
  const HostCounts send_counts = host_counts(context, context.reads[1], input);
  const HostCounts receive_counts = host_counts(context, context.reads[2], output);
  return [=, &communicator = context.group.communicator(context.rank)](const Stream& stream) {
    const std::vector<std::int64_t> sent = send_counts.rows(communicator.size(), "sends");
    const std::vector<std::int64_t> received = receive_counts.rows(communicator.size(), "receives");
    constexpr std::int64_t kFloat = sizeof(float);
    ORRERY_NCCL(nccl().group_start());
    all_to_all_v(stream, communicator, {bytes_at(input), bytes}, sent, {bytes_at(output), bytes},
                 received);
    if (input.scales != nullptr) {
      all_to_all_v(stream, communicator, {reinterpret_cast<std::byte*>(input.scales), kFloat}, sent,
                   {reinterpret_cast<std::byte*>(output.scales), kFloat}, received);
    }
    ORRERY_NCCL(nccl().group_end());
  };
}

}  // namespace orrery
