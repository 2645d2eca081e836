#include <cstdint>

#include "kernels/compare/c_api.h"
#include "kernels/residual_add/residual_add.h"

namespace orrery::compare {

extern "C" int orrery_residual_add(void* stream, void* residual, const void* x, std::int64_t tokens,
                                   std::int64_t hidden) {
  return guarded(stream, [&](const cuda::Stream& on) {
    residual_add(on, static_cast<bf16*>(residual), static_cast<const bf16*>(x), tokens, hidden);
  });
}

}  // namespace orrery::compare
