#pragma once

// Matrix products and fragment moves of one warp (mma.sync, ldmatrix, movmatrix, fp8 conversion).
// One function per instruction. Fragments as in PTX ISA 9.0, 9.7.14.5: with g = lane / 4 and
// t = lane % 4,
//   a 16x16  a0 (row g, columns 2t 2t+1)  a1 (row g+8, same)  a2 (row g, columns 2t+8 2t+9)  a3
//   b 16x8   b0 (rows 2t 2t+1, column g)  b1 (rows 2t+8 2t+9, column g)
//   d 16x8   d0 d1 (row g, columns 2t 2t+1)  d2 d3 (row g+8, same)

#include <cstdint>

namespace orrery::sm90 {

// d += a b
__device__ inline void mma_bf16(float (&d)[4], const std::uint32_t (&a)[4],
                                const std::uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ inline void mma_f16(float (&d)[4], const std::uint32_t (&a)[4],
                               const std::uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four 8x8 matrices of 16-bit elements, transposed: lane i gives the 16-byte row i % 8 of matrix
// i / 8 and receives of each matrix column g, rows 2t and 2t+1.
__device__ inline void load_matrix_transposed(std::uint32_t (&d)[4], std::uint32_t shared_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(shared_row)
               : "memory");
}
// The 8x8 matrix of 16-bit elements held as row g, columns 2t and 2t+1, as its transpose.
__device__ inline std::uint32_t transpose_matrix(std::uint32_t a) {
  std::uint32_t d;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(a));
  return d;
}

// Four e4m3 values as four fp16 values, exactly: bytes 0 and 1 in `low`, 2 and 3 in `high`.
__device__ inline void widen_fp8(std::uint32_t values, std::uint32_t& low, std::uint32_t& high) {
  asm("{\n.reg .b16 a, b;\n"
      "mov.b32 {a, b}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, a;\n"
      "cvt.rn.f16x2.e4m3x2 %1, b;\n}"
      : "=r"(low), "=r"(high)
      : "r"(values));
}

}  // namespace orrery::sm90
