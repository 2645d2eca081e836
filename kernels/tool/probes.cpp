#include "kernels/tool/probes.h"

#include <cstdio>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/nvml.h"
#include "kernels/probes/clock.h"
#include "kernels/probes/corun.h"
#include "kernels/probes/launch.h"
#include "kernels/probes/memory.h"
#include "kernels/probes/stream.h"
#include "kernels/probes/sync.h"
#include "kernels/probes/trace.h"

namespace orrery::tool {
namespace {

constexpr char kProvenanceHeader[] = "device,driver,cuda,sm_clock_mhz,power_limit_w";

// "NVIDIA H200,580.159.04,13.0,1980,700"
std::string provenance() {
  int device = 0;
  int runtime = 0;
  ORRERY_CUDA(cudaGetDevice(&device));
  ORRERY_CUDA(cudaRuntimeGetVersion(&runtime));
  const cuda::Board board = cuda::Board::of_device(device);
  char numbers[64];
  std::snprintf(numbers, sizeof(numbers), "%d.%d,%.0f,%.0f", runtime / 1000, runtime % 1000 / 10,
                board.max_sm_clock_mhz(), board.power_limit_watts());
  return std::string(cuda::device_properties().name) + "," + board.driver() + "," + numbers;
}

void print_header() {
  std::printf("%s,probe,parameters,unit,median,spread,samples\n", kProvenanceHeader);
}

void print_rows(const std::string& where, std::span<const ProbeRow> rows) {
  for (const ProbeRow& row : rows) {
    std::printf("%s,%s,%s,%.*s,%.4f,%.4f,%d\n", where.c_str(), row.probe.c_str(),
                row.parameters.c_str(), static_cast<int>(row.unit.size()), row.unit.data(),
                row.median, row.spread, row.samples);
  }
  std::fflush(stdout);
}

}  // namespace

void print_launch_probes() {
  print_header();
  print_rows(provenance(), probe_launch());
}

void print_trace_probes() {
  print_header();
  print_rows(provenance(), probe_trace());
}

void print_memory_probes() {
  const std::vector<ProbeRow> rows = probe_memory();  // before anything else makes a context
  print_header();
  print_rows(provenance(), rows);
}

void print_all_probes() {
  const std::string where = provenance();
  print_header();
  print_rows(where, probe_launch());
  print_rows(where, probe_sync());
  print_rows(where, probe_stream());
  print_rows(where, probe_clock());
}

void print_co_runs(std::string_view load) {
  const std::string where = provenance();
  std::printf(
      "%s,first,second,first_alone_us,first_together_us,second_alone_us,second_together_us,spread,"
      "repeats,clock_mhz\n",
      kProvenanceHeader);
  co_run(load, [&](const CoRunRow& row) {
    std::printf("%s,%s,%s,%.2f,%.2f,%.2f,%.2f,%.4f,%d,%.0f\n", where.c_str(),
                row.first.load.c_str(), row.second.load.c_str(), microseconds(row.first.alone),
                microseconds(row.first.together), microseconds(row.second.alone),
                microseconds(row.second.together), row.spread, row.repeats, row.sm_clock_mhz);
    std::fflush(stdout);
  });
}

}  // namespace orrery::tool
