#pragma once

// The output of a kernel that writes activations [rows, columns] in bf16 or fp8 with scales, and
// its comparison with a reference that is not quantised.

#include <span>
#include <vector>

#include "kernels/harness/operand_sets.h"

namespace orrery {

enum class ActivationFormat : std::uint8_t { kBf16, kFp8Rowwise, kFp8Static, kFp8Block };

// Of an op: its dtype, and for fp8 the variant "static_scale". Throws std::invalid_argument for a
// dtype that is none of them, or fp8_block where the kernel does not take it.
ActivationFormat activation_format(const KernelOp& op, bool takes_blocks = false);

class ActivationSets {
 public:
  static constexpr float kStaticScale = 0.03125f;  // clamps beyond 14

  // `spare_rows` behind them are memory that the kernel must not write.
  ActivationSets(ActivationFormat format, std::int64_t rows, std::int64_t columns, int sets,
                 std::int64_t spare_rows = 0);
  [[nodiscard]] ActivationFormat format() const { return format_; }
  // Of the format: null otherwise.
  [[nodiscard]] bf16* y(int set) const {
    return format_ == ActivationFormat::kBf16 ? bf16_[set] : nullptr;
  }
  [[nodiscard]] fp8* y_fp8(int set) const {
    return format_ == ActivationFormat::kBf16 ? nullptr : fp8_[set];
  }
  [[nodiscard]] float* scales(int set) const { return scales_[set]; }
  void reset(const cuda::Stream& stream) const;
  // The values (stored value times scale) against `ref`, and scales against those that follow from
  // it, within `scale_bound`; and that spare rows are as reset.
  [[nodiscard]] std::vector<Difference> differences(const cuda::Stream& stream,
                                                    std::span<const double> ref,
                                                    double scale_bound = 1e-5) const;
  // A row in the middle.
  [[nodiscard]] Tile tile() const;

 private:
  ActivationFormat format_;
  std::size_t rows_;
  std::size_t spare_rows_;
  std::size_t columns_;
  std::size_t group_;  // elements that share a scale
  OutputSets<bf16> bf16_;
  OutputSets<fp8> fp8_;
  OutputSets<float> scales_;
};

}  // namespace orrery
