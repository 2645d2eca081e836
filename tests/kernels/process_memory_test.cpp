// Memory that processes share: real processes, which this program starts as its own children, on a
// CUDA runtime that needs no GPU. A child is a rank and goes through one of the scenarios.

#include "kernels/comm/processes/process_memory.h"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kernels/comm/processes/socket_processes.h"
#include "kernels/tool/child_process.h"
#include "tests/kernels/fake_shared_cuda.h"

namespace orrery {
namespace {

using testing::shared_cuda;

constexpr int kRanks = 3;
constexpr std::size_t kBytes = 1000;
constexpr std::size_t kWhole = std::size_t{2} << 20;  // that are allocated

// --- scenarios, in the process of a rank ---------------------------------------------------------

void require(bool is_true, const char* what) {
  if (!is_true) throw std::logic_error(std::string("not so: ") + what);
}
#define REQUIRE(expression) require((expression), #expression)

// Each of `ranks` writes its mark into the parts of all, which then hold the marks of all.
void write_into_each_others(const ProcessGroup& group, const std::vector<int>& ranks,
                            const ProcessMemory& memory, int place) {
  const int size = static_cast<int>(ranks.size());
  for (std::size_t i = 0; i < kWhole; ++i) {
    REQUIRE(memory.part(place)[i] == std::byte{0} || i < ranks.size());  // others may have written
  }
  for (int peer = 0; peer < size; ++peer) memory.part(peer)[place] = std::byte(1 + group.rank);
  group.barrier();
  for (int i = 0; i < size; ++i) {
    REQUIRE(memory.part(place)[i] == std::byte(1 + ranks[static_cast<std::size_t>(i)]));
  }
}

void share(const ProcessGroup& group) {
  const std::vector<int> ranks{0, 1, 2};
  ProcessMemory memory(group, ranks, kBytes);
  REQUIRE(shared_cuda().num_mapped == 2);
  write_into_each_others(group, ranks, memory, group.rank);
  if (group.rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  memory.close(group);  // cudaFree fails while others have it mapped
  REQUIRE(shared_cuda().num_mapped == 0);
  REQUIRE(shared_cuda().num_allocated == 0);
}

// Two of three, in another order than that of their numbers.
void share_in_part(const ProcessGroup& group) {
  const std::vector<int> ranks{2, 0};
  ProcessMemory memory(group, ranks, group.rank == 1 ? 0 : kBytes);
  if (group.rank == 1) {
    REQUIRE(shared_cuda().num_allocated == 0);
    REQUIRE(shared_cuda().num_mapped == 0);
    group.barrier();
  } else {
    write_into_each_others(group, ranks, memory, group.rank == 2 ? 0 : 1);
  }
  memory.close(group);
  REQUIRE(shared_cuda().num_allocated == 0);
}

void leave_without_close(const ProcessGroup& group) {
  const std::vector<int> ranks{0, 1, 2};
  {
    const ProcessMemory memory(group, ranks, kBytes);
  }
  REQUIRE(shared_cuda().num_mapped == 0);
  REQUIRE(shared_cuda().num_allocated == 1);
  REQUIRE(shared_cuda().device == group.rank);  // as it was before
}

// That cannot be shared: what is thrown, with nothing left mapped.
void fail(const ProcessGroup& group, std::size_t bytes) {
  const std::vector<int> ranks{0, 1, 2};
  try {
    const ProcessMemory memory(group, ranks, bytes);
  } catch (const std::runtime_error&) {
    REQUIRE(shared_cuda().num_mapped == 0);
    throw;
  }
}

void run_scenario(const std::string& name, const ProcessGroup& group) {
  shared_cuda().device = group.rank;
  const bool is_last = group.rank == kRanks - 1;
  if (name == "share") return share(group);
  if (name == "part") return share_in_part(group);
  if (name == "leave") return leave_without_close(group);
  if (name == "dies" && group.rank == 1) std::raise(SIGKILL);
  if (name == "dies_opening") shared_cuda().dies_on_opening = group.rank == 1;
  if (name == "no_access" && is_last) shared_cuda().without_access = 0;
  if (name == "no_memory") shared_cuda().has_memory = group.rank != 1;
  fail(group, name == "unlike" && group.rank == 1 ? 2 * kBytes : kBytes);
}

int run_rank(int rank, const std::string& name) {
  try {
    const SocketProcesses processes(tool::kChildSocket, rank, kRanks);
    run_scenario(name, processes.group());
    return 0;
  } catch (const std::exception& error) {
    std::printf("%s", error.what());
    return 1;
  }
}

// --- tests ---------------------------------------------------------------------------------------

std::vector<tool::ChildResult> run(const std::string& scenario) {
  std::vector<tool::ChildResult> results(kRanks);
  SocketHub hub(kRanks, /*limit=*/Seconds(20));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    const tool::ChildRun run{.arguments = {"rank", std::to_string(rank), scenario},
                             .environment = {},
                             .mark = "",
                             .limit = Seconds(60),
                             .socket = hub.take_socket(rank)};
    threads.emplace_back([run, &result = results[static_cast<std::size_t>(rank)]] {
      result = tool::run_child(run);
    });
  }
  threads.clear();
  return results;
}

void expect_all_end_well(const std::vector<tool::ChildResult>& results) {
  for (const tool::ChildResult& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_EQ(result.output, "");
  }
}
// All but `killed` say `what`.
void expect_all_say(const std::vector<tool::ChildResult>& results, const std::string& what,
                    int killed = -1) {
  for (int rank = 0; rank < kRanks; ++rank) {
    const tool::ChildResult& result = results[static_cast<std::size_t>(rank)];
    EXPECT_EQ(result.exit_code, rank == killed ? -SIGKILL : 1) << rank;
    if (rank == killed) continue;
    EXPECT_NE(result.output.find(what), std::string::npos) << result.output;
  }
}

TEST(ProcessMemory, IsWrittenByAllProcessesAndFreedOnceNoneHasItMapped) {
  expect_all_end_well(run("share"));
}

TEST(ProcessMemory, IsOfSomeOfTheProcessesInTheirOrder) { expect_all_end_well(run("part")); }

TEST(ProcessMemory, StaysAllocatedWithoutClose) { expect_all_end_well(run("leave")); }

TEST(ProcessMemory, SaysWhichProcessDiedBeforeItsPartWasThere) {
  expect_all_say(run("dies"), "rank 1 has ended", /*killed=*/1);
}

TEST(ProcessMemory, SaysWhichProcessDiedWhileItOpenedParts) {
  expect_all_say(run("dies_opening"), "rank 1 has ended", /*killed=*/1);
}

TEST(ProcessMemory, SaysOnAllProcessesBetweenWhichGpusThereIsNoPeerAccess) {
  expect_all_say(run("no_access"),
                 "rank 2 cannot open the memory of rank 0: GPU 0000:02:00.0 has no peer access to "
                 "GPU 0000:00:00.0");
}

TEST(ProcessMemory, SaysOnAllProcessesWhichOneHasNoMemory) {
  const auto results = run("no_memory");
  expect_all_say(results, "rank 1 has no memory to share: ");
  expect_all_say(results, "cudaMalloc");
}

TEST(ProcessMemory, SaysWhichPartIsOfAnotherSize) {
  expect_all_say(run("unlike"), "rank 1 shares 2000 bytes, expected 1000 as rank 0");
}

MemoryOffer offer_from(const char* host) { return {.host = host, .bytes = kBytes}; }

TEST(ProcessMemory, IsNotSharedBetweenHosts) {
  const std::vector<MemoryOffer> offers = {offer_from("a"), offer_from("b"), offer_from("a")};
  EXPECT_NO_THROW(require_shareable(offers, std::vector{2, 0}));
  try {
    require_shareable(offers, std::vector{0, 1, 2});
    FAIL() << "not refused";
  } catch (const std::invalid_argument& error) {
    EXPECT_EQ(std::string(error.what()),
              "rank 1 is on another host than rank 0, expected all on one: GPUs of several hosts "
              "do not reach each other's memory");
  }
}

TEST(SentText, IsCutOffWhereThereIsNoRoom) {
  EXPECT_EQ(SentText<8>("1234567").view(), "1234567");
  EXPECT_EQ(SentText<8>("123456789").view(), "1234567");
  EXPECT_EQ(SentText<8>().view(), "");
}

}  // namespace
}  // namespace orrery

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() == 3 && arguments[0] == "rank") {
    return orrery::run_rank(std::stoi(arguments[1]), arguments[2]);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
