#include <mpi.h>

#include <limits>
#include <stdexcept>
#include <string>

#include "kernels/comm/processes/process_group.h"

namespace orrery {
namespace {

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  static_cast<void>(MPI_Error_string(code, text, &length));
  throw std::runtime_error(std::string(call) + ": " + text);
}

int bytes_in(std::span<const std::byte> data) {
  if (data.size() > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    throw std::runtime_error("MPI: a message of " + std::to_string(data.size()) + " bytes");
  }
  return static_cast<int>(data.size());
}

int rank_on_host() {
  MPI_Comm host = MPI_COMM_NULL;
  check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host),
        "MPI_Comm_split_type");
  int rank = 0;
  check(MPI_Comm_rank(host, &rank), "MPI_Comm_rank");
  check(MPI_Comm_free(&host), "MPI_Comm_free");
  return rank;
}

}  // namespace

MpiProcesses::MpiProcesses() {
  int level = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level), "MPI_Init_thread");
  check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  check(MPI_Comm_rank(MPI_COMM_WORLD, &group_.rank), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &group_.size), "MPI_Comm_size");
  group_.rank_on_host = rank_on_host();
  group_.broadcast = [](std::span<std::byte> data, int root) {
    check(MPI_Bcast(data.data(), bytes_in(data), MPI_BYTE, root, MPI_COMM_WORLD), "MPI_Bcast");
  };
  group_.all_gather = [](std::span<const std::byte> own, std::span<std::byte> all) {
    const int bytes = bytes_in(own);
    check(MPI_Allgather(own.data(), bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, MPI_COMM_WORLD),
          "MPI_Allgather");
  };
  group_.barrier = [] { check(MPI_Barrier(MPI_COMM_WORLD), "MPI_Barrier"); };
  group_.abort = [](int exit_code) { static_cast<void>(MPI_Abort(MPI_COMM_WORLD, exit_code)); };
}

MpiProcesses::~MpiProcesses() { static_cast<void>(MPI_Finalize()); }

}  // namespace orrery
