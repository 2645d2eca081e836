#include <cstdint>
#include <map>
#include <tuple>

#include "kernels/compare/c_api.h"
#include "kernels/experts/grouped_gemm/grouped_gemm.h"

namespace orrery::compare {
namespace {

// Plans are made on the first call of a shape and load, outside of any capture.
const GroupedGemmPlan& plan_for(const GroupedGemmShape& shape, const GroupedGemmLoad& load,
                                bool overlap) {
  static std::map<std::tuple<GroupedGemmShape, GroupedGemmLoad, bool>, GroupedGemmPlan> plans;
  const std::tuple key{shape, load, overlap};
  const auto found = plans.find(key);
  if (found != plans.end()) return found->second;
  const GroupedGemmOptions options{.programmatic = true, .overlap = overlap};
  return plans.emplace(key, GroupedGemmPlan(shape, load, options)).first->second;
}

}  // namespace

// fp8 0: bf16, scales null. rows and active: what is expected of the counts.
// overlap: the kernel right before does not write counts.
extern "C" int orrery_grouped_gemm(void* stream, const void* x, const void* w, const void* counts,
                                   void* y, const void* x_scale, const void* w_scale,
                                   std::int64_t max_rows, std::int64_t n, std::int64_t k,
                                   std::int64_t groups, std::int64_t fp8, std::int64_t rows,
                                   std::int64_t active, std::int64_t overlap) {
  return guarded(stream, [&](const cuda::Stream& on) {
    const GroupedGemmShape shape{.dtype = fp8 != 0 ? DType::kFp8 : DType::kBf16,
                                 .max_rows = max_rows,
                                 .n = n,
                                 .k = k,
                                 .groups = groups};
    plan_for(shape, {.rows = rows, .active = active}, overlap != 0)
        .launch(on, {.x = x,
                     .w = w,
                     .counts = static_cast<const std::int32_t*>(counts),
                     .y = static_cast<bf16*>(y),
                     .x_scale = static_cast<const float*>(x_scale),
                     .w_scale = static_cast<const float*>(w_scale)});
  });
}

}  // namespace orrery::compare
