#pragma once

// Processes that another one of this host has started, each with a socket to it. What they tell
// each other goes through that one, which also notices when one of them ends. No CUDA.
//
//   rank 0 ---+
//   rank 1 ---+--- hub, in the process that has started them
//   rank 2 ---+

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "kernels/comm/processes/process_group.h"
#include "sim/units/units.h"

namespace orrery {

// Serves the ranks in a thread of its own until it is destroyed. An exchange that cannot be
// completed fails on all ranks that come to it, and so do all later ones: a rank has ended, has not
// come within `limit`, or came with a message of another size than rank 0's.
class SocketHub {
 public:
  // Throws std::system_error when there are no more sockets.
  explicit SocketHub(int size, Seconds limit = Seconds(60));
  ~SocketHub();
  SocketHub(const SocketHub&) = delete;
  SocketHub& operator=(const SocketHub&) = delete;
  // The socket for the process of `rank`, once. It is the caller's, to be closed here when that
  // process has it: a rank counts as ended when nobody has its socket any more. It is closed in
  // programs that are started, unless said otherwise.
  int take_socket(int rank);

 private:
  struct Rank {
    int socket = -1;  // to the process; -1: it has ended
    int theirs = -1;  // until it is taken
    std::vector<std::byte> received;
    bool has_come = false;  // to the exchange, with all of its message
  };
  void serve(const std::stop_token& stop);
  void receive(int rank);
  void complete();
  void find_fault(Seconds now);
  void refuse();
  void answer(int rank, const void* head, std::size_t head_bytes,
              const std::vector<std::byte>& data);
  void end(int rank);

  std::vector<Rank> ranks_;
  Seconds limit_;
  std::optional<Seconds> begun_;  // when the first rank came to the exchange
  std::int32_t fault_ = 0;        // what went wrong, of socket_processes.cpp; 0: nothing
  std::int32_t fault_rank_ = -1;
  std::uint64_t fault_bytes_ = 0;
  std::jthread thread_;  // last: it uses the above
};

// The rank's side.
class SocketProcesses {
 public:
  // Takes the socket, which it closes when it is destroyed.
  SocketProcesses(int socket, int rank, int size);
  ~SocketProcesses();
  SocketProcesses(const SocketProcesses&) = delete;
  SocketProcesses& operator=(const SocketProcesses&) = delete;
  // rank_on_host is the rank. Calls throw std::runtime_error, naming the rank that has ended or has
  // not come; abort() ends this process, and others when they come to their next exchange.
  [[nodiscard]] const ProcessGroup& group() const { return group_; }

 private:
  void exchange(std::span<const std::byte> own, std::span<std::byte> all);

  int socket_;
  std::uint64_t exchange_ = 0;
  ProcessGroup group_;
};

}  // namespace orrery
