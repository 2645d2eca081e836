#pragma once
// clang-format off: macro-made operand lists

// Products of widths that only grouped_gemm takes; see wgmma.cuh.

#include "kernels/cuda/wgmma.cuh"

namespace orrery::sm90 {

#define ORRERY_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define ORRERY_D8(i) ORRERY_D4(i), ORRERY_D4(i + 4)
#define ORRERY_D16(i) ORRERY_D8(i), ORRERY_D8(i + 8)
#define ORRERY_D32(i) ORRERY_D16(i), ORRERY_D16(i + 16)
#define ORRERY_D64(i) ORRERY_D32(i), ORRERY_D32(i + 32)

template <>
struct Wgmma<144> {
  __device__ static void bf16_ss(float (&d)[72], std::uint64_t a, std::uint64_t b, bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %74, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n144k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
        "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
        "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, "
        "%66, %67, %68, %69, %70, %71},"
        "%72, %73, p, 1, 1, 0, 0;\n}\n"
        : ORRERY_D64(0), ORRERY_D8(64)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
  }
  __device__ static void fp8_ss(float (&d)[72], std::uint64_t a, std::uint64_t b, bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %74, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n144k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
        "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "
        "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "
        "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, "
        "%66, %67, %68, %69, %70, %71},"
        "%72, %73, p, 1, 1;\n}\n"
        : ORRERY_D64(0), ORRERY_D8(64)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
  }
};

#undef ORRERY_D4
#undef ORRERY_D8
#undef ORRERY_D16
#undef ORRERY_D32
#undef ORRERY_D64

}  // namespace orrery::sm90
