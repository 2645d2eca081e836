#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

// A copy; what an 8-bit cache holds counts one product per element.
Work work(DType dtype, const Dims& dims) {
  const double elements =
      size(dims, "tokens") * (size(dims, "kv_lora_rank") + size(dims, "rope_dim"));
  const bool converts = bytes_per_element(dtype) < bytes_per_element(DType::kBf16);
  return {.flops = Flops(converts ? elements : 0),
          .bytes_read = Bytes(elements * bytes_per_element(dtype)),
          .bytes_written = Bytes(elements * bytes_per_element(DType::kBf16))};
}

}  // namespace

KernelSpec kv_gather_spec() {
  return {.name = "kv_gather",
          .summary =
              "takes latents and rotated keys of sequences out of MLA's cache; dtype is the KV "
              "format",
          .dims = {{.name = "tokens", .meaning = "cached tokens of all sequences"},
                   {.name = "kv_lora_rank", .meaning = "elements of the latent of a token"},
                   {.name = "rope_dim", .meaning = "elements of its rotated key"}},
          .slots = {{.name = "cache", .axes = ".., kv_lora_rank+rope_dim", .use = Use::kCache},
                    {.name = "latents",
                     .axes = "tokens, kv_lora_rank",
                     .type = SlotType::kBf16,
                     .is_result = true},
                    {.name = "rotated",
                     .axes = "tokens, rope_dim",
                     .type = SlotType::kBf16,
                     .is_result = true}},
          .work = work,
          // What any kernel gets of which nothing is known.
          .prior = {.arithmetic = Arithmetic::kRows,
                    .flops = 0.6,
                    .hbm = 0.8,
                    .floor = us(2),
                    .spread = 0.3},
          .executed = {DType::kBf16}};
}

}  // namespace orrery
