#include <cuda_runtime.h>

#include <functional>
#include <numeric>

#include "kernels/comm/collectives/collective.h"
#include "kernels/cuda/devices.h"
#include "kernels/cuda/kernel_trace.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/matmul_lt.h"
#include "kernels/cuda/nccl.h"
#include "kernels/cuda/nvml.h"
#include "kernels/probes/memory.h"

namespace orrery {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

struct LargeArguments {
  std::byte bytes[1024];
};

__global__ void small_kernel(int* value) {
  if (value != nullptr) *value = 1;
}
__global__ void large_kernel(int* value, const __grid_constant__ LargeArguments arguments) {
  if (value != nullptr) *value = static_cast<int>(arguments.bytes[threadIdx.x]);
}

class Meter {
 public:
  // Free memory now; creates the context.
  void start() { before_ = free_memory(); }
  void add(std::string probe, std::string parameters, double mebibytes) {
    rows_.push_back(probe_row(std::move(probe), std::move(parameters), "MiB", {mebibytes}));
  }
  // What has been taken since the last call.
  void taken(std::string probe, std::string parameters) {
    const double now = free_memory();
    add(std::move(probe), std::move(parameters), before_ - now);
    before_ = now;
  }
  std::vector<ProbeRow> rows() && { return std::move(rows_); }

 private:
  static double free_memory() {
    std::size_t free = 0;
    std::size_t total = 0;
    ORRERY_CUDA(cudaMemGetInfo(&free, &total));
    return static_cast<double>(free) / kMiB;
  }
  std::vector<ProbeRow> rows_;
  double before_ = 0;
};

void measure_allocations(Meter& meter) {
  struct Kind {
    const char* name;
    int count;
    std::size_t bytes;
  };
  for (const Kind& kind :
       {Kind{"1000 of 4 KiB", 1000, 4096}, Kind{"64 of 2 MiB + 1", 64, (std::size_t{2} << 20) + 1},
        Kind{"1 of 1 GiB + 1", 1, (std::size_t{1} << 30) + 1}}) {
    {
      std::vector<cuda::DeviceBuffer<std::byte>> buffers;
      for (int i = 0; i < kind.count; ++i) buffers.emplace_back(kind.bytes);
      meter.taken("malloc", kind.name);
    }
    meter.taken("malloc_freed", kind.name);
  }
}

void measure_gemms(Meter& meter, const cuda::Stream& stream) {
  constexpr std::int64_t kSide = 4096;
  const cuda::DeviceBuffer<bf16> matrix(kSide * kSide);
  const cuda::DeviceBuffer<bf16> result(kSide * kSide);
  meter.start();
  for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{64}, std::int64_t{512}, kSide}) {
    const MatmulLt gemm(rows, kSide, kSide);
    gemm.launch(stream, result.get(), matrix.get(), matrix.get());
    stream.synchronize();
    meter.taken("gemm", "with its workspace, rows=" + std::to_string(rows));
  }
  meter.taken("gemm", "workspaces freed");
}

void measure_graphs(Meter& meter, const cuda::Stream& stream) {
  const cuda::LaunchShape shape{.grid = dim3(1), .block = dim3(32)};
  const auto graph_of = [&](int nodes, bool is_large) {
    return cuda::Graph::capture(stream, [&] {
      for (int i = 0; i < nodes; ++i) {
        if (is_large) {
          cuda::launch(stream, shape, large_kernel, nullptr, LargeArguments{});
        } else {
          cuda::launch(stream, shape, small_kernel, nullptr);
        }
      }
    });
  };
  cuda::launch(stream, shape, small_kernel, nullptr);
  cuda::launch(stream, shape, large_kernel, nullptr, LargeArguments{});
  stream.synchronize();
  meter.taken("graph", "kernels loaded");
  std::vector<cuda::Graph> graphs;
  for (const bool is_large : {false, true}) {
    for (const int nodes : {1, 100, 300, 300, 300, 1000, 3000}) {
      const std::string parameters =
          std::to_string(nodes) + (is_large ? " nodes of 1 KiB arguments" : " nodes of 8 bytes");
      graphs.push_back(graph_of(nodes, is_large));
      meter.taken("graph_made", parameters);
      graphs.back().launch(stream);
      stream.synchronize();
      meter.taken("graph_launched", parameters);
    }
  }
  graphs.clear();
  meter.taken("graph", "all destroyed");
}

void measure_peers(Meter& meter) {
  std::vector<int> devices(cuda::device_count());
  std::iota(devices.begin(), devices.end(), 0);
  const std::string among = "gpus=" + std::to_string(devices.size());
  const cuda::DeviceTeam team(devices);
  meter.taken("peers", among);
  std::vector<std::vector<cuda::Communicator>> all;
  for (const char* const which : {"first", "second"}) {
    all.push_back(cuda::Communicator::for_devices(devices));
    meter.taken("nccl_communicator", among + " " + which);
    constexpr std::int64_t kCount = 1 << 22;
    std::vector<cuda::DeviceBuffer<std::byte>> buffers;
    for (const int device : devices) {
      const cuda::DeviceGuard guard(device);
      buffers.emplace_back(4 * kCount);
    }
    meter.start();
    for (const CollectiveKind kind :
         {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
          CollectiveKind::kBroadcast, CollectiveKind::kSendRecv, CollectiveKind::kAllToAll}) {
      team.run([&](int rank) {
        std::byte* const memory = buffers[rank].get();
        nccl_collective(
            all.back()[rank], team.stream(rank),
            {.kind = kind, .count = kCount / 2, .input = memory, .output = memory + 2 * kCount});
      });
      team.synchronize();
      meter.taken("nccl_call",
                  among + " " + which + " kind=" + std::to_string(static_cast<int>(kind)));
    }
  }
  all.clear();
  meter.start();
}

}  // namespace

std::vector<ProbeRow> probe_memory() {
  Meter meter;
  int device = 0;
  ORRERY_CUDA(cudaGetDevice(&device));
  const cuda::Board board = cuda::Board::of_device(device);
  const cuda::BoardMemory before = board.memory();
  meter.add("total", "", before.total.value() / kMiB);
  meter.add("reserved", "", before.reserved.value() / kMiB);
  meter.add("held_before", "", (before.total - before.reserved - before.free).value() / kMiB);
  meter.start();
  meter.add("context", "", (before.free - board.memory().free).value() / kMiB);
  const cuda::Stream stream;
  meter.taken("stream", "");
  measure_allocations(meter);
  measure_gemms(meter, stream);
  measure_graphs(meter, stream);
  if (cuda::device_count() > 1) measure_peers(meter);
  if (kernel_trace_problem().empty()) {
    meter.start();
    {
      KernelTrace trace;
      cuda::launch(stream, {.grid = dim3(1), .block = dim3(32)}, small_kernel, nullptr);
      stream.synchronize();
      static_cast<void>(trace.take());
      meter.taken("trace", "on");
    }
    meter.taken("trace", "off again");
  }
  return std::move(meter).rows();
}

}  // namespace orrery
