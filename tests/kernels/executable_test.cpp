#include "kernels/executable.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/kernel_spec.h"

namespace orrery {
namespace {

TEST(Executable, KernelsOfEnginesAreExecutedInNoDtype) {
  for (const char* const name :
       {"moe", "moe_route", "sparse_index", "mla_prefill_module", "nowhere"}) {
    EXPECT_TRUE(executed_dtypes(name).empty()) << name;
  }
  for (const KernelSpec& spec : kernel_specs()) {
    for (const DType dtype : executed_dtypes(spec.name)) {
      EXPECT_TRUE(dtype == DType::kBf16 || dtype == DType::kFp16 || dtype == DType::kFp8 ||
                  dtype == DType::kFp32)
          << spec.name;
    }
  }
  EXPECT_EQ(executed_dtypes("gemm").size(), 2U);
}

TEST(Executable, RefusalsOfOneReasonAreOneLineThatNamesTheFirstOps) {
  const std::vector<Refusal> refusals = {
      {.kernel = "moe bf16", .reason = "because", .ops = {"a", "b", "c", "d", "e"}},
      {.kernel = "gemm int8", .reason = "why not", .ops = {"f"}}};
  EXPECT_EQ(to_text(refusals), "moe bf16 (a, b, c and 2 more): because; gemm int8 (f): why not");
}

}  // namespace
}  // namespace orrery
