#include "kernels/comm/processes/socket_processes.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

namespace orrery {
namespace {

enum Answer : std::int32_t { kAll, kEnded, kLate, kUnlike };

// Ahead of what a rank says.
struct Said {
  std::uint64_t exchange = 0;
  std::uint64_t bytes = 0;
};
// Ahead of what it gets: the messages of all, or why there are none.
struct Answered {
  std::int32_t answer = kAll;
  std::int32_t rank = -1;   // whose fault it is
  std::uint64_t bytes = 0;  // that it came with
  double limit_s = 0;
};

Seconds now() {
  return Seconds(
      std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

// False when the other side has ended.
bool send_all(int socket, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t count = send(socket, at, bytes, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    at += count;
    bytes -= static_cast<std::size_t>(count);
  }
  return true;
}
bool receive_all(int socket, void* data, std::size_t bytes) {
  auto* at = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const ssize_t count = recv(socket, at, bytes, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    at += count;
    bytes -= static_cast<std::size_t>(count);
  }
  return true;
}

void close_socket(int& socket) {
  if (socket >= 0) static_cast<void>(close(std::exchange(socket, -1)));
}

Said said_by(const std::vector<std::byte>& received) {
  Said said;
  std::memcpy(&said, received.data(), sizeof(said));
  return said;
}

std::string seconds_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds);
  return static_cast<double>(whole) == seconds ? std::to_string(whole) : std::to_string(seconds);
}

}  // namespace

// --- the hub -------------------------------------------------------------------------------------

SocketHub::SocketHub(int size, Seconds limit)
    : ranks_(static_cast<std::size_t>(size)), limit_(limit) {
  for (Rank& rank : ranks_) {
    std::array<int, 2> ends{};
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
      const int code = errno;
      for (Rank& made : ranks_) {
        close_socket(made.socket);
        close_socket(made.theirs);
      }
      throw std::system_error(code, std::generic_category(), "socketpair");
    }
    rank.socket = ends[0];
    rank.theirs = ends[1];
  }
  thread_ = std::jthread([this](const std::stop_token& stop) { serve(stop); });
}

SocketHub::~SocketHub() {
  thread_.request_stop();
  thread_.join();
  for (Rank& rank : ranks_) {
    close_socket(rank.socket);
    close_socket(rank.theirs);
  }
}

int SocketHub::take_socket(int rank) {
  return std::exchange(ranks_.at(static_cast<std::size_t>(rank)).theirs, -1);
}

void SocketHub::serve(const std::stop_token& stop) {
  constexpr int kMilliseconds = 20;  // between looks at the clock
  std::vector<pollfd> waited(ranks_.size());
  while (!stop.stop_requested()) {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      // One that has come is waiting for the others: only its end is of interest.
      waited[i] = {.fd = ranks_[i].socket, .events = POLLIN, .revents = 0};
    }
    if (poll(waited.data(), waited.size(), kMilliseconds) > 0) {
      for (std::size_t i = 0; i < ranks_.size(); ++i) {
        if (waited[i].revents != 0) receive(static_cast<int>(i));
      }
    }
    find_fault(now());
    if (fault_ != kAll) {
      refuse();
    } else {
      complete();
    }
  }
}

void SocketHub::receive(int number) {
  Rank& rank = ranks_[static_cast<std::size_t>(number)];
  std::array<std::byte, 4096> data{};
  const ssize_t count = recv(rank.socket, data.data(), data.size(), MSG_DONTWAIT);
  if (count < 0 && (errno == EINTR || errno == EAGAIN)) return;
  if (count <= 0) return end(number);
  rank.received.insert(rank.received.end(), data.begin(), data.begin() + count);
  rank.has_come =
      rank.received.size() >= sizeof(Said) &&
      rank.received.size() == sizeof(Said) + static_cast<std::size_t>(said_by(rank.received).bytes);
  if (rank.has_come && !begun_) begun_ = now();
}

void SocketHub::end(int rank) {
  Rank& of = ranks_[static_cast<std::size_t>(rank)];
  close_socket(of.socket);
  of.has_come = false;
}

// Of the exchange that ranks have come to, if any have.
void SocketHub::find_fault(Seconds time) {
  if (fault_ != kAll || !begun_) return;
  const auto missing = std::ranges::find(ranks_, false, &Rank::has_come);
  if (missing != ranks_.end()) {
    const auto ended = std::ranges::find(ranks_, -1, &Rank::socket);
    if (ended != ranks_.end()) {
      fault_ = kEnded;
      fault_rank_ = static_cast<std::int32_t>(ended - ranks_.begin());
    } else if (time - *begun_ > limit_) {
      fault_ = kLate;
      fault_rank_ = static_cast<std::int32_t>(missing - ranks_.begin());
    }
    return;
  }
  const Said first = said_by(ranks_.front().received);
  for (const Rank& rank : ranks_) {
    const Said said = said_by(rank.received);
    if (said.bytes == first.bytes && said.exchange == first.exchange) continue;
    fault_ = kUnlike;
    fault_rank_ = static_cast<std::int32_t>(&rank - ranks_.data());
    fault_bytes_ = said.bytes;
    return;
  }
}

// The messages of all to all, once all are there.
void SocketHub::complete() {
  if (!std::ranges::all_of(ranks_, &Rank::has_come)) return;
  std::vector<std::byte> all;
  for (const Rank& rank : ranks_) {
    all.insert(all.end(), rank.received.begin() + sizeof(Said), rank.received.end());
  }
  begun_.reset();
  const Answered head{.bytes = all.size()};
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    answer(static_cast<int>(i), &head, sizeof(head), all);
  }
}

void SocketHub::refuse() {
  const Answered head{
      .answer = fault_, .rank = fault_rank_, .bytes = fault_bytes_, .limit_s = limit_.value()};
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i].has_come) answer(static_cast<int>(i), &head, sizeof(head), {});
  }
}

void SocketHub::answer(int rank, const void* head, std::size_t head_bytes,
                       const std::vector<std::byte>& data) {
  Rank& of = ranks_[static_cast<std::size_t>(rank)];
  of.received.clear();
  of.has_come = false;
  if (!send_all(of.socket, head, head_bytes) || !send_all(of.socket, data.data(), data.size())) {
    end(rank);
  }
}

// --- a rank --------------------------------------------------------------------------------------

SocketProcesses::SocketProcesses(int socket, int rank, int size) : socket_(socket) {
  group_.rank = rank;
  group_.size = size;
  group_.rank_on_host = rank;
  group_.all_gather = [this](std::span<const std::byte> own, std::span<std::byte> all) {
    exchange(own, all);
  };
  group_.broadcast = [this](std::span<std::byte> data, int root) {
    std::vector<std::byte> all(data.size() * static_cast<std::size_t>(group_.size));
    exchange(data, all);
    const auto of_root = std::span(all).subspan(static_cast<std::size_t>(root) * data.size());
    std::ranges::copy(of_root.first(data.size()), data.begin());
  };
  group_.barrier = [this] { exchange({}, {}); };
  group_.abort = [](int exit_code) { std::_Exit(exit_code); };
}

SocketProcesses::~SocketProcesses() { close_socket(socket_); }

void SocketProcesses::exchange(std::span<const std::byte> own, std::span<std::byte> all) {
  const std::string number = std::to_string(exchange_);
  const Said said{.exchange = exchange_++, .bytes = own.size()};
  Answered head;
  if (!send_all(socket_, &said, sizeof(said)) || !send_all(socket_, own.data(), own.size()) ||
      !receive_all(socket_, &head, sizeof(head))) {
    throw std::runtime_error("the process that has started the ranks has ended, before exchange " +
                             number);
  }
  const std::string rank = "rank " + std::to_string(head.rank);
  switch (head.answer) {
    case kEnded:
      throw std::runtime_error(rank + " has ended before it came to exchange " + number +
                               " of the ranks");
    case kLate:
      throw std::runtime_error(rank + " has not come to exchange " + number +
                               " of the ranks within " + seconds_text(head.limit_s) + " s");
    case kUnlike:
      throw std::runtime_error(rank + " came to exchange " + number + " of the ranks with " +
                               std::to_string(head.bytes) + " bytes, expected as many as rank 0");
    default:
      break;
  }
  if (head.bytes != all.size()) {
    throw std::runtime_error("exchange " + number + " of the ranks gave " +
                             std::to_string(head.bytes) + " bytes, expected " +
                             std::to_string(all.size()));
  }
  if (!receive_all(socket_, all.data(), all.size())) {
    throw std::runtime_error("the process that has started the ranks has ended in exchange " +
                             number);
  }
}

}  // namespace orrery
