// Ranks as threads, with a socket each as processes would have them.

#include "kernels/comm/processes/socket_processes.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace orrery {
namespace {

// work() of each rank at once. Returns what each has thrown, or nothing.
std::vector<std::string> run_ranks(SocketHub& hub, int size,
                                   const std::function<void(const ProcessGroup& group)>& work) {
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  {
    std::vector<std::jthread> threads;
    threads.reserve(errors.size());
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank, socket = hub.take_socket(rank)] {
        try {
          const SocketProcesses processes(socket, rank, size);
          work(processes.group());
        } catch (const std::runtime_error& error) {
          errors[static_cast<std::size_t>(rank)] = error.what();
        }
      });
    }
  }
  return errors;
}

std::vector<std::int32_t> gathered(const ProcessGroup& group, std::int32_t value) {
  std::vector<std::int32_t> all(static_cast<std::size_t>(group.size));
  group.all_gather(std::as_bytes(std::span(&value, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

TEST(SocketProcesses, GatherEachOthersValuesInOrderAgainAndAgain) {
  SocketHub hub(3);
  const auto errors = run_ranks(hub, 3, [](const ProcessGroup& group) {
    for (std::int32_t i = 0; i < 100; ++i) {
      EXPECT_EQ(gathered(group, 10 * i + group.rank),
                (std::vector{10 * i, 10 * i + 1, 10 * i + 2}));
    }
  });
  EXPECT_EQ(errors, std::vector<std::string>(3));
}

TEST(SocketProcesses, GetWhatTheRootHas) {
  SocketHub hub(3);
  const auto errors = run_ranks(hub, 3, [](const ProcessGroup& group) {
    std::array<std::int32_t, 2> values{};
    if (group.rank == 2) values = {7, -1};
    group.broadcast(std::as_writable_bytes(std::span(values)), 2);
    EXPECT_EQ(values, (std::array<std::int32_t, 2>{7, -1}));
  });
  EXPECT_EQ(errors, std::vector<std::string>(3));
}

TEST(SocketProcesses, GatherMoreThanASocketHolds) {
  constexpr std::size_t kValues = 500'000;
  SocketHub hub(2);
  const auto errors = run_ranks(hub, 2, [](const ProcessGroup& group) {
    const std::vector<std::int32_t> own(kValues, 1 + group.rank);
    std::vector<std::int32_t> all(2 * kValues);
    group.all_gather(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
    EXPECT_EQ(all.front(), 1);
    EXPECT_EQ(all[kValues - 1], 1);
    EXPECT_EQ(all[kValues], 2);
    EXPECT_EQ(all.back(), 2);
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

TEST(SocketProcesses, WaitForTheLastAtABarrier) {
  SocketHub hub(3);
  std::atomic<int> num_came{0};
  const auto errors = run_ranks(hub, 3, [&](const ProcessGroup& group) {
    if (group.rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ++num_came;
    group.barrier();
    EXPECT_EQ(num_came, 3);
  });
  EXPECT_EQ(errors, std::vector<std::string>(3));
}

// Rank 1 ends after the first exchange: those that wait, and those that come later, are told.
TEST(SocketProcesses, SayWhichRankHasEnded) {
  SocketHub hub(3);
  const auto errors = run_ranks(hub, 3, [](const ProcessGroup& group) {
    group.barrier();
    if (group.rank == 1) return;
    if (group.rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    group.barrier();
  });
  const std::string expected = "rank 1 has ended before it came to exchange 1 of the ranks";
  EXPECT_EQ(errors, (std::vector<std::string>{expected, "", expected}));
}

TEST(SocketProcesses, SayOfAllLaterExchangesToo) {
  SocketHub hub(2);
  const auto errors = run_ranks(hub, 2, [](const ProcessGroup& group) {
    if (group.rank == 1) return;
    EXPECT_THROW(group.barrier(), std::runtime_error);
    group.barrier();
  });
  EXPECT_NE(errors[0].find("rank 1 has ended"), std::string::npos) << errors[0];
}

TEST(SocketProcesses, SayWhichRankHasNotComeInTime) {
  SocketHub hub(3, /*limit=*/Seconds(0.25));
  const auto errors = run_ranks(hub, 3, [](const ProcessGroup& group) {
    if (group.rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(600));
    group.barrier();
  });
  const std::string expected = "rank 2 has not come to exchange 0 of the ranks within 0.250000 s";
  EXPECT_EQ(errors, std::vector<std::string>(3, expected));
}

TEST(SocketProcesses, SayWhichRankCameWithAMessageOfAnotherSize) {
  SocketHub hub(3);
  const auto errors = run_ranks(hub, 3, [](const ProcessGroup& group) {
    std::vector<std::byte> own(group.rank == 2 ? 5 : 4);
    std::vector<std::byte> all(12);
    group.all_gather(own, all);
  });
  const std::string expected =
      "rank 2 came to exchange 0 of the ranks with 5 bytes, expected as many as rank 0";
  EXPECT_EQ(errors, std::vector<std::string>(3, expected));
}

TEST(SocketProcesses, NoticeThatTheProcessThatStartedThemHasEnded) {
  std::string error;
  std::jthread rank;
  {
    SocketHub hub(2);
    rank = std::jthread([&, socket = hub.take_socket(0)] {
      const SocketProcesses processes(socket, 0, 2);
      try {
        processes.group().barrier();
      } catch (const std::runtime_error& found) {
        error = found.what();
      }
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  rank.join();
  EXPECT_EQ(error, "the process that has started the ranks has ended, before exchange 0");
}

}  // namespace
}  // namespace orrery
