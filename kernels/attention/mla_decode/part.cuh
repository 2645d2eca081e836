#pragma once

// What part of the work a unit of mla_decode takes, found from the lengths on the device.

#include "kernels/attention/mla_decode/block.cuh"

namespace orrery::mla {

// By one warp.
__device__ inline Part part_of(const std::int32_t* lengths, int sequences, int units, int unit) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int total = 0;
  for (int s = lane; s < sequences; s += 32) total += mla_tiles(lengths[s]);
  total = __reduce_add_sync(0xFFFFFFFF, total);
  const int group = mla_sequences_per_unit(sequences, units);
  const auto tiles_of_group = [&](int u) {
    int sum = 0;
    for (int s = u * group; s < min((u + 1) * group, sequences); ++s) sum += mla_tiles(lengths[s]);
    return sum;
  };
  int longest = 0;
  for (int u = lane; u < units; u += 32) longest = max(longest, tiles_of_group(u));
  longest = __reduce_max_sync(0xFFFFFFFF, longest);
  const MlaSplit split = mla_split(total, longest, sequences, units);
  if (split.whole) {
    return {.sequence = unit * group, .tile = 0, .tiles = tiles_of_group(unit)};
  }
  const int position = unit * split.quota;
  Part part{.position = position, .quota = split.quota};
  if (position >= total) return part;
  part.tiles = min(split.quota, total - position);
  int before = 0;  // tiles of the sequences passed
  for (int first = 0; first < sequences; first += 32) {
    const int tiles = first + lane < sequences ? mla_tiles(lengths[first + lane]) : 0;
    int end = tiles;
    for (int step = 1; step < 32; step *= 2) {
      const int left = __shfl_up_sync(0xFFFFFFFF, end, step);
      if (lane >= step) end += left;
    }
    end += before;
    const unsigned hit = __ballot_sync(0xFFFFFFFF, position < end);
    if (hit != 0) {
      const int at = __ffs(static_cast<int>(hit)) - 1;
      part.sequence = first + at;
      part.tile = position - __shfl_sync(0xFFFFFFFF, end - tiles, at);
      break;
    }
    before = __shfl_sync(0xFFFFFFFF, end, 31);
  }
  return part;
}

}  // namespace orrery::mla
