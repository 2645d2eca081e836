#pragma once

// What a launch of attention over prompts takes as its tiles divide it (schedule.h): those of
// attention_prefill and of mla_prefill. No CUDA.

#include <cstdint>

#include "kernels/kernel_spec.h"

namespace orrery {

// Sequences alike.
struct PrefillShape {
  std::int64_t batch = 0;
  std::int64_t query = 0;    // new tokens of each
  std::int64_t context = 0;  // cached ones before them
  std::int64_t heads = 0;
  std::int64_t window = 0;     // newest keys that a token sees, itself included
  std::int64_t tile_rows = 0;  // new tokens of a tile
};

// Of an H200.
struct PrefillCost {
  Seconds step;          // of a tile: its rows by 128 keys
  double end_steps = 0;  // what else a tile takes, in such
  Seconds begin;
  Seconds second;   // more where blocks have several tiles
  double rate = 0;  // bytes/s
};

// Steps of the block that ends last, where each takes the tile that sees most keys of those left.
double prefill_steps(const PrefillShape& shape, double end_steps, int num_sms);

// Of a call of `flops`, and of bytes that the prior counts 0.8 of 4.8 TB/s on, on so many SMs.
LaunchWork prefill_launch(const PrefillShape& shape, const PrefillCost& cost, Flops flops,
                          int num_sms);

}  // namespace orrery
