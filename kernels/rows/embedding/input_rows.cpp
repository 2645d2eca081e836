#include "kernels/rows/embedding/input_rows.h"

#include <algorithm>
#include <string>

#include "kernels/rows/embedding/embedding.h"

namespace orrery {

namespace {

bool has_axis(const BindContext& context, std::string_view axis) {
  return std::ranges::find(context.op.dims, axis, &Dim::axis) != context.op.dims.end();
}

// Of a context-parallel rank's rows, where x has those of all ranks.
bool takes_share(const BindContext& context, const Operand& x, std::int64_t rows) {
  const StepTables& tables = context.tables;
  return tables.context.prompt_rows > 0 && has_axis(context, axis::kTokens) &&
         rows == tables.context.prompt_rows + tables.num_decodes &&
         x.tensor->axes.front().split != context.writes.front().tensor->axes.front().split;
}

}  // namespace

InputRows::InputRows(const BindContext& context, std::string_view slot, const MatrixSize& size)
    : size_(size) {
  const std::span<const Operand> found = parts(context, slot);
  for (const Operand& part : found) source_rows_ += matrix_size(*part.tensor).rows;
  source_ = found.front().data;
  scales_ = found.front().scales;
  const bool is_share = found.size() == 1 && takes_share(context, found.front(), size.rows);
  require_taken(context, is_share || source_rows_ >= size.rows, [&] {
    return std::to_string(size.rows) + " rows of x, of which there are " +
           std::to_string(source_rows_);
  });
  // A rank's rows may be as many as are sampled, and others.
  const bool picks_sampled =
      context.tables.context.prompt_rows > 0 && has_axis(context, axis::kSeqs);
  if (!is_share && !picks_sampled && source_rows_ == size.rows) return;
  if (context.tables.samples_all_rows) return;
  const DType dtype = found.front().tensor->dtype;
  require_taken(context, dtype == DType::kBf16,
                [&] { return "rows picked from bf16 only, not " + std::string(to_text(dtype)); });
  const auto elements = static_cast<std::size_t>(size.rows * size.columns);
  gathered_ = reinterpret_cast<bf16*>(context.resources.scratch(
      is_share ? "rows of the rank" : "sampled rows", elements * sizeof(bf16)));
  rows_ = is_share ? context.tables.context.own_rows : context.tables.sampled_rows;
}

void InputRows::gather(const cuda::Stream& stream) const {
  if (gathered_ == nullptr) return;
  embedding(stream, rows_, static_cast<const bf16*>(source_), gathered_, size_.rows, size_.columns,
            source_rows_);
}

}  // namespace orrery
