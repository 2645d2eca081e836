#pragma once

// What a launch of mla_decode takes as it deals tiles to its units (split.h). No CUDA.

#include <cstdint>

#include "kernels/kernel_spec.h"

namespace orrery {

struct MlaDecodeShape {
  std::int64_t sequences = 0;
  std::int64_t context = 0;  // tokens of each
  std::int64_t heads = 0;    // at most 128
};

// Of the unit that has most of each.
struct MlaDecodeUnits {
  std::int64_t tiles = 0;
  std::int64_t pieces = 0;  // of sequences
  std::int64_t parts = 1;   // that a sequence is in
};
MlaDecodeUnits mla_decode_units(const MlaDecodeShape& shape, int num_sms);

// Of a call of `flops`, on so many SMs of an H200. LaunchWork{} for none.
LaunchWork mla_decode_launch(const MlaDecodeShape& shape, Flops flops, int num_sms);

}  // namespace orrery
