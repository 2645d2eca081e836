#include "tests/kernels/fake_shared_cuda.h"

#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace orrery::testing {
namespace {

// Ahead of what is allocated, in a page of its own.
struct Head {
  std::atomic<int> num_mapped;  // by other processes
  int file;                     // of the process that has allocated it
  std::size_t bytes;            // with this page
};
constexpr std::size_t kPage = 4096;

// What a cudaIpcMemHandle_t holds.
struct Handle {
  pid_t process;
  int file;
  std::size_t bytes;
};

Head* head_of(void* memory) {
  return reinterpret_cast<Head*>(static_cast<unsigned char*>(memory) - kPage);
}
// The memory behind the head; null when it cannot be mapped.
void* mapped(int file, std::size_t bytes) {
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return at == MAP_FAILED ? nullptr : static_cast<unsigned char*>(at) + kPage;
}

}  // namespace

SharedCuda& shared_cuda() {
  static SharedCuda one;
  return one;
}

}  // namespace orrery::testing

using orrery::testing::Handle;
using orrery::testing::head_of;
using orrery::testing::kPage;
using orrery::testing::mapped;
using orrery::testing::shared_cuda;

extern "C" {

cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t /*code*/) { return "an error"; }
const char* cudaGetErrorName(cudaError_t /*code*/) { return "cudaError"; }
cudaError_t cudaGetDevice(int* device) {
  *device = shared_cuda().device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  shared_cuda().device = device;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaDeviceGetPCIBusId(char* name, int bytes, int device) {
  std::snprintf(name, static_cast<std::size_t>(bytes), "0000:%02x:00.0", device);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* name) {
  return std::sscanf(name, "0000:%02x:00.0", reinterpret_cast<unsigned*>(device)) == 1
             ? cudaSuccess
             : cudaErrorInvalidValue;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int /*device*/, int peer) {
  *can = peer != shared_cuda().without_access;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  if (!shared_cuda().has_memory) return cudaErrorMemoryAllocation;
  const int file = memfd_create("device", 0);
  if (file < 0 || ftruncate(file, static_cast<off_t>(kPage + bytes)) != 0) {
    return cudaErrorMemoryAllocation;
  }
  *memory = mapped(file, kPage + bytes);
  if (*memory == nullptr) return cudaErrorMemoryAllocation;
  std::memset(*memory, 0xFF, bytes);  // not initialised
  head_of(*memory)->file = file;
  head_of(*memory)->bytes = kPage + bytes;
  ++shared_cuda().num_allocated;
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  if (head_of(memory)->num_mapped != 0) return cudaErrorInvalidValue;
  --shared_cuda().num_allocated;
  return cudaSuccess;
}
cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory) {
  const Handle own{getpid(), head_of(memory)->file, head_of(memory)->bytes};
  std::memcpy(handle, &own, sizeof(own));
  return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned /*flags*/) {
  if (shared_cuda().dies_on_opening) std::raise(SIGKILL);
  Handle theirs{};
  std::memcpy(&theirs, &handle, sizeof(theirs));
  if (theirs.process == getpid()) return cudaErrorDeviceUninitialized;  // as CUDA
  const std::string path =
      "/proc/" + std::to_string(theirs.process) + "/fd/" + std::to_string(theirs.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return cudaErrorInvalidResourceHandle;
  *memory = mapped(file, theirs.bytes);
  static_cast<void>(close(file));
  if (*memory == nullptr) return cudaErrorMapBufferObjectFailed;
  ++head_of(*memory)->num_mapped;
  ++shared_cuda().num_mapped;
  return cudaSuccess;
}
cudaError_t cudaIpcCloseMemHandle(void* memory) {
  --head_of(memory)->num_mapped;
  --shared_cuda().num_mapped;
  return cudaSuccess;
}

}  // extern "C"
