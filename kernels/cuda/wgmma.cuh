#pragma once

// Warpgroup matrix products of Hopper (wgmma, sm_90a): D[64, N] (+)= A[64, K] B[N, K]^T in fp32,
// K = 16 for bf16 and fp16, 32 for fp8 (e4m3). 128 threads run one product together; it is
// asynchronous between wgmma_fence() and wgmma_wait(). PTX ISA 9.0, 9.7.15.
//   D   N / 2 floats per thread: thread t holds rows 16 (t / 32) + (t % 32) / 4 + {0, 8} and
//       columns 8 j + 2 (t % 4) + {0, 1}: d[4 j + {0, 1}] of the first row, d[4 j + {2, 3}] of the
//       second
//   A   a descriptor (shared memory), or 4 registers per thread in D's layout (bf16 pairs)
//   B   a descriptor
//   accumulate  false overwrites D
// A or B may be MN-major (transposed) for bf16 and fp16: kTransposed = 1.

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/dtypes.h"

namespace orrery::sm90 {

// N of the products below.
template <int N>
struct Wgmma;

// Bindings of n floats of d and the text of the first n operands. Macros, since asm needs literals.
#define ORRERY_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define ORRERY_D8(i) ORRERY_D4(i), ORRERY_D4(i + 4)
#define ORRERY_D16(i) ORRERY_D8(i), ORRERY_D8(i + 8)
#define ORRERY_D32(i) ORRERY_D16(i), ORRERY_D16(i + 16)
#define ORRERY_D64(i) ORRERY_D32(i), ORRERY_D32(i + 32)
#define ORRERY_T4 "%0, %1, %2, %3"
#define ORRERY_T8 ORRERY_T4 ", %4, %5, %6, %7"
#define ORRERY_T16 ORRERY_T8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define ORRERY_T32 \
  ORRERY_T16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define ORRERY_T48 \
  ORRERY_T32       \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define ORRERY_T64 \
  ORRERY_T48       \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define ORRERY_T72 ORRERY_T64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define ORRERY_T80 ORRERY_T72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define ORRERY_T88 ORRERY_T80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define ORRERY_T96 ORRERY_T88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define ORRERY_T112 \
  ORRERY_T96        \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define ORRERY_T128                                                                              \
  ORRERY_T112                                                                                    \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
  "%127"

// The product of two descriptors of elements of 16 bits, of this name and PTX type: f floats per
// thread, their text, the numbers f + 1 to f + 4 of operands after them, and their bindings. A
// macro for the same reason.
#define ORRERY_WGMMA_SS(name, type, n, f, text, f1, f2, f3, f4, ...)                             \
  template <int kTransposedA = 0, int kTransposedB = 0>                                          \
  __device__ static void name(float(&d)[f], std::uint64_t a, std::uint64_t b, bool accumulate) { \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #f2                                        \
                 ", 0;\n"                                                                        \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" text       \
                 "},"                                                                            \
                 "%" #f ", %" #f1 ", p, 1, 1, %" #f3 ", %" #f4 ";\n}\n"                          \
                 : __VA_ARGS__                                                                   \
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kTransposedA),         \
                   "n"(kTransposedB));                                                           \
  }
// All products of n columns, likewise.
#define ORRERY_WGMMA(n, f, text, f1, f2, f3, f4, f5, f6, ...)                                   \
  template <>                                                                                   \
  struct Wgmma<n> {                                                                             \
    ORRERY_WGMMA_SS(bf16_ss, "bf16", n, f, text, f1, f2, f3, f4, __VA_ARGS__)                   \
    ORRERY_WGMMA_SS(fp16_ss, "f16", n, f, text, f1, f2, f3, f4, __VA_ARGS__)                    \
    template <int kTransposedB = 0>                                                             \
    __device__ static void bf16_rs(float (&d)[f], const std::uint32_t (&a)[4], std::uint64_t b, \
                                   bool accumulate) {                                           \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #f5                                     \
                   ", 0;\n"                                                                     \
                   "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" text            \
                   "},"                                                                         \
                   "{%" #f ", %" #f1 ", %" #f2 ", %" #f3 "}, %" #f4 ", p, 1, 1, %" #f6 ";\n}\n" \
                   : __VA_ARGS__                                                                \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                        \
                     "r"(static_cast<int>(accumulate)), "n"(kTransposedB));                     \
    }                                                                                           \
    __device__ static void fp8_ss(float (&d)[f], std::uint64_t a, std::uint64_t b,              \
                                  bool accumulate) {                                            \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #f2                                     \
                   ", 0;\n"                                                                     \
                   "wgmma.mma_async.sync.aligned.m64n" #n "k32.f32.e4m3.e4m3 {" text            \
                   "},"                                                                         \
                   "%" #f ", %" #f1 ", p, 1, 1;\n}\n"                                           \
                   : __VA_ARGS__                                                                \
                   : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));                        \
    }                                                                                           \
  }

ORRERY_WGMMA(8, 4, ORRERY_T4, 5, 6, 7, 8, 9, 10, ORRERY_D4(0));
ORRERY_WGMMA(16, 8, ORRERY_T8, 9, 10, 11, 12, 13, 14, ORRERY_D8(0));
ORRERY_WGMMA(32, 16, ORRERY_T16, 17, 18, 19, 20, 21, 22, ORRERY_D16(0));
ORRERY_WGMMA(64, 32, ORRERY_T32, 33, 34, 35, 36, 37, 38, ORRERY_D32(0));
ORRERY_WGMMA(96, 48, ORRERY_T48, 49, 50, 51, 52, 53, 54, ORRERY_D32(0), ORRERY_D16(32));
ORRERY_WGMMA(128, 64, ORRERY_T64, 65, 66, 67, 68, 69, 70, ORRERY_D64(0));
ORRERY_WGMMA(144, 72, ORRERY_T72, 73, 74, 75, 76, 77, 78, ORRERY_D64(0), ORRERY_D8(64));
ORRERY_WGMMA(160, 80, ORRERY_T80, 81, 82, 83, 84, 85, 86, ORRERY_D64(0), ORRERY_D16(64));
ORRERY_WGMMA(176, 88, ORRERY_T88, 89, 90, 91, 92, 93, 94, ORRERY_D64(0), ORRERY_D16(64),
             ORRERY_D8(80));
ORRERY_WGMMA(192, 96, ORRERY_T96, 97, 98, 99, 100, 101, 102, ORRERY_D64(0), ORRERY_D32(64));
ORRERY_WGMMA(224, 112, ORRERY_T112, 113, 114, 115, 116, 117, 118, ORRERY_D64(0), ORRERY_D32(64),
             ORRERY_D16(96));
ORRERY_WGMMA(256, 128, ORRERY_T128, 129, 130, 131, 132, 133, 134, ORRERY_D64(0), ORRERY_D64(64));

#undef ORRERY_WGMMA
#undef ORRERY_WGMMA_SS
#undef ORRERY_T4
#undef ORRERY_T8
#undef ORRERY_T16
#undef ORRERY_T32
#undef ORRERY_T48
#undef ORRERY_T64
#undef ORRERY_T72
#undef ORRERY_T80
#undef ORRERY_T88
#undef ORRERY_T96
#undef ORRERY_T112
#undef ORRERY_T128
#undef ORRERY_D4
#undef ORRERY_D8
#undef ORRERY_D16
#undef ORRERY_D32
#undef ORRERY_D64

// The product of descriptors whose elements are T.
template <typename T, int N>
__device__ void product_ss(float (&d)[N / 2], std::uint64_t a, std::uint64_t b, bool accumulate) {
  if constexpr (std::is_same_v<T, fp8>) {
    Wgmma<N>::fp8_ss(d, a, b, accumulate);
  } else if constexpr (std::is_same_v<T, fp16>) {
    Wgmma<N>::fp16_ss(d, a, b, accumulate);
  } else {
    static_assert(std::is_same_v<T, bf16>);
    Wgmma<N>::bf16_ss(d, a, b, accumulate);
  }
}

}  // namespace orrery::sm90
