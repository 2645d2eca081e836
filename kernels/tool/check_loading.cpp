#include <array>
#include <chrono>
#include <cstdio>
#include <future>
#include <string>

#include "kernels/cuda/gate.h"
#include "kernels/dense/batched_gemm/batched_gemm.h"
#include "kernels/dense/gemm/gemm.h"
#include "kernels/tool/checks.h"

namespace orrery::tool {
namespace {

constexpr std::chrono::seconds kLimit{2};

// Whether `launch`, which may load code, returns while a kernel waits on another stream, as one of
// a collective does for the other ranks.
template <typename Launch>
bool returns_beside_a_kernel(const Launch& launch) {
  int device = 0;
  ORRERY_CUDA(cudaGetDevice(&device));
  const cuda::Stream waits;
  const cuda::Stream stream;
  cuda::Gate gate;
  gate.close(waits);  // once before, to be loaded itself
  gate.open();
  waits.synchronize();
  gate.close(waits);
  auto launched = std::async(std::launch::async, [&] {
    ORRERY_CUDA(cudaSetDevice(device));
    launch(stream);
  });
  const bool returns = launched.wait_for(kLimit) == std::future_status::ready;
  gate.open();
  launched.get();
  stream.synchronize();
  waits.synchronize();
  return returns;
}

class LoadingCheck {
 public:
  template <typename Launch>
  void check(const std::string& name, const Launch& launch) {
    const bool returns = returns_beside_a_kernel(launch);
    ++(returns ? count_.passed : count_.failed);
    std::printf("%s first launch beside a kernel that waits, %s%s\n", returns ? "ok  " : "FAIL",
                name.c_str(), returns ? "" : "  waits for it");
    std::fflush(stdout);
  }
  [[nodiscard]] CheckCount count() const { return count_; }

 private:
  CheckCount count_;
};

std::size_t count(std::int64_t a, std::int64_t b) { return static_cast<std::size_t>(a * b); }

void check_gemm(LoadingCheck& check, const GemmShape& shape) {
  const std::size_t element = shape.dtype == DType::kFp8 ? 1 : 2;
  const cuda::DeviceBuffer<std::byte> x(count(shape.m, shape.k) * element);
  const cuda::DeviceBuffer<std::byte> w(count(shape.n, shape.k) * element);
  const cuda::DeviceBuffer<bf16> y(count(shape.m, shape.n));
  const cuda::DeviceBuffer<float> scales(count(shape.m + shape.n, 1));
  const GemmPlan plan(shape);
  if (plan.choice().tile) return;  // a kernel of ours
  check.check("gemm m=" + std::to_string(shape.m) + " n=" + std::to_string(shape.n) +
                  " k=" + std::to_string(shape.k) + " " + std::string(to_text(shape.dtype)),
              [&](const cuda::Stream& stream) {
                plan.launch(stream, {.x = x.get(),
                                     .w = w.get(),
                                     .y = y.get(),
                                     .x_scale = scales.get(),
                                     .w_scale = scales.get() + shape.m});
              });
}

void check_batched_gemm(LoadingCheck& check, const BatchedGemmShape& shape) {
  const cuda::DeviceBuffer<bf16> x(count(shape.batch, shape.m * shape.k));
  const cuda::DeviceBuffer<bf16> w(count(shape.batch, shape.n * shape.k));
  const cuda::DeviceBuffer<bf16> y(count(shape.batch, shape.m * shape.n));
  const BatchedGemmPlan plan(shape);
  check.check("batched_gemm batch=" + std::to_string(shape.batch) +
                  " m=" + std::to_string(shape.m) + " n=" + std::to_string(shape.n) +
                  " k=" + std::to_string(shape.k),
              [&](const cuda::Stream& stream) {
                plan.launch(stream, {.x = x.get(), .w = w.get(), .y = y.get()});
              });
}

}  // namespace

CheckCount check_loading() {
  LoadingCheck check;
  // Of several sizes: the library has their kernels in different files.
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{128, 151936, 2048},
                                  {144, 2048, 4096},
                                  {200, 1040, 528},
                                  {512, 5120, 2048},
                                  {4096, 6144, 4096}}) {
      check_gemm(check, {.dtype = dtype, .m = m, .n = n, .k = k, .scaling = Fp8Scaling::kRowwise});
    }
  }
  check_batched_gemm(check, {.batch = 16, .m = 8, .n = 512, .k = 128});
  check_batched_gemm(check, {.batch = 16, .m = 256, .n = 128, .k = 512, .w_is_transposed = true});
  return check.count();
}

}  // namespace orrery::tool
