#include "kernels/experts/expert_gather/expert_gather.h"

namespace orrery {
namespace {

GatheredTokens part_of(const GatheredTokens& from, const ExpertRows& rows) {
  GatheredTokens part = from;
  part.row_token += rows.first;
  if (part.row_weight != nullptr) part.row_weight += rows.first;
  part.num_rows = nullptr;
  part.rows = rows.count;
  return part;
}

}  // namespace

void expert_gather(const cuda::Stream& stream, const GatheredTokens& from, const ExpertRows& rows,
                   bf16* xs) {
  gather_mul(stream, part_of(from, rows), xs + rows.first * from.hidden);
}

void expert_gather_fp8(const cuda::Stream& stream, const GatheredTokens& from,
                       const ExpertRows& rows, fp8* xs, float* scales) {
  gather_mul_fp8(stream, part_of(from, rows), xs + rows.first * from.hidden, scales + rows.first);
}

}  // namespace orrery
