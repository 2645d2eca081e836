#pragma once

// A row of logits in the lanes of a warp: gathered from the blocks of a cluster, made scores, put
// out.

#include <cstdint>

#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/sm90.cuh"

namespace orrery {

// What a lane holds of a row: four columns of each of its vectors.
template <int kColumns>
struct RowPart {
  static constexpr int kVector = 4;
  static constexpr int kLanes = kColumns / kVector < kWarpSize ? kColumns / kVector : kWarpSize;
  static constexpr int kVectors = kColumns / (kVector * kLanes);
  static constexpr int kValues = kVectors * kVector;
  static constexpr int kWarpRows = kWarpSize / kLanes;

  float values[kValues];

  static __device__ int lane() { return static_cast<int>(threadIdx.x) % kLanes; }
  // The column of value `i`.
  static __device__ int column(int i) {
    return (i / kVector * kLanes + lane()) * kVector + i % kVector;
  }
  __device__ void add(int i, const float4& four) {
    values[i * kVector] += four.x;
    values[i * kVector + 1] += four.y;
    values[i * kVector + 2] += four.z;
    values[i * kVector + 3] += four.w;
  }
  // Adds up the logits of all parts of a row that lie here, `stride` floats apart.
  __device__ void add_own(const float* row, int parts, int stride) {
#pragma unroll 4
    for (int part = 0; part < parts; ++part) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        add(i, *reinterpret_cast<const float4*>(row + part * stride + column(i * kVector)));
      }
    }
  }
  // Adds up the logits at `row` of each block of the cluster.
  __device__ void add_remote(const float* row, int parts) {
    constexpr int kBatch = kVectors >= 4 ? 2 : 8;  // parts on their way together
    for (int first = 0; first < parts; first += kBatch) {
      float4 found[kBatch][kVectors];
#pragma unroll
      for (int part = 0; part < kBatch; ++part) {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
          const auto* from = reinterpret_cast<const float4*>(row + column(i * kVector));
          found[part][i] = {};
          if (first + part >= parts) continue;
          found[part][i] = parts == 1 ? *from : sm90::load_cluster(from, first + part);
        }
      }
#pragma unroll
      for (int part = 0; part < kBatch; ++part) {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) add(i, found[part][i]);
      }
    }
  }
  __device__ void fill(float value) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) values[i] = value;
  }
  __device__ void sigmoid() {
#pragma unroll
    for (int i = 0; i < kValues; ++i) values[i] = 1 / (1 + expf(-values[i]));
  }
  __device__ void softmax(int experts) {
    float most = -INFINITY;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      if (column(i) >= experts) values[i] = -INFINITY;
      most = fmaxf(most, values[i]);
    }
#pragma unroll
    for (int lanes = 1; lanes < kLanes; lanes *= 2) {
      most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFU, most, lanes));
    }
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      values[i] = expf(values[i] - most);
      sum += values[i];
    }
#pragma unroll
    for (int lanes = 1; lanes < kLanes; lanes *= 2) {
      sum += __shfl_xor_sync(0xFFFFFFFFU, sum, lanes);
    }
#pragma unroll
    for (int i = 0; i < kValues; ++i) values[i] /= sum;
  }
  __device__ void store(float* to, int experts, bool aligned) const {
#pragma unroll
    for (int i = 0; i < kValues; i += kVector) {
      if (aligned && column(i) < experts) {
        *reinterpret_cast<float4*>(to + column(i)) = {values[i], values[i + 1], values[i + 2],
                                                      values[i + 3]};
        continue;
      }
#pragma unroll
      for (int j = i; j < i + kVector; ++j) {
        if (column(j) < experts) to[column(j)] = values[j];
      }
    }
  }
};

}  // namespace orrery
