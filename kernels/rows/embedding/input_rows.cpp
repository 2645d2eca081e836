#include "kernels/rows/embedding/input_rows.h"

#include <string>

#include "kernels/rows/embedding/embedding.h"

namespace orrery {

InputRows::InputRows(const BindContext& context, std::string_view slot, const MatrixSize& size)
    : size_(size) {
  const std::span<const Operand> found = parts(context, slot);
  for (const Operand& part : found) source_rows_ += matrix_size(*part.tensor).rows;
  source_ = found.front().data;
  scales_ = found.front().scales;
  require_taken(context, source_rows_ >= size.rows, [&] {
    return std::to_string(size.rows) + " rows of x, of which there are " +
           std::to_string(source_rows_);
  });
  if (source_rows_ == size.rows || context.tables.samples_all_rows) return;
  const DType dtype = found.front().tensor->dtype;
  require_taken(context, dtype == DType::kBf16,
                [&] { return "rows picked from bf16 only, not " + std::string(to_text(dtype)); });
  const auto elements = static_cast<std::size_t>(size.rows * size.columns);
  gathered_ =
      reinterpret_cast<bf16*>(context.resources.scratch("sampled rows", elements * sizeof(bf16)));
  rows_ = context.tables.sampled_rows;
}

void InputRows::gather(const cuda::Stream& stream) const {
  if (gathered_ == nullptr) return;
  embedding(stream, rows_, static_cast<const bf16*>(source_), gathered_, size_.rows, size_.columns,
            source_rows_);
}

}  // namespace orrery
