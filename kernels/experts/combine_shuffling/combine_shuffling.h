#pragma once

// Rows of experts on several ranks between two orders (split_shuffling is the inverse):
//
//   rank-major     rank 0: expert 0, expert 1, …; rank 1: expert 0, …     as all-to-alls have them
//   expert-major   expert 0: rank 0, rank 1, …; expert 1: …               as grouped GEMMs do
//
// The expert-major side is without gaps. So is the rank-major side where it is dense; padded, the
// rows of rank p begin at row p * bound, and in combine_shuffling a rank has there the rows of all
// the experts that it counts, of which those of `groups` experts from `first` on are taken.
// Copies whole rows, with a scale for each where they have scales. What counts ask for beyond the
// rows that there are, or beyond those that there is room for, is left out.

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/handles.h"

namespace orrery {

struct ShuffledCounts {
  const std::int32_t* counts = nullptr;  // [ranks, experts] on the device; negative ones count as 0
  std::int64_t ranks = 0;                // up to 64, ranks * groups up to 1,024
  std::int64_t experts = 0;
  std::int64_t groups = 0;  // of the experts, those on this rank
  std::int64_t first = 0;   // the first of them; first + groups <= experts
  std::int64_t bound = 0;   // rows from rank to rank; 0: dense, then groups == experts
};

struct ShuffledRows {
  const void* from = nullptr;          // [from_rows, row_bytes]
  void* to = nullptr;                  // [to_rows, row_bytes]
  const float* from_scales = nullptr;  // [from_rows]; null: none
  float* to_scales = nullptr;          // [to_rows]
  std::int64_t from_rows = 0;
  std::int64_t to_rows = 0;
  std::size_t row_bytes = 0;  // a multiple of 16, with aligned pointers, goes by vectors
};

// From rank-major to expert-major; writes the rows of each expert, group_counts [groups], and of
// all, num_rows [1]. Throws std::invalid_argument for counts out of range, cuda::Error when the
// launch fails.
void combine_shuffling(const cuda::Stream& stream, const ShuffledCounts& counts,
                       const ShuffledRows& rows, std::int32_t* group_counts,
                       std::int32_t* num_rows);

// From expert-major to rank-major, likewise.
void split_shuffling(const cuda::Stream& stream, const ShuffledCounts& counts,
                     const ShuffledRows& rows);

}  // namespace orrery
