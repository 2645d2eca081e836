#include "kernels/rows/sample/shape.h"

namespace orrery {

ArgmaxShape argmax_shape(std::int64_t seqs, std::int64_t parts) {
  constexpr std::int64_t kNumSms = 132;
  constexpr std::int64_t kBlocksEach = 4;  // on an SM, of 256 threads, to fill it
  constexpr std::int64_t kPartsPerThread = 4;
  ArgmaxShape shape;
  const auto leaves_work = [&] {
    return std::int64_t{shape.cluster} * shape.threads * kPartsPerThread < parts;
  };
  while (shape.cluster < kMostArgmaxCluster && seqs * shape.cluster < kBlocksEach * kNumSms &&
         leaves_work()) {
    shape.cluster *= 2;
  }
  if (seqs * shape.cluster <= kNumSms && leaves_work()) {
    shape.threads = kMostArgmaxThreads;
  }
  return shape;
}

}  // namespace orrery
