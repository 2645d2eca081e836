#include "kernels/cuda/stream_flags.h"

#include <cuda.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cuda/driver_function.h"

namespace orrery::cuda {
namespace {

using Operation = CUstreamBatchMemOpParams;

CUdeviceptr address_of(const std::uint32_t* flag) { return reinterpret_cast<CUdeviceptr>(flag); }

// The default write is behind a fence of the whole system.
Operation write(const std::uint32_t* flag, std::uint32_t value) {
  Operation operation{};
  operation.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operation.writeValue.address = address_of(flag);
  operation.writeValue.value = value;
  operation.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
  return operation;
}

Operation wait(const std::uint32_t* flag) {
  Operation operation{};
  operation.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  operation.waitValue.address = address_of(flag);
  operation.waitValue.value = 1;
  operation.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
  return operation;
}

void enqueue(const Stream& stream, std::vector<Operation>& operations) {
  if (operations.empty()) return;
  static const auto batch = driver_function<decltype(&cuStreamBatchMemOp)>("cuStreamBatchMemOp");
  const CUresult code =
      batch(stream.get(), static_cast<unsigned>(operations.size()), operations.data(), 0);
  if (code == CUDA_SUCCESS) return;
  throw std::runtime_error("cuStreamBatchMemOp refuses " + std::to_string(operations.size()) +
                           " operations on flags: error " + std::to_string(static_cast<int>(code)));
}

}  // namespace

void set_flags(const Stream& stream, std::span<std::uint32_t* const> flags) {
  std::vector<Operation> operations;
  for (const std::uint32_t* flag : flags) operations.push_back(write(flag, 1));
  enqueue(stream, operations);
}

void await_flags(const Stream& stream, std::span<std::uint32_t* const> flags) {
  std::vector<Operation> operations;
  for (const std::uint32_t* flag : flags) operations.push_back(wait(flag));
  for (const std::uint32_t* flag : flags) operations.push_back(write(flag, 0));
  enqueue(stream, operations);
}

}  // namespace orrery::cuda
