#include "kernels/tool/probes.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/nvml.h"
#include "kernels/harness/gpu_kernel.h"
#include "kernels/harness/measure.h"
#include "kernels/kernel_spec.h"
#include "kernels/probes/clock.h"
#include "kernels/probes/corun.h"
#include "kernels/probes/host_link.h"
#include "kernels/probes/launch.h"
#include "kernels/probes/machine.h"
#include "kernels/probes/memory.h"
#include "kernels/probes/power_limit.h"
#include "kernels/probes/stream.h"
#include "kernels/probes/sync.h"
#include "kernels/probes/trace.h"

namespace orrery::tool {
namespace {

namespace fs = std::filesystem;

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

constexpr char kRowHeader[] = ",probe,parameters,unit,median,spread,samples\n";

void print_header() { std::printf("%s%s", kProvenanceHeader, kRowHeader); }

std::string text_of(const std::string& where, std::span<const ProbeRow> rows) {
  std::string text;
  for (const ProbeRow& row : rows) {
    char numbers[96];
    std::snprintf(numbers, sizeof(numbers), "%.4f,%.4f,%d\n", row.median, row.spread, row.samples);
    text.append(where).append(",").append(row.probe).append(",").append(row.parameters);
    text.append(",").append(row.unit).append(",").append(numbers);
  }
  return text;
}

void print_rows(const std::string& where, std::span<const ProbeRow> rows) {
  std::fputs(text_of(where, rows).c_str(), stdout);
  std::fflush(stdout);
}

void save_text(const fs::path& file, const std::string& text) {
  std::ofstream stream(file, std::ios::binary | std::ios::trunc);
  stream << text;
  if (!stream.flush()) throw std::runtime_error(file.string() + ": cannot be written");
}

std::string power_limit_text(std::span<const PowerLimitRow> rows) {
  constexpr double kMilli = 1e3;
  std::string text =
      "series,kernel,share_of_time,full_ms,late_ms,longer,onset_ms,calls,sm_clock_mhz\n";
  for (const PowerLimitRow& row : rows) {
    char numbers[128];
    std::snprintf(numbers, sizeof(numbers), "%.3f,%.4f,%.4f,%.3f,", row.share,
                  row.early.value() * kMilli, row.late.value() * kMilli, row.late / row.early);
    text.append("\"").append(row.series).append("\",").append(row.kernel).append(",");
    text += numbers;
    if (row.onset) {
      std::snprintf(numbers, sizeof(numbers), "%.1f", row.onset->value() * kMilli);
      text += numbers;
    }
    std::snprintf(numbers, sizeof(numbers), ",%d,%.0f\n", row.calls, row.sm_clock_mhz);
    text += numbers;
  }
  return text;
}

// Of a batch of the cache's bf16 heads of 128: equal contexts, or as many tokens in others.
Seconds attention_time(std::int64_t batch, std::int64_t context, bool is_uneven) {
  KernelOp op{.kernel = "attention_decode",
              .dtype = DType::kBf16,
              .dims = {{"batch", batch},
                       {"context", context},
                       {"heads", 32},
                       {"kv_heads", 8},
                       {"head_dim", 128},
                       {"window", std::int64_t{1} << 30}}};
  const Work work = work_of(op);
  if (is_uneven) op.dims.push_back({"uneven", 1});
  const auto kernel_case =
      gpu_kernel(op.kernel).make_case(op, {.sets = sets_for(work.bytes_read + work.bytes_written)});
  constexpr Seconds kBudget{0.03};
  return measure(*kernel_case, {.min_samples = 5, .budget = kBudget}).median;
}

std::string uneven_attention_text() {
  std::string text = "heads,kv_heads,batch,context,even_us,uneven_us\n";
  for (const std::int64_t context : {700, 1150, 2000}) {
    for (const std::int64_t batch : {4, 8, 16, 32, 64, 128}) {
      char row[96];
      std::snprintf(row, sizeof(row), "32,8,%lld,%lld,%.2f,%.2f\n", static_cast<long long>(batch),
                    static_cast<long long>(context),
                    microseconds(attention_time(batch, context, false)),
                    microseconds(attention_time(batch, context, true)));
      text += row;
    }
  }
  return text;
}

}  // namespace

void write_device_probes(const fs::path& directory, bool quick) {
  fs::create_directories(directory);
  const auto write = [&](const char* name, const auto& text_of_probe) {
    if (!fs::exists(directory / name)) save_text(directory / name, text_of_probe());
  };
  write("probes.csv", [&] {
    const std::string where = provenance();
    return std::string(kProvenanceHeader) + kRowHeader + text_of(where, probe_launch()) +
           text_of(where, probe_clock(Seconds(quick ? 0.5 : 1.0)));
  });
  write("power_limit.csv", [&] { return power_limit_text(probe_power_limit(quick)); });
  if (!quick) write("uneven_attention.csv", uneven_attention_text);
}

void print_launch_probes() {
  print_header();
  print_rows(provenance(), probe_launch());
}

void print_trace_probes() {
  print_header();
  print_rows(provenance(), probe_trace());
}

void print_machine_probes() {
  print_header();
  print_rows(provenance(), probe_machine());
}

void print_host_link_probes() {
  print_header();
  print_rows(provenance(), probe_host_link());
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
