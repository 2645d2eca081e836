#include "kernels/execute/copy_workspace.h"

#include <utility>

#include "kernels/cuda/devices.h"

namespace orrery {
namespace {

void copy(const cuda::Stream& stream, void* to, const void* from, std::int64_t bytes) {
  ORRERY_CUDA(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice,
                              stream.get()));
}

}  // namespace

CopyWorkspace::CopyWorkspace(std::span<const int> devices)
    : board_(static_cast<int>(devices.size())) {
  events_.reserve(devices.size());
  for (const int device : devices) {
    const cuda::DeviceGuard guard(device);
    events_.emplace_back();
  }
}

void CopyWorkspace::begin(int place, const cuda::Stream& stream, const CopiedRows& rows,
                          std::vector<std::int64_t> received) {
  at(place).ready.record(stream);
  board_.offer(place, {.rows = rows.to, .scales = rows.to_scales, .received = std::move(received)});
}

void CopyWorkspace::send(int place, const cuda::Stream& stream, const CopiedRows& rows,
                         std::span<const std::int64_t> sent) {
  constexpr std::int64_t kFloat = sizeof(float);
  for (const RowCopy& one : row_copies(board_, place, sent)) {
    const OfferedRows& to = board_.offered(one.peer);
    if (one.peer != place) at(one.peer).ready.hold(stream);
    copy(stream, to.rows + one.to_row * rows.row_bytes, rows.from + one.from_row * rows.row_bytes,
         one.count * rows.row_bytes);
    if (rows.from_scales == nullptr) continue;
    copy(stream, to.scales + one.to_row, rows.from_scales + one.from_row, one.count * kFloat);
  }
  at(place).copied.record(stream);
  board_.sent(place);
}

void CopyWorkspace::end(int place, const cuda::Stream& stream) {
  const std::vector<std::int64_t>& received = board_.offered(place).received;
  for (int peer = 0; peer < board_.num_ranks(); ++peer) {
    const bool has_rows = received[static_cast<std::size_t>(peer)] > 0;
    if (peer != place && has_rows) at(peer).copied.hold(stream);
  }
}

}  // namespace orrery
