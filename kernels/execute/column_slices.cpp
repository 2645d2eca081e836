#include "kernels/execute/column_slices.h"

#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/execute/rank_program.h"

namespace orrery {
namespace {

std::int64_t width(const Tensor& tensor) {
  return tensor.axes.empty() ? 1 : tensor.axes.back().size;
}

}  // namespace

bool sends_slice(const CollectiveContext& context) {
  return !context.reads.empty() && context.writes.size() == 1 &&
         sends_slice(context.plan, std::get<CommOp>(context.op.body).kind, *context.reads[0].tensor,
                     *context.writes[0].tensor);
}

Launch bind_slice(const CollectiveContext& context) {
  const Operand& whole = context.reads[0];
  Tensor narrow = *whole.tensor;
  narrow.axes.back() = context.writes[0].tensor->axes.back();
  const auto columns = context.plan.ranges_of(narrow.axes.back(), context.rank);
  if (columns.size() != 1 || columns[0].count != width(narrow) || whole.data == nullptr ||
      context.plan.whole_size(narrow.axes.back()) != width(*whole.tensor)) {
    throw std::invalid_argument("a collective of " + std::to_string(width(narrow)) + " of the " +
                                std::to_string(width(*whole.tensor)) + " columns of \"" +
                                whole.tensor->name + "\", expected one stretch of them");
  }
  const auto bytes = static_cast<std::int64_t>(std::ceil(bytes_of(narrow).value()));
  const std::int64_t rows = num_elements(narrow) / width(narrow);
  const std::int64_t slice = bytes / rows;
  std::byte* const packed =
      context.resources.scratch("slice of columns", static_cast<std::size_t>(bytes));
  std::vector<Operand> reads(context.reads.begin(), context.reads.end());
  reads[0].data = packed;
  reads[0].tensor = &narrow;
  CollectiveContext sliced = context;
  sliced.reads = reads;
  Launch send = bind_collective(sliced);
  const std::byte* const from =
      static_cast<const std::byte*>(whole.data) + columns[0].global * (slice / width(narrow));
  const auto whole_slice = static_cast<std::size_t>(slice / width(narrow) * width(*whole.tensor));
  return [=, send = std::move(send)](const cuda::Stream& stream) {
    const auto narrow_bytes = static_cast<std::size_t>(slice);
    ORRERY_CUDA(cudaMemcpy2DAsync(packed, narrow_bytes, from, whole_slice, narrow_bytes,
                                  static_cast<std::size_t>(rows), cudaMemcpyDeviceToDevice,
                                  stream.get()));
    send(stream);
  };
}

}  // namespace orrery
