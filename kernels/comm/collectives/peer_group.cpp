#include "kernels/comm/collectives/peer_group.h"

namespace orrery {
namespace {

AllReduceAlgorithm algorithm_of(CollectiveImplementation implementation) {
  return implementation == CollectiveImplementation::kOneShot ? AllReduceAlgorithm::kOneShot
                                                              : AllReduceAlgorithm::kTwoShot;
}

}  // namespace

std::string_view to_text(CollectiveImplementation implementation) {
  switch (implementation) {
    case CollectiveImplementation::kNccl:
      return "nccl";
    case CollectiveImplementation::kOneShot:
      return "orrery_one_shot";
    case CollectiveImplementation::kTwoShot:
      return "orrery_two_shot";
  }
  return "";
}

PeerGroup::PeerGroup(std::span<const int> devices, const AllReduceOptions& options)
    : team_(devices),
      communicators_(cuda::Communicator::for_devices(devices)),
      workspace_(team_, options) {}

bool PeerGroup::takes(CollectiveImplementation implementation, const CollectiveCall& call) const {
  if (implementation == CollectiveImplementation::kNccl) return true;
  const bool sums =
      call.dtype == DType::kBf16 || call.dtype == DType::kFp16 || call.dtype == DType::kFp32;
  const auto bytes =
      static_cast<std::int64_t>(static_cast<double>(call.count) * bytes_per_element(call.dtype));
  return call.kind == CollectiveKind::kAllReduce && sums &&
         all_reduce_slot_bytes(algorithm_of(implementation), bytes, size()) <=
             workspace_.peers(0).half_bytes;
}

void PeerGroup::enqueue(CollectiveImplementation implementation, int rank,
                        const cuda::Stream& stream, const CollectiveCall& call) const {
  if (implementation == CollectiveImplementation::kNccl) {
    nccl_collective(communicators_[rank], stream, call);
    return;
  }
  all_reduce(stream, workspace_.peers(rank), algorithm_of(implementation), call.dtype, call.input,
             call.output, call.count);
}

}  // namespace orrery
