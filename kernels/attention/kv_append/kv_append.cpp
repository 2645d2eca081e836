#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// A copy; the conversion to an 8-bit cache counts one product per element.
Work work(DType dtype, const Dims& dims) {
  const double tokens = size(dims, "tokens");
  const double width = size(dims, "width");
  const double elements = tokens * width;
  const bool converts = bytes_per_element(dtype) < bytes_per_element(DType::kBf16);
  return {.flops = Flops(converts ? elements : 0),
          .bytes_read = Bytes(elements * bytes_per_element(DType::kBf16)),
          .bytes_written = Bytes(elements * bytes_per_element(dtype))};
}

}  // namespace

// A step may append to a layer in several calls.
KernelSpec kv_append_spec() {
  return {.name = "kv_append",
          .summary = "stores keys and values of new tokens in the KV cache; dtype is the KV format",
          .dims = {{.name = "tokens", .meaning = "new tokens"},
                   {.name = "width", .meaning = "elements stored per token"}},
          .slots =
              {{.name = "x", .axes = "tokens.., ..", .type = SlotType::kBf16},
               {.name = "rotated",
                .axes = "tokens.., ..",
                .type = SlotType::kBf16,
                .is_optional = true},
               {.name = "cache", .axes = "tokens.., width", .use = Use::kCache, .is_result = true}},
          .work = work,
          // Scattered rows: 3.5 of 4.8 TB/s on H200 (docs/data.md); small kernels in a CUDA
          // graph take 2 to 2.5 us. The spread is an assumption.
          .prior = {.arithmetic = Arithmetic::kRows,
                    .flops = 0.6,
                    .hbm = 0.73,
                    .floor = us(2),
                    .spread = 0.2,
                    .reads_what_was_written = true},
          .executed = {DType::kBf16, DType::kFp8}};
}

}  // namespace orrery
