#include "kernels/cuda/nccl.h"

#include <dlfcn.h>

namespace orrery::cuda {
namespace {

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) {
    throw std::runtime_error(std::string("libnccl.so.2 has no function ") + name);
  }
}

NcclLibrary load() {
  void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw std::runtime_error(std::string("NCCL is needed for several GPUs: ") + dlerror());
  }
  NcclLibrary nccl;
  find(library, "ncclGetVersion", nccl.get_version);
  find(library, "ncclGetErrorString", nccl.get_error_string);
  find(library, "ncclGetUniqueId", nccl.get_unique_id);
  find(library, "ncclCommInitAll", nccl.comm_init_all);
  find(library, "ncclCommInitRank", nccl.comm_init_rank);
  find(library, "ncclCommDestroy", nccl.comm_destroy);
  find(library, "ncclCommAbort", nccl.comm_abort);
  find(library, "ncclCommGetAsyncError", nccl.comm_get_async_error);
  find(library, "ncclGroupStart", nccl.group_start);
  find(library, "ncclGroupEnd", nccl.group_end);
  find(library, "ncclAllReduce", nccl.all_reduce);
  find(library, "ncclAllGather", nccl.all_gather);
  find(library, "ncclReduceScatter", nccl.reduce_scatter);
  find(library, "ncclBroadcast", nccl.broadcast);
  find(library, "ncclSend", nccl.send);
  find(library, "ncclRecv", nccl.recv);
  return nccl;
}

}  // namespace

const NcclLibrary& nccl() {
  static const NcclLibrary library = load();
  return library;
}

NcclError::NcclError(ncclResult_t code, const char* call, const char* file, int line)
    : std::runtime_error(std::string(file) + ":" + std::to_string(line) + ": " + call + ": " +
                         nccl().get_error_string(code)),
      code_(code) {}

std::string nccl_version() {
  int version = 0;
  ORRERY_NCCL(nccl().get_version(&version));
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

ncclUniqueId nccl_unique_id() {
  ncclUniqueId id{};
  ORRERY_NCCL(nccl().get_unique_id(&id));
  return id;
}

Communicator Communicator::for_rank(const ncclUniqueId& id, int rank, int size) {
  ncclComm_t handle = nullptr;
  ORRERY_NCCL(nccl().comm_init_rank(&handle, size, id, rank));
  return {handle, rank, size};
}

ncclResult_t Communicator::async_error() const {
  ncclResult_t code = ncclSuccess;
  ORRERY_NCCL(nccl().comm_get_async_error(get(), &code));
  return code;
}

void Communicator::abort() {
  if (communicator_) static_cast<void>(nccl().comm_abort(communicator_.release()));
}

std::vector<Communicator> Communicator::for_devices(std::span<const int> devices) {
  const int size = static_cast<int>(devices.size());
  std::vector<ncclComm_t> handles(devices.size());
  ORRERY_NCCL(nccl().comm_init_all(handles.data(), size, devices.data()));
  std::vector<Communicator> communicators;
  communicators.reserve(devices.size());
  for (int rank = 0; rank < size; ++rank) {
    communicators.push_back(Communicator(handles[rank], rank, size));
  }
  return communicators;
}

}  // namespace orrery::cuda
