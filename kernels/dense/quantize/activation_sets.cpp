#include "kernels/dense/quantize/activation_sets.h"

#include <stdexcept>

#include "kernels/dense/quantize/reference.h"

namespace orrery {
namespace {

constexpr std::size_t kBlock = 128;

std::size_t elements(ActivationFormat format, bool of_bf16, std::int64_t rows,
                     std::int64_t columns) {
  return (format == ActivationFormat::kBf16) == of_bf16 ? static_cast<std::size_t>(rows * columns)
                                                        : 0;
}

std::size_t group_of(ActivationFormat format, std::size_t columns) {
  return format == ActivationFormat::kFp8Block ? kBlock : columns;
}

std::size_t num_scales(ActivationFormat format, std::size_t rows, std::size_t columns) {
  const bool dynamic =
      format == ActivationFormat::kFp8Rowwise || format == ActivationFormat::kFp8Block;
  const std::size_t group = group_of(format, columns);
  return dynamic ? rows * ((columns + group - 1) / group) : 0;
}

}  // namespace

ActivationFormat activation_format(const KernelOp& op, bool takes_blocks) {
  if (op.dtype == DType::kBf16) return ActivationFormat::kBf16;
  if (op.dtype == DType::kFp8Block && takes_blocks) return ActivationFormat::kFp8Block;
  if (op.dtype == DType::kFp8) {
    return variant(op.dims, "static_scale") != 0 ? ActivationFormat::kFp8Static
                                                 : ActivationFormat::kFp8Rowwise;
  }
  throw std::invalid_argument(op.kernel + " does not take " + std::string(to_text(op.dtype)) +
                              ", expected bf16 or fp8" + (takes_blocks ? " or fp8_block" : ""));
}

ActivationSets::ActivationSets(ActivationFormat format, std::int64_t rows, std::int64_t columns,
                               int sets, std::int64_t spare_rows)
    : format_(format),
      rows_(static_cast<std::size_t>(rows)),
      spare_rows_(static_cast<std::size_t>(spare_rows)),
      columns_(static_cast<std::size_t>(columns)),
      group_(group_of(format, columns_)),
      bf16_(elements(format, true, rows + spare_rows, columns), sets),
      fp8_(elements(format, false, rows + spare_rows, columns), sets),
      scales_(num_scales(format, rows_ + spare_rows_, columns_), sets) {}

void ActivationSets::reset(const cuda::Stream& stream) const {
  bf16_.reset(stream);
  fp8_.reset(stream);
  scales_.reset(stream);
}

std::vector<Difference> ActivationSets::differences(const cuda::Stream& stream,
                                                    std::span<const double> ref,
                                                    double scale_bound) const {
  const bool is_bf16 = format_ == ActivationFormat::kBf16;
  std::vector<double> values = is_bf16 ? bf16_.host(stream) : fp8_.host(stream);
  std::vector<double> scales = scales_.host(stream);
  std::vector<Difference> found;
  if (spare_rows_ > 0) {
    const std::size_t written = cut_written(values, rows_ * columns_) +
                                cut_written(scales, scales.size() / (rows_ + spare_rows_) * rows_);
    found.push_back({.what = "written past the rows", .error = static_cast<double>(written)});
  }
  if (is_bf16) {
    found.push_back(difference("y", values, ref, kBf16Bound));
    return found;
  }
  if (format_ == ActivationFormat::kFp8Static) {
    for (double& value : values) value *= kStaticScale;
    found.push_back(difference("y", values, ref, kFp8Bound));
    return found;
  }
  const std::size_t groups = (columns_ + group_ - 1) / group_;
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] *= scales[i / columns_ * groups + i % columns_ / group_];
  }
  found.push_back(difference("y", values, ref, kFp8Bound));
  found.push_back(
      difference("scales", scales, reference::quantize_scales(ref, columns_, group_), scale_bound));
  return found;
}

Tile ActivationSets::tile() const {
  const std::size_t first = rows_ / 2 * columns_;
  return format_ == ActivationFormat::kBf16 ? bf16_.tile("a row of y", first, columns_)
                                            : fp8_.tile("a row of y", first, columns_);
}

}  // namespace orrery
