#include "kernels/probes/clock.h"

#include <functional>
#include <string>
#include <thread>

#include "kernels/cuda/matmul_lt.h"
#include "kernels/cuda/nvml.h"
#include "kernels/harness/operands.h"
#include "kernels/probes/stream.h"

namespace orrery {
namespace {

constexpr std::int64_t kSize = 8192;  // of the GEMM's three dims
constexpr std::size_t kReadBytes = std::size_t{4} << 30;
constexpr Seconds kReading{0.02};

struct Load {
  std::string name;
  double work = 0;  // of one launch, in units of 1e12 FLOP or 1e9 bytes
  std::string_view unit;
  std::function<void(const cuda::Stream&)> launch;
};

void pause() { std::this_thread::sleep_for(std::chrono::duration<double>(kReading.value())); }

int current_device() {
  int device = 0;
  ORRERY_CUDA(cudaGetDevice(&device));
  return device;
}

// Keeps about two readings' worth of launches queued for `duration`, reading the board each time
// half of them have run.
void run_load(const cuda::Board& board, const Load& load, Seconds duration,
              std::vector<ProbeRow>& rows) {
  const cuda::Stream stream;
  const cuda::Event begin;
  const cuda::Event end;
  load.launch(stream);
  begin.record(stream);
  load.launch(stream);
  end.record(stream);
  end.synchronize();
  const int launches = std::max(1, static_cast<int>(kReading / (end - begin)));
  std::vector<cuda::Event> marks(2);
  std::vector<double> clocks;
  std::vector<double> powers;
  std::vector<double> rates;
  std::vector<double> first_clocks;
  const Seconds start = host_now();
  marks[0].record(stream);
  for (std::size_t i = 1; host_now() - start < duration; ++i) {
    for (int launch = 0; launch < launches; ++launch) load.launch(stream);
    marks[i % 2].record(stream);
    // The batch before this one has ended; this one runs while the board is read.
    marks[(i + 1) % 2].synchronize();
    const Seconds passed = host_now() - start;
    const double clock = board.sm_clock_mhz();
    const double power = board.power_watts();
    if (passed < Seconds(0.1)) first_clocks.push_back(clock);
    marks[i % 2].synchronize();
    if (passed < duration / 2) continue;
    clocks.push_back(clock);
    powers.push_back(power);
    rates.push_back(load.work * launches / (marks[i % 2] - marks[(i + 1) % 2]).value());
  }
  rows.push_back(probe_row("clock_" + load.name + "_first", "", "MHz", first_clocks));
  rows.push_back(probe_row("clock_" + load.name, "", "MHz", clocks));
  rows.push_back(probe_row("power_" + load.name, "", "W", powers));
  rows.push_back(probe_row("rate_" + load.name, "", load.unit, rates));
}

void read_idle(const cuda::Board& board, Seconds duration, std::vector<ProbeRow>& rows) {
  std::vector<double> clocks;
  std::vector<double> powers;
  const Seconds start = host_now();
  while (host_now() - start < duration) {
    pause();
    if (host_now() - start < duration / 2) continue;
    clocks.push_back(board.sm_clock_mhz());
    powers.push_back(board.power_watts());
  }
  rows.push_back(probe_row("clock_idle", "", "MHz", clocks));
  rows.push_back(probe_row("power_idle", "", "W", powers));
}

}  // namespace

std::vector<ProbeRow> probe_clock(Seconds duration) {
  const cuda::Board board = cuda::Board::of_device(current_device());
  std::vector<ProbeRow> rows;
  read_idle(board, duration, rows);
  {
    const auto memory = normal_buffer<bf16>(kReadBytes / sizeof(bf16), 3);
    const cuda::DeviceBuffer<std::uint32_t> sum(1);
    run_load(board,
             {.name = "read",
              .work = static_cast<double>(kReadBytes) * 1e-9,
              .unit = "GB/s",
              .launch =
                  [&](const cuda::Stream& stream) {
                    stream_memory(stream, StreamKind::kRead,
                                  {.source = memory.get(), .sum = sum.get(), .bytes = kReadBytes},
                                  {});
                  }},
             duration, rows);
  }
  constexpr auto kCount = static_cast<std::size_t>(kSize * kSize);
  const auto x = normal_buffer<bf16>(kCount, 1);
  const auto w = normal_buffer<bf16>(kCount, 2);
  const cuda::DeviceBuffer<bf16> y(kCount);
  const MatmulLt gemm(kSize, kSize, kSize);
  run_load(
      board,
      {.name = "gemm",
       .work = 2.0 * kSize * kSize * kSize * 1e-12,
       .unit = "TFLOP/s",
       .launch =
           [&](const cuda::Stream& stream) { gemm.launch(stream, y.get(), x.get(), w.get()); }},
      duration, rows);
  return rows;
}

}  // namespace orrery
