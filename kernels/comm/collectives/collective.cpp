#include "kernels/comm/collectives/collective.h"

#include <array>
#include <stdexcept>
#include <string>

namespace orrery {
namespace {

using cuda::Communicator;
using cuda::nccl;
using cuda::Stream;

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
      return ncclBfloat16;
    case DType::kFp16:
      return ncclFloat16;
    case DType::kFp32:
      return ncclFloat32;
    case DType::kInt8:
      return ncclInt8;
    default:
      throw std::invalid_argument("collectives take bf16, fp16, fp32 and int8, not " +
                                  std::string(to_text(dtype)));
  }
}

std::int64_t share(const CollectiveCall& call, const Communicator& communicator) {
  if (call.count % communicator.size() != 0) {
    throw std::invalid_argument(
        std::string(to_text(call.kind)) + " of " + std::to_string(call.count) + " elements among " +
        std::to_string(communicator.size()) + " ranks; expected a multiple");
  }
  return call.count / communicator.size();
}

void all_reduce(const Communicator& communicator, const Stream& stream,
                const CollectiveCall& call) {
  ORRERY_NCCL(nccl().all_reduce(call.input, call.output, call.count, nccl_type(call.dtype), ncclSum,
                                communicator.get(), stream.get()));
}

void all_gather(const Communicator& communicator, const Stream& stream,
                const CollectiveCall& call) {
  ORRERY_NCCL(nccl().all_gather(call.input, call.output, share(call, communicator),
                                nccl_type(call.dtype), communicator.get(), stream.get()));
}

void reduce_scatter(const Communicator& communicator, const Stream& stream,
                    const CollectiveCall& call) {
  ORRERY_NCCL(nccl().reduce_scatter(call.input, call.output, share(call, communicator),
                                    nccl_type(call.dtype), ncclSum, communicator.get(),
                                    stream.get()));
}

void all_to_all(const Communicator& communicator, const Stream& stream,
                const CollectiveCall& call) {
  const std::int64_t part = share(call, communicator);
  const auto bytes =
      static_cast<std::int64_t>(static_cast<double>(part) * bytes_per_element(call.dtype));
  ORRERY_NCCL(nccl().group_start());
  for (int peer = 0; peer < communicator.size(); ++peer) {
    ORRERY_NCCL(nccl().send(static_cast<const std::byte*>(call.input) + peer * bytes, part,
                            nccl_type(call.dtype), peer, communicator.get(), stream.get()));
    ORRERY_NCCL(nccl().recv(static_cast<std::byte*>(call.output) + peer * bytes, part,
                            nccl_type(call.dtype), peer, communicator.get(), stream.get()));
  }
  ORRERY_NCCL(nccl().group_end());
}

void send_recv(const Communicator& communicator, const Stream& stream, const CollectiveCall& call) {
  if (communicator.rank() == 0) {
    ORRERY_NCCL(nccl().send(call.input, call.count, nccl_type(call.dtype), 1, communicator.get(),
                            stream.get()));
  }
  if (communicator.rank() == 1) {
    ORRERY_NCCL(nccl().recv(call.output, call.count, nccl_type(call.dtype), 0, communicator.get(),
                            stream.get()));
  }
}

void broadcast(const Communicator& communicator, const Stream& stream, const CollectiveCall& call) {
  ORRERY_NCCL(nccl().broadcast(call.input, call.output, call.count, nccl_type(call.dtype), 0,
                               communicator.get(), stream.get()));
}

// In the order of CollectiveKind.
constexpr std::array kCalls = {all_reduce, all_gather, reduce_scatter,
                               all_to_all, send_recv,  broadcast};

}  // namespace

std::int64_t input_count(CollectiveKind kind, std::int64_t count, int num_ranks) {
  return kind == CollectiveKind::kAllGather ? count / num_ranks : count;
}

std::int64_t output_count(CollectiveKind kind, std::int64_t count, int num_ranks) {
  return kind == CollectiveKind::kReduceScatter ? count / num_ranks : count;
}

void nccl_collective(const Communicator& communicator, const Stream& stream,
                     const CollectiveCall& call) {
  if (call.count == 0) return;
  kCalls[static_cast<std::size_t>(call.kind)](communicator, stream, call);
}

}  // namespace orrery
