#pragma once

// NCCL: its errors as exceptions and an owner of communicators. The library is loaded when it is
// first needed, so that a host with one GPU needs none.

#include <nccl.h>

#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace orrery::cuda {

class NcclError : public std::runtime_error {
 public:
  NcclError(ncclResult_t code, const char* call, const char* file, int line);
  [[nodiscard]] ncclResult_t code() const { return code_; }

 private:
  ncclResult_t code_;
};

// The functions of libnccl.so.2 in use here.
struct NcclLibrary {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitAll) comm_init_all = nullptr;
  decltype(&ncclCommInitRank) comm_init_rank = nullptr;
  decltype(&ncclCommDestroy) comm_destroy = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) recv = nullptr;
};

// Loaded once; thread safe. Throws std::runtime_error when libnccl.so.2 is not found or lacks a
// function.
const NcclLibrary& nccl();
// "2.28.9"
std::string nccl_version();

// Names a communicator among processes: one rank makes it, all get it by other means.
ncclUniqueId nccl_unique_id();

// One rank's communicator. Calls on one communicator come from one thread at a time, but for
// async_error().
class Communicator {
 public:
  // Ranks 0 .. devices.size() - 1 of a new communicator within this process. Throws NcclError.
  static std::vector<Communicator> for_devices(std::span<const int> devices);
  // Rank `rank` of `size`, on the current device; returns once all ranks have called, each from its
  // own thread or process. Throws NcclError.
  static Communicator for_rank(const ncclUniqueId& id, int rank, int size);
  [[nodiscard]] ncclComm_t get() const { return communicator_.get(); }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  // What went wrong with a call that was enqueued: ncclSuccess while nothing has.
  [[nodiscard]] ncclResult_t async_error() const;
  // Ends what is enqueued, wherever it waits, and destroys the communicator; get() is null then.
  void abort();

 private:
  struct Destroy {
    void operator()(ncclComm_t communicator) const {
      static_cast<void>(nccl().comm_destroy(communicator));
    }
  };
  Communicator(ncclComm_t communicator, int rank, int size)
      : communicator_(communicator), rank_(rank), size_(size) {}

  std::unique_ptr<ncclComm, Destroy> communicator_;
  int rank_;
  int size_;
};

}  // namespace orrery::cuda

#define ORRERY_NCCL(call)                                                      \
  do {                                                                         \
    const ncclResult_t orrery_code = (call);                                   \
    if (orrery_code != ncclSuccess) {                                          \
      throw ::orrery::cuda::NcclError(orrery_code, #call, __FILE__, __LINE__); \
    }                                                                          \
  } while (false)
