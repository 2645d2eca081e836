#include "kernels/execute/copied_exchange.h"

#include <vector>

#include "kernels/execute/collective_operands.h"
#include "kernels/execute/copy_workspace.h"
#include "kernels/execute/host_counts.h"
#include "kernels/execute/rank_team.h"

namespace orrery {
namespace {

using cuda::Stream;

bool is_captured(const Stream& stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  ORRERY_CUDA(cudaStreamIsCapturing(stream.get(), &status));
  return status != cudaStreamCaptureStatusNone;
}

// Of a step whose launches are counted, and which does not run: as many copies, of a row of the
// rank's own each.
void count_copies(const Stream& stream, const CopiedRows& rows,
                  const std::vector<std::int64_t>& sent) {
  for (const std::int64_t count : sent) {
    if (count == 0) continue;
    ORRERY_CUDA(cudaMemcpyAsync(rows.to, rows.from, static_cast<std::size_t>(rows.row_bytes),
                                cudaMemcpyDeviceToDevice, stream.get()));
    if (rows.from_scales == nullptr) continue;
    ORRERY_CUDA(cudaMemcpyAsync(rows.to_scales, rows.from_scales, sizeof(float),
                                cudaMemcpyDeviceToDevice, stream.get()));
  }
}

}  // namespace

Launch bind_copied_exchange(const CollectiveContext& context) {
  if (context.reads.size() != 3 || context.writes.size() != 1) {
    refuse(context, "by copies of " + std::to_string(context.reads.size()) + " tensors into " +
                        std::to_string(context.writes.size()) +
                        ", expected rows with counts of what is sent and received into rows");
  }
  if (context.group.copies == nullptr) {
    refuse(context, "by copies among GPUs that do not reach each other's memory");
  }
  const CountedRows counted = counted_rows(context);
  const CopiedRows rows{.from = bytes_at(counted.input),
                        .from_scales = counted.input.scales,
                        .to = bytes_at(counted.output),
                        .to_scales = counted.output.scales,
                        .row_bytes = counted.row_bytes};
  const int num_ranks = static_cast<int>(context.group.ranks.size());
  return [=, sent_counts = counted.sent, received_counts = counted.received,
          place = context.group.place(context.rank), &workspace = *context.group.copies,
          &team = context.team](const Stream& stream) {
    const std::vector<std::int64_t> sent = sent_counts.rows(num_ranks, "sends");
    if (is_captured(stream)) {
      count_copies(stream, rows, sent);
      return;
    }
    const auto meet = [&] { team.wait_until([&] { return workspace.is_met(place); }); };
    workspace.begin(place, stream, rows, received_counts.rows(num_ranks, "receives"));
    meet();
    workspace.send(place, stream, rows, sent);
    meet();
    workspace.end(place, stream);
  };
}

}  // namespace orrery
