#pragma once
// clang-format off: macro-made operand lists

// Warpgroup matrix products of Hopper (wgmma, sm_90a): D[64, N] (+)= A[64, K] B[N, K]^T in fp32, K = 16
// for bf16 and 32 for fp8 (e4m3). 128 threads run one product together; it is asynchronous between
// wgmma_fence() and wgmma_wait(). PTX ISA 9.0, 9.7.15.
//   D   N / 2 floats per thread: thread t holds rows 16 (t / 32) + (t % 32) / 4 + {0, 8} and columns
//       8 j + 2 (t % 4) + {0, 1}, in d[4 j + {0, 1}] for the first row and d[4 j + {2, 3}] for the second
//   A   a descriptor (shared memory), or 4 registers per thread in the same layout as D (bf16 pairs)
//   B   a descriptor
//   accumulate  false overwrites D
// A or B may be MN-major (transposed) for bf16: kTransposed = 1.

#include <cstdint>

namespace orrery::sm90 {

// Operand text and bindings of the first n floats of d. Macros, since asm needs literals.
#define ORRERY_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define ORRERY_D8(i) ORRERY_D4(i), ORRERY_D4(i + 4)
#define ORRERY_D16(i) ORRERY_D8(i), ORRERY_D8(i + 8)
#define ORRERY_D32(i) ORRERY_D16(i), ORRERY_D16(i + 16)
#define ORRERY_D64(i) ORRERY_D32(i), ORRERY_D32(i + 32)


// N of the products below.
template <int N>
struct Wgmma;


template <>
struct Wgmma<8> {
  template <int kTransposedA = 0, int kTransposedB = 0>
  __device__ static void bf16_ss(float (&d)[4], std::uint64_t a, std::uint64_t b, bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3},"
        "%4, %5, p, 1, 1, %7, %8;\n}\n"
        : ORRERY_D4(0)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kTransposedA), "n"(kTransposedB));
  }
  template <int kTransposedB = 0>
  __device__ static void bf16_rs(float (&d)[4], const std::uint32_t (&a)[4], std::uint64_t b,
                                 bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %9, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3},"
        "{%4, %5, %6, %7}, %8, p, 1, 1, %10;\n}\n"
        : ORRERY_D4(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)),
          "n"(kTransposedB));
  }
  __device__ static void fp8_ss(float (&d)[4], std::uint64_t a, std::uint64_t b, bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %6, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3},"
        "%4, %5, p, 1, 1;\n}\n"
        : ORRERY_D4(0)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
  }
};

template <>
struct Wgmma<16> {
  template <int kTransposedA = 0, int kTransposedB = 0>
  __device__ static void bf16_ss(float (&d)[8], std::uint64_t a, std::uint64_t b, bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7},"
        "%8, %9, p, 1, 1, %11, %12;\n}\n"
        : ORRERY_D8(0)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kTransposedA), "n"(kTransposedB));
  }
  template <int kTransposedB = 0>
  __device__ static void bf16_rs(float (&d)[8], const std::uint32_t (&a)[4], std::uint64_t b,
                                 bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %13, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7},"
        "{%8, %9, %10, %11}, %12, p, 1, 1, %14;\n}\n"
        : ORRERY_D8(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)),
          "n"(kTransposedB));
  }
  __device__ static void fp8_ss(float (&d)[8], std::uint64_t a, std::uint64_t b, bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %10, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7},"
        "%8, %9, p, 1, 1;\n}\n"
        : ORRERY_D8(0)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
  }
};

template <>
struct Wgmma<32> {
  template <int kTransposedA = 0, int kTransposedB = 0>
  __device__ static void bf16_ss(float (&d)[16], std::uint64_t a, std::uint64_t b, bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15},"
        "%16, %17, p, 1, 1, %19, %20;\n}\n"
        : ORRERY_D16(0)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kTransposedA), "n"(kTransposedB));
  }
  template <int kTransposedB = 0>
  __device__ static void bf16_rs(float (&d)[16], const std::uint32_t (&a)[4], std::uint64_t b,
                                 bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15},"
        "{%16, %17, %18, %19}, %20, p, 1, 1, %22;\n}\n"
        : ORRERY_D16(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)),
          "n"(kTransposedB));
  }
  __device__ static void fp8_ss(float (&d)[16], std::uint64_t a, std::uint64_t b, bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15},"
        "%16, %17, p, 1, 1;\n}\n"
        : ORRERY_D16(0)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
  }
};

template <>
struct Wgmma<64> {
  template <int kTransposedA = 0, int kTransposedB = 0>
  __device__ static void bf16_ss(float (&d)[32], std::uint64_t a, std::uint64_t b, bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},"
        "%32, %33, p, 1, 1, %35, %36;\n}\n"
        : ORRERY_D32(0)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kTransposedA), "n"(kTransposedB));
  }
  template <int kTransposedB = 0>
  __device__ static void bf16_rs(float (&d)[32], const std::uint32_t (&a)[4], std::uint64_t b,
                                 bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},"
        "{%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}\n"
        : ORRERY_D32(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)),
          "n"(kTransposedB));
  }
  __device__ static void fp8_ss(float (&d)[32], std::uint64_t a, std::uint64_t b, bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31},"
        "%32, %33, p, 1, 1;\n}\n"
        : ORRERY_D32(0)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
  }
};

template <>
struct Wgmma<96> {
  template <int kTransposedA = 0, int kTransposedB = 0>
  __device__ static void bf16_ss(float (&d)[48], std::uint64_t a, std::uint64_t b, bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %50, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "
        "%47},"
        "%48, %49, p, 1, 1, %51, %52;\n}\n"
        : ORRERY_D32(0), ORRERY_D16(32)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kTransposedA), "n"(kTransposedB));
  }
  template <int kTransposedB = 0>
  __device__ static void bf16_rs(float (&d)[48], const std::uint32_t (&a)[4], std::uint64_t b,
                                 bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %53, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "
        "%47},"
        "{%48, %49, %50, %51}, %52, p, 1, 1, %54;\n}\n"
        : ORRERY_D32(0), ORRERY_D16(32)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)),
          "n"(kTransposedB));
  }
  __device__ static void fp8_ss(float (&d)[48], std::uint64_t a, std::uint64_t b, bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %50, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n96k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "
        "%47},"
        "%48, %49, p, 1, 1;\n}\n"
        : ORRERY_D32(0), ORRERY_D16(32)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
  }
};

template <>
struct Wgmma<128> {
  template <int kTransposedA = 0, int kTransposedB = 0>
  __device__ static void bf16_ss(float (&d)[64], std::uint64_t a, std::uint64_t b, bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "
        "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63},"
        "%64, %65, p, 1, 1, %67, %68;\n}\n"
        : ORRERY_D64(0)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kTransposedA), "n"(kTransposedB));
  }
  template <int kTransposedB = 0>
  __device__ static void bf16_rs(float (&d)[64], const std::uint32_t (&a)[4], std::uint64_t b,
                                 bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "
        "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63},"
        "{%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}\n"
        : ORRERY_D64(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)),
          "n"(kTransposedB));
  }
  __device__ static void fp8_ss(float (&d)[64], std::uint64_t a, std::uint64_t b, bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "
        "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63},"
        "%64, %65, p, 1, 1;\n}\n"
        : ORRERY_D64(0)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
  }
};

template <>
struct Wgmma<160> {
  template <int kTransposedA = 0, int kTransposedB = 0>
  __device__ static void bf16_ss(float (&d)[80], std::uint64_t a, std::uint64_t b, bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %82, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "
        "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, "
        "%77, %78, %79},"
        "%80, %81, p, 1, 1, %83, %84;\n}\n"
        : ORRERY_D64(0), ORRERY_D16(64)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kTransposedA), "n"(kTransposedB));
  }
  template <int kTransposedB = 0>
  __device__ static void bf16_rs(float (&d)[80], const std::uint32_t (&a)[4], std::uint64_t b,
                                 bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %85, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n160k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "
        "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, "
        "%77, %78, %79},"
        "{%80, %81, %82, %83}, %84, p, 1, 1, %86;\n}\n"
        : ORRERY_D64(0), ORRERY_D16(64)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)),
          "n"(kTransposedB));
  }
  __device__ static void fp8_ss(float (&d)[80], std::uint64_t a, std::uint64_t b, bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %82, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n160k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "
        "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, "
        "%77, %78, %79},"
        "%80, %81, p, 1, 1;\n}\n"
        : ORRERY_D64(0), ORRERY_D16(64)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
  }
};

template <>
struct Wgmma<176> {
  template <int kTransposedA = 0, int kTransposedB = 0>
  __device__ static void bf16_ss(float (&d)[88], std::uint64_t a, std::uint64_t b, bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %90, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n176k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "
        "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, "
        "%77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87},"
        "%88, %89, p, 1, 1, %91, %92;\n}\n"
        : ORRERY_D64(0), ORRERY_D16(64), ORRERY_D8(80)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kTransposedA), "n"(kTransposedB));
  }
  template <int kTransposedB = 0>
  __device__ static void bf16_rs(float (&d)[88], const std::uint32_t (&a)[4], std::uint64_t b,
                                 bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %93, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n176k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "
        "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, "
        "%77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87},"
        "{%88, %89, %90, %91}, %92, p, 1, 1, %94;\n}\n"
        : ORRERY_D64(0), ORRERY_D16(64), ORRERY_D8(80)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)),
          "n"(kTransposedB));
  }
  __device__ static void fp8_ss(float (&d)[88], std::uint64_t a, std::uint64_t b, bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %90, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n176k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "
        "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, "
        "%77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87},"
        "%88, %89, p, 1, 1;\n}\n"
        : ORRERY_D64(0), ORRERY_D16(64), ORRERY_D8(80)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
  }
};

template <>
struct Wgmma<192> {
  template <int kTransposedA = 0, int kTransposedB = 0>
  __device__ static void bf16_ss(float (&d)[96], std::uint64_t a, std::uint64_t b, bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "
        "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, "
        "%77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, "
        "%92, %93, %94, %95},"
        "%96, %97, p, 1, 1, %99, %100;\n}\n"
        : ORRERY_D64(0), ORRERY_D32(64)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kTransposedA), "n"(kTransposedB));
  }
  template <int kTransposedB = 0>
  __device__ static void bf16_rs(float (&d)[96], const std::uint32_t (&a)[4], std::uint64_t b,
                                 bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %101, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "
        "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, "
        "%77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, "
        "%92, %93, %94, %95},"
        "{%96, %97, %98, %99}, %100, p, 1, 1, %102;\n}\n"
        : ORRERY_D64(0), ORRERY_D32(64)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)),
          "n"(kTransposedB));
  }
  __device__ static void fp8_ss(float (&d)[96], std::uint64_t a, std::uint64_t b, bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n192k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "
        "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, "
        "%77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, "
        "%92, %93, %94, %95},"
        "%96, %97, p, 1, 1;\n}\n"
        : ORRERY_D64(0), ORRERY_D32(64)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
  }
};

template <>
struct Wgmma<224> {
  template <int kTransposedA = 0, int kTransposedB = 0>
  __device__ static void bf16_ss(float (&d)[112], std::uint64_t a, std::uint64_t b, bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %114, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n224k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "
        "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, "
        "%77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, "
        "%92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, "
        "%106, %107, %108, %109, %110, %111},"
        "%112, %113, p, 1, 1, %115, %116;\n}\n"
        : ORRERY_D64(0), ORRERY_D32(64), ORRERY_D16(96)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kTransposedA), "n"(kTransposedB));
  }
  template <int kTransposedB = 0>
  __device__ static void bf16_rs(float (&d)[112], const std::uint32_t (&a)[4], std::uint64_t b,
                                 bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %117, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n224k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "
        "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, "
        "%77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, "
        "%92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, "
        "%106, %107, %108, %109, %110, %111},"
        "{%112, %113, %114, %115}, %116, p, 1, 1, %118;\n}\n"
        : ORRERY_D64(0), ORRERY_D32(64), ORRERY_D16(96)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)),
          "n"(kTransposedB));
  }
  __device__ static void fp8_ss(float (&d)[112], std::uint64_t a, std::uint64_t b, bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %114, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n224k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "
        "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, "
        "%77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, "
        "%92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, "
        "%106, %107, %108, %109, %110, %111},"
        "%112, %113, p, 1, 1;\n}\n"
        : ORRERY_D64(0), ORRERY_D32(64), ORRERY_D16(96)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
  }
};

template <>
struct Wgmma<256> {
  template <int kTransposedA = 0, int kTransposedB = 0>
  __device__ static void bf16_ss(float (&d)[128], std::uint64_t a, std::uint64_t b, bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "
        "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, "
        "%77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, "
        "%92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, "
        "%106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, "
        "%119, %120, %121, %122, %123, %124, %125, %126, %127},"
        "%128, %129, p, 1, 1, %131, %132;\n}\n"
        : ORRERY_D64(0), ORRERY_D64(64)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(kTransposedA), "n"(kTransposedB));
  }
  template <int kTransposedB = 0>
  __device__ static void bf16_rs(float (&d)[128], const std::uint32_t (&a)[4], std::uint64_t b,
                                 bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %133, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "
        "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, "
        "%77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, "
        "%92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, "
        "%106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, "
        "%119, %120, %121, %122, %123, %124, %125, %126, %127},"
        "{%128, %129, %130, %131}, %132, p, 1, 1, %134;\n}\n"
        : ORRERY_D64(0), ORRERY_D64(64)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)),
          "n"(kTransposedB));
  }
  __device__ static void fp8_ss(float (&d)[128], std::uint64_t a, std::uint64_t b, bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "
        "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, "
        "%77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, "
        "%92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, "
        "%106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, "
        "%119, %120, %121, %122, %123, %124, %125, %126, %127},"
        "%128, %129, p, 1, 1;\n}\n"
        : ORRERY_D64(0), ORRERY_D64(64)
        : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
  }
};

#undef ORRERY_D4
#undef ORRERY_D8
#undef ORRERY_D16
#undef ORRERY_D32
#undef ORRERY_D64

}  // namespace orrery::sm90
