// What the cost model says of every call that the shipped tables measured, of calls between them,
// and of those on other devices, in both launch modes and at each clock. Usage:
// orrery_frozen_prices ROOT all|sample [TEXT]: of large tables all rows or a sample; sections with
// TEXT in their names alone.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "sim/cost/collectives.h"
#include "sim/cost/kernel_table.h"
#include "sim/cost/provider_tables.h"
#include "sim/scenario/assembly.h"
#include "sim/scenario/machine_file.h"
#include "tests/frozen/section.h"

namespace orrery::frozen {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 3> kClocks = {"full", "limited", "arithmetic"};
using Clock = std::string_view;
constexpr std::array kModes = {LaunchMode::kEager, LaunchMode::kGraph};

// The places that ask the model. Of the clock "arithmetic" the time is that at the full clock and
// that of the arithmetic once more.
Estimate at(Estimate estimate, Clock clock) {
  if (clock == "limited") estimate.time = estimate.limited;
  if (clock == "arithmetic") estimate.time += estimate.arithmetic;
  return estimate;
}
Estimate kernel_price(const Assembly& assembly, LaunchMode mode, Clock clock, const KernelOp& op) {
  return at(assembly.cost(mode).kernel(op), clock);
}
Estimate collective_price(const Assembly& assembly, LaunchMode mode, Clock clock, const CommOp& op,
                          std::span<const int> ranks) {
  return at(assembly.cost(mode).collective(op, ranks), clock);
}

struct Asked {
  std::string machine;
  std::string provider;
  std::string profile;
  std::string distribution = "power_law_1.01";
  int num_gpus = 1;

  [[nodiscard]] std::string name() const {
    return "by " + profile + (provider == "none" ? " without tables" : "") + " on " + machine;
  }
};

fs::path root;
bool asks_all = false;
std::string_view wanted;  // in the name of a section

Scenario scenario_of(const Asked& asked) {
  return load_scenario(
      root / "tests/frozen/base.yaml", {.root = root},
      {"machine=" + asked.machine, "provider=" + asked.provider, "engine.profile=" + asked.profile,
       "model.expert_load=" + asked.distribution,
       "placement={dp: " + std::to_string(asked.num_gpus) + "}"});
}

// A section for each launch mode and clock; `write` appends to it what the model says there.
template <typename Write>
void for_each_state(const std::string& name, Write write) {
  for (const LaunchMode mode : kModes) {
    for (Clock clock : kClocks) {
      const std::string full = name + " " + std::string(to_text(mode)) + " " + std::string(clock);
      if (full.find(wanted) == std::string::npos) continue;
      Section section(full);
      write(section, mode, clock);
      section.print();
    }
  }
}

// `ask`'s answer, or that it refuses to give one.
template <typename Ask>
void append_price(Section& section, Ask ask) {
  try {
    const Estimate found = ask();
    section.number(found.time.value()).text(to_text(found.basis)).number(found.spread);
  } catch (const std::invalid_argument&) {
    section.text("refused");
  }
  section.end_line();
}

void append_kernel(Section& section, const Assembly& assembly, LaunchMode mode, Clock clock,
                   const KernelOp& op) {
  section.text(to_text(op.dtype));
  for (const Dim& dim : op.dims) section.whole(dim.size);
  append_price(section, [&] { return kernel_price(assembly, mode, clock, op); });
}

KernelOp op_of(const KernelRows& rows, std::int64_t row) {
  KernelOp op{.kernel = std::string(rows.spec->name), .dtype = rows.dtype[row], .dims = {}};
  const auto sizes = rows.row_dims(row);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    op.dims.push_back({.name = std::string(rows.spec->dims[i].name), .size = sizes[i], .axis = {}});
  }
  return op;
}

// The call of a row with one dim, another for each row, half as large again: between rows of its
// family, beyond them, or of a family that no row is of.
KernelOp between(const KernelRows& rows, std::int64_t row) {
  KernelOp op = op_of(rows, row);
  Dim& moved = op.dims[static_cast<std::size_t>(row) % op.dims.size()];
  moved.size += (moved.size + 1) / 2;
  return op;
}

// Rows of tables that hold more than this are many of a kind, and one in so many is a sample.
constexpr std::int64_t kFewRows = 4000;
constexpr std::int64_t kSample = 20;

struct RowChoice {
  std::string_view name;
  bool (*takes)(std::int64_t row, std::int64_t stride) = nullptr;
};
constexpr RowChoice kEvery{"",
                           [](std::int64_t row, std::int64_t stride) { return row % stride == 0; }};
constexpr RowChoice kOthers{
    "other ", [](std::int64_t row, std::int64_t stride) { return row % stride != 0; }};

// Loads of experts that a scenario can name; rows of others are no one's.
constexpr std::array<std::string_view, 4> kExpertLoads = {"balanced", "uniform", "power_law_1.01",
                                                          "power_law_1.2"};

// Prices of calls made of the rows of a table, of those that `choice` takes.
void price_rows(const std::string& label, const KernelRows& rows, Asked asked, std::int64_t stride,
                const RowChoice& choice, KernelOp (*call)(const KernelRows&, std::int64_t)) {
  const std::size_t num_distributions = std::max<std::size_t>(1, rows.distributions.size());
  for (std::size_t d = 0; d < num_distributions; ++d) {
    std::string name = std::string(choice.name) + label + " " + std::string(rows.spec->name);
    if (!rows.distributions.empty()) {
      if (std::ranges::find(kExpertLoads, rows.distributions[d]) == kExpertLoads.end()) continue;
      asked.distribution = rows.distributions[d];
      name += " " + asked.distribution;
    }
    const Assembly assembly(scenario_of(asked));
    for_each_state(name + " " + asked.name(), [&](Section& section, LaunchMode mode, Clock clock) {
      for (std::int64_t row = 0; row < rows.num_rows(); ++row) {
        if (!choice.takes(row, stride)) continue;
        if (!rows.distributions.empty() && rows.distribution[row] != d) continue;
        append_kernel(section, assembly, mode, clock, call(rows, row));
      }
    });
  }
}

// Tables of a provider, and where they are asked: the first profile and the first machine, which
// has the device that they were measured on, are their own.
struct Measured {
  std::string device;
  std::string provider;
  std::vector<std::string> profiles;
  std::vector<std::string> machines;
};
const std::vector<Measured> kMeasured = {
    {"h200-sxm", "orrery", {"orrery"}, {"hgx-h200", "hgx-h800", "hgx-b200"}},
    {"h200-sxm",
     "vllm-0.24.0",
     {"vllm", "vllm_sync", "vllm_eager"},
     {"hgx-h200", "hgx-h20", "hgx-b200"}},
    {"h200-sxm", "sglang-0.5.14", {"sglang", "sglang_mixed"}, {"hgx-h200", "hgx-h100", "hgx-a100"}},
    {"h200-sxm",
     "trtllm-1.3.0rc20",
     {"trtllm", "trtllm_engine"},
     {"hgx-h200", "hgx-h100", "gb200-nvl72"}},
    {"h200-sxm", "sglang-0.5.10-deepep-low-latency", {"sglang_deepep"}, {"hgx-h200"}},
    {"h200-sxm", "sglang-0.5.10-deepep-normal", {"sglang_deepep"}, {"hgx-h200"}},
    {"h100-sxm", "orrery", {"orrery"}, {"hgx-h100", "hgx-h200"}},
    {"h100-sxm", "sglang-0.5.10-deepep-low-latency", {"sglang_deepep"}, {"hgx-h100"}},
    {"h100-sxm", "sglang-0.5.10-deepep-normal", {"sglang_deepep"}, {"hgx-h100"}},
    {"h100-sxm", "vllm-0.24.0", {"vllm"}, {"hgx-h100", "hgx-h200", "hgx-b300"}}};

void price_provider(const Measured& measured) {
  const fs::path directory = root / "topologies/devices" / measured.device / measured.provider;
  const Provider provider = Provider::load(directory);
  const Asked own{.machine = measured.machines.front(),
                  .provider = measured.provider,
                  .profile = measured.profiles.front()};
  const std::string label = "rows " + measured.device + "/" + measured.provider;
  for (const std::string& kernel : provider.kernels()) {
    const KernelRows rows = read_kernel_rows(directory / (kernel + ".csv"));
    const std::int64_t sample = rows.num_rows() > kFewRows ? kSample : 1;
    price_rows(label, rows, own, sample, kEvery, op_of);
    if (asks_all && sample > 1) price_rows(label, rows, own, sample, kOthers, op_of);
    price_rows("between " + label, rows, own, 2 * sample, kEvery, between);
    for (std::size_t i = 1; i < measured.profiles.size(); ++i) {
      Asked asked = own;
      asked.profile = measured.profiles[i];
      price_rows(label, rows, asked, 7 * sample, kEvery, op_of);
    }
    for (std::size_t i = 1; i < measured.machines.size(); ++i) {
      Asked asked = own;
      asked.machine = measured.machines[i];
      price_rows(label, rows, asked, 3 * sample, kEvery, op_of);
    }
    Asked none = own;
    none.provider = "none";
    price_rows(label, rows, none, 5 * sample, kEvery, op_of);
  }
}

// A shipped provider that the list does not name would not be frozen.
void require_all_named() {
  for (const auto& device : fs::directory_iterator(root / "topologies/devices")) {
    for (const std::string& provider : provider_names(device.path())) {
      const std::string name = device.path().filename().string();
      const bool is_named = std::ranges::any_of(kMeasured, [&](const Measured& measured) {
        return measured.device == name && measured.provider == provider;
      });
      if (!is_named) {
        throw std::invalid_argument("tests/frozen/prices.cpp: kMeasured lacks " + name + "/" +
                                    provider);
      }
    }
  }
}

// Every kernel by its work model alone, in every format, in calls whose dims are equal or differ.
void price_rooflines() {
  constexpr std::array kDTypes = {DType::kFp32,     DType::kBf16,  DType::kFp16,  DType::kFp8,
                                  DType::kFp8Block, DType::kMxfp4, DType::kNvfp4, DType::kInt4,
                                  DType::kInt8,     DType::kInt32};
  const auto size_of = [](std::size_t call, std::size_t dim) -> std::int64_t {
    constexpr std::array<std::int64_t, 3> kEqual = {1, 64, 1031};
    if (call < kEqual.size()) return kEqual[call];
    const std::size_t place = (dim * (call - kEqual.size() + 1) + call) % 5;
    return std::int64_t{4096} >> (2 * place);
  };
  for (const char* machine : {"hgx-h200", "hgx-b200", "mi300x-node"}) {
    const Asked asked{.machine = machine, .provider = "none", .profile = "orrery"};
    const Assembly assembly(scenario_of(asked));
    const auto write = [&](Section& section, LaunchMode mode, Clock clock) {
      for (const KernelSpec& spec : kernel_specs()) {
        for (const DType dtype : kDTypes) {
          for (std::size_t call = 0; call < 8; ++call) {
            KernelOp op{.kernel = std::string(spec.name), .dtype = dtype, .dims = {}};
            for (std::size_t i = 0; i < spec.dims.size(); ++i) {
              op.dims.push_back(
                  {.name = std::string(spec.dims[i].name), .size = size_of(call, i), .axis = {}});
            }
            section.text(spec.name);
            append_kernel(section, assembly, mode, clock, op);
          }
        }
      }
    };
    for_each_state("specs " + asked.name(), write);
  }
}

// Each point of each curve on the machine it was measured on and on others, and among more GPUs
// than a domain has.
void price_collectives(const std::string& measured_on, const Asked& asked) {
  const CollectiveTables tables = CollectiveTables::load(root / "topologies" / measured_on);
  const Assembly assembly(scenario_of(asked));
  const auto write = [&](Section& section, LaunchMode mode, Clock clock) {
    for (const auto& [key, curve] : tables.tables().curves) {
      const int num_ranks = key.num_gpus * asked.num_gpus / 8;
      std::vector<int> ranks(static_cast<std::size_t>(num_ranks));
      std::iota(ranks.begin(), ranks.end(), 0);
      for (const double bytes : curve.bytes) {
        CommOp op{.kind = key.kind,
                  .dtype = key.element_bytes == 1 ? DType::kFp8 : DType::kBf16,
                  .bytes_per_rank = Bytes(1)};
        op.bytes_per_rank = Bytes(bytes / table_bytes(op, num_ranks));
        section.text(to_text(op.kind)).text(to_text(op.dtype)).whole(num_ranks);
        section.text(key.implementation).text(key.mode).number(bytes);
        append_price(section, [&] { return collective_price(assembly, mode, clock, op, ranks); });
      }
    }
  };
  for_each_state("collectives " + measured_on + " " + asked.name(), write);
}

void price_all_collectives() {
  std::vector<std::string> profiles;
  for (const auto& file : fs::directory_iterator(root / "scenarios/engines")) {
    profiles.push_back(file.path().stem().string());
  }
  std::ranges::sort(profiles);
  for (const char* measured_on : {"hgx-h100", "hgx-h200"}) {
    for (const std::string& profile : profiles) {
      price_collectives(
          measured_on,
          {.machine = measured_on, .provider = "none", .profile = profile, .num_gpus = 8});
    }
    for (const char* machine : {"hgx-b200", "hgx-h20", "mi300x-node"}) {
      price_collectives(measured_on,
                        {.machine = machine, .provider = "none", .profile = "vllm", .num_gpus = 8});
    }
    price_collectives(measured_on, {.machine = "{name: h200-cluster, num_gpus: 16}",
                                    .provider = "none",
                                    .profile = "vllm",
                                    .num_gpus = 16});
  }
}

void print_host(const std::string& profile) {
  const Assembly assembly(
      scenario_of({.machine = "hgx-h200", .provider = "none", .profile = profile}));
  for_each_state("host by " + profile, [&](Section& section, LaunchMode mode, Clock clock) {
    for (const HostKind kind :
         {HostKind::kLaunchGap, HostKind::kD2hSync, HostKind::kScheduler, HostKind::kSampling}) {
      section.text(to_text(kind));
      append_price(section, [&] { return at(assembly.cost(mode).host({.kind = kind}), clock); });
    }
  });
}

}  // namespace
}  // namespace orrery::frozen

int main(int argc, char** argv) {
  using namespace orrery::frozen;
  if (argc < 3 || argc > 4) {
    std::fputs("usage: orrery_frozen_prices ROOT all|sample [TEXT]\n", stderr);
    return 2;
  }
  root = argv[1];
  asks_all = std::string_view(argv[2]) == "all";
  if (argc == 4) wanted = argv[3];
  require_all_named();
  for (const Measured& measured : kMeasured) price_provider(measured);
  price_rooflines();
  price_all_collectives();
  for (const char* profile : {"orrery", "sglang", "trtllm", "vllm", "vllm_eager"}) {
    print_host(profile);
  }
  return 0;
}
