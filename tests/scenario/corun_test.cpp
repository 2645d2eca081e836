// Pairs of loads side by side on an H200 (topologies/devices/h200-sxm/corun.csv) against what the
// simulator makes of them (docs/sharing.md). The parameters of device.yaml come from loads alone,
// so every pair is held out.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kernel_spec.h"
#include "sim/cost/csv_reader.h"
#include "sim/des/gpu_shares.h"
#include "sim/scenario/machine_file.h"
#include "tests/des/step_builder.h"

namespace orrery::test {
namespace {

const std::filesystem::path kDevice =
    std::filesystem::path(ORRERY_SOURCE_DIR) / "topologies/devices/h200-sxm";

const Device& h200() {
  static const Device device = read_device(kDevice / "device.yaml");
  return device;
}

// "read bytes=536870912 blocks=32": a word, then dims.
struct Load {
  std::string name;
  std::string kind;
  std::map<std::string, std::string> dims;
  Seconds alone;

  [[nodiscard]] double dim(const std::string& dim) const {
    const auto found = dims.find(dim);
    return found == dims.end() ? 0 : std::stod(found->second);
  }
  // Blocks that each keep an SM for the whole kernel and have equal shares of it, one for each SM.
  [[nodiscard]] bool is_one_wave() const { return dim("blocks") == h200().num_sms; }
  [[nodiscard]] bool is_to_peer() const { return kind.starts_with("peer_"); }
  [[nodiscard]] bool has_other_split() const { return dims.contains("split"); }
};

struct Pair {
  std::array<Load, 2> loads;
  std::array<Seconds, 2> together;  // per launch
};

Load parse_load(const std::string& text, Seconds alone) {
  Load load{.name = text, .alone = alone};
  std::istringstream words(text);
  words >> load.kind;
  for (std::string word; words >> word;) {
    const auto equals = word.find('=');
    load.dims[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return load;
}

std::vector<Pair> read_pairs(const std::filesystem::path& file) {
  CsvReader csv(file);
  std::vector<Pair> pairs;
  const auto time = [&](const std::string& column) {
    return Seconds(csv.positive_number(csv.require(column)) * 1e-6);
  };
  while (csv.next()) {
    Pair pair;
    for (std::size_t side = 0; side < 2; ++side) {
      const std::string name = side == 0 ? "first" : "second";
      pair.loads[side] =
          parse_load(std::string(csv.text(csv.require(name))), time(name + "_alone_us"));
      pair.together[side] = time(name + "_together_us");
    }
    pairs.push_back(std::move(pair));
  }
  return pairs;
}

double sm_share(double sms) { return sms > 0 ? sms / h200().num_sms : 1; }

// One that takes `alone`, with as many rounds as a price of our own table says.
des::GpuDemand gemm_demand(const Dims& dims, Seconds alone) {
  const KernelOp op{.kernel = "gemm", .dtype = DType::kBf16, .dims = dims};
  const int rounds = kernel_spec("gemm").rounds(op.dtype, op.dims);
  return des::kernel_demand(h200(), op, {.time = alone, .rounds = rounds});
}

des::GpuDemand demand_of(const Load& load) {
  des::GpuDemand demand{.sms = sm_share(load.dim("blocks")), .math = 0};
  if (load.is_one_wave()) demand.rounds = 1;
  if (load.kind == "gemm") {
    Dims dims;
    for (const char* name : {"m", "n", "k"}) {
      dims.push_back({name, static_cast<std::int64_t>(load.dim(name))});
    }
    demand = gemm_demand(dims, load.alone);
    demand.sms = sm_share(load.dim("sms"));
  } else if (load.kind == "peer_all_reduce") {
    demand = des::collective_demand(h200().sharing, sm_share(SimulateOptions{}.comm_sms),
                                    Bytes(load.dim("bytes")), load.alone);
  } else if (load.kind == "peer_copy" || load.kind == "peer_write") {
    demand.hbm = std::min(Bytes(load.dim("bytes")) / h200().sharing.hbm_rate / load.alone, 1.0);
    if (load.kind == "peer_copy") demand.sms = 0;
  } else if (load.kind == "read" || load.kind == "write" || load.kind == "copy") {
    const Bytes bytes(load.dim("bytes") * (load.kind == "copy" ? 2 : 1));
    demand.hbm = std::min(bytes / h200().sharing.hbm_rate / load.alone, 1.0);
  }
  return demand;
}

#ifndef ORRERY_NO_SIMGRID

// Time per launch of both loads in the simulator, taken as the measurement takes it: the same
// number of launches of each on a stream of its own, counted while both run, less the first tenth.
std::array<Seconds, 2> simulated(const Pair& pair) {
  StepBuilder step;
  std::vector<des::GpuDemand> demands;
  for (int side = 0; side < 2; ++side) {
    const Load& load = pair.loads[static_cast<std::size_t>(side)];
    constexpr int kChunks = 12;
    const int per_chunk =
        std::clamp(static_cast<int>(std::lround(1e-3 / load.alone.value())), 1, 200);
    for (int i = 0; i < kChunks * per_chunk; ++i) {
      step.kernel({0}, load.alone.value() * 1e6, side);
      demands.push_back(demand_of(load));
    }
  }
  Machine machine = nvswitch_machine(1, h200().num_sms);
  machine.spec.device = h200();
  const PricedPlan priced = des::assemble(step.plan, step.times);
  const Timeline timeline =
      des::simulate({.priced = &priced, .machine = &machine, .demands = std::move(demands)},
                    {.level = StepLevel::kAllRanks});
  std::array<std::vector<double>, 2> ends;
  for (const Span& span : timeline.spans) {
    ends[static_cast<std::size_t>(span.stream)].push_back(span.end.value());
  }
  for (auto& stream : ends) std::ranges::sort(stream);
  const double end = std::min(ends[0].back(), ends[1].back());
  const double from = 0.1 * end;
  const auto launches_by = [](const std::vector<double>& stream, double date) {
    const auto next = std::ranges::upper_bound(stream, date);
    const double before = next == stream.begin() ? 0 : *(next - 1);
    const double part = next == stream.end() ? 0 : (date - before) / (*next - before);
    return static_cast<double>(next - stream.begin()) + part;
  };
  const auto time = [&](const std::vector<double>& stream) {
    return Seconds((end - from) / (launches_by(stream, end) - launches_by(stream, from)));
  };
  return {time(ends[0]), time(ends[1])};
}

// Errors |predicted / measured - 1| of times together.
struct Errors {
  std::vector<double> all;
  void add(Seconds predicted, Seconds measured) {
    all.push_back(std::abs(predicted / measured - 1));
  }
  // Sorts.
  double quantile(double part) {
    std::ranges::sort(all);
    return all.at(static_cast<std::size_t>(part * static_cast<double>(all.size() - 1)));
  }
  void print(const char* what) {
    std::printf("%-36s %4zu times, median error %4.1f %%, p95 %4.1f %%\n", what, all.size(),
                100 * quantile(0.5), 100 * quantile(0.95));
  }
};

// The errors of one file's pairs, by what the model knows of.
struct Report {
  Errors model;
  Errors unshared;  // of the same pairs: each as if alone
  Errors fluid;     // the SMs shared equally, the memory not at all
  Errors one_wave;
  Errors split;

  void add(const Pair& pair) {
    const auto predicted = simulated(pair);
    for (std::size_t side = 0; side < 2; ++side) {
      const Load& load = pair.loads[side];
      const Load& other = pair.loads[1 - side];
      const Seconds measured = pair.together[side];
      if (std::getenv("ORRERY_PRINT_PAIRS") != nullptr) {
        std::printf("%-44s beside %-44s alone %7.1f together %7.1f predicted %7.1f us %+6.1f %%\n",
                    load.name.c_str(), other.name.c_str(), load.alone.value() * 1e6,
                    measured.value() * 1e6, predicted[side].value() * 1e6,
                    100 * (predicted[side] / measured - 1));
      }
      if (load.has_other_split() || other.has_other_split()) {
        split.add(predicted[side], measured);
      } else if (load.is_one_wave() || other.is_one_wave()) {
        one_wave.add(predicted[side], measured);
      } else {
        model.add(predicted[side], measured);
        unshared.add(load.alone, measured);
        fluid.add(load.alone * std::max(demand_of(load).sms + demand_of(other).sms, 1.0), measured);
      }
    }
  }
  void print() {
    model.print("model");
    unshared.print("as if each were alone");
    fluid.print("as if SMs were shared equally");
    one_wave.print("with a kernel of one wave");
    split.print("with another split of the SM's memory");
  }
};

TEST(CoRun, PairsOnAnH200AreAsFarOffAsTheDocumentationSays) {
  Report report;
  for (const Pair& pair : read_pairs(kDevice / "corun.csv")) report.add(pair);
  report.print();
  EXPECT_LT(report.model.quantile(0.5), 0.08);
  EXPECT_LT(report.model.quantile(0.95), 0.5);
  EXPECT_LT(report.model.quantile(0.5), report.unshared.quantile(0.5) / 2);
  EXPECT_LT(report.model.quantile(0.5), report.fluid.quantile(0.5) / 2);
  EXPECT_LT(report.one_wave.quantile(0.5), 0.15);
}

TEST(CoRun, TrafficToAPeerIsAsFarOffAsTheDocumentationSays) {
  Report report;
  for (const Pair& pair : read_pairs(kDevice / "corun_peer.csv")) {
    if (!pair.loads[0].is_to_peer() || !pair.loads[1].is_to_peer()) report.add(pair);
  }
  report.print();
  EXPECT_LT(report.model.quantile(0.5), 0.08);
  EXPECT_LT(report.model.quantile(0.5), report.unshared.quantile(0.5));
}

// A GEMM that begins while blocks hold some SMs until after its end, over its time alone.
double beside_held_sms(int held_sms, Seconds alone, const des::GpuDemand& gemm) {
  StepBuilder step;
  step.kernel({0}, alone.value() * 1e8, 1);
  step.host(HostKind::kScheduler, {0}, 1);
  const OpId op = step.kernel({0}, alone.value() * 1e6, 0);
  Machine machine = nvswitch_machine(1, h200().num_sms);
  machine.spec.device = h200();
  const PricedPlan priced = des::assemble(step.plan, step.times);
  const des::GpuDemand held{.sms = sm_share(held_sms), .math = 0};
  const Timeline timeline =
      des::simulate({.priced = &priced, .machine = &machine, .demands = {held, {}, gemm}},
                    {.level = StepLevel::kAllRanks});
  for (const Span& span : timeline.spans) {
    if (span.op == op) return (span.end - span.start) / alone;
  }
  return 0;
}

TEST(CoRun, GemmsBesideHeldSmsAreAsFarOffAsTheDocumentationSays) {
  CsvReader csv(kDevice / "held_sms.csv");
  Errors model;
  Errors fluid;
  const auto number = [&](const char* column) { return csv.positive_number(csv.require(column)); };
  while (csv.next()) {
    // Of one or two SMs it depends on which they are: a GPU has room for a cluster or two more.
    constexpr int kFewSms = 4;
    const int held = static_cast<int>(number("held_sms"));
    if (held < kFewSms) continue;
    Dims dims;
    for (const char* name : {"m", "n", "k"}) {
      dims.push_back({name, static_cast<std::int64_t>(number(name))});
    }
    const Seconds alone(number("alone_us") * 1e-6);
    const Seconds measured = alone * number("slowdown");
    des::GpuDemand gemm = gemm_demand(dims, alone);
    model.add(alone * beside_held_sms(held, alone, gemm), measured);
    gemm.rounds = 0;
    fluid.add(alone * beside_held_sms(held, alone, gemm), measured);
  }
  model.print("GEMMs beside held SMs");
  fluid.print("as if nothing were dealt");
  EXPECT_LT(model.quantile(0.5), 0.07);
  EXPECT_LT(model.quantile(0.95), 0.15);
  EXPECT_LT(model.quantile(0.5), fluid.quantile(0.5) / 2);
}

#endif

// Value of the row of probes.csv with this probe and these parameters.
double probe(const std::string& name, const std::string& parameters) {
  CsvReader csv(kDevice / "probes.csv");
  while (csv.next()) {
    if (csv.text(csv.require("probe")) == name &&
        std::string(csv.text(csv.require("parameters"))).starts_with(parameters)) {
      return csv.positive_number(csv.require("median"));
    }
  }
  ADD_FAILURE() << "no row " << name << " " << parameters;
  return 0;
}

TEST(CoRun, TheDevicesRatesAreThoseOfItsRows) {
  // 4 GiB read with cold caches, and seconds of a large GEMM; rounded in device.yaml.
  const double rate = 4294967296.0 / (probe("stream_read", "bytes=4294967296 l2=cold") * 1e-6);
  EXPECT_NEAR(h200().sharing.hbm_rate.value() / rate, 1, 0.01);
  EXPECT_NEAR(h200().sharing.math_share * 989e12 / (probe("rate_gemm", "") * 1e12), 1, 0.01);
  // A few SMs draw what each can: the rate over that is the number that draws all of it.
  for (const Pair& pair : read_pairs(kDevice / "corun.csv")) {
    const Load& load = pair.loads[0];
    if (load.kind != "read" || load.dim("blocks") != 32) continue;
    const double per_sm = load.dim("bytes") / load.alone.value() / 32;
    EXPECT_NEAR(h200().sharing.sms_for_hbm * h200().num_sms, rate / per_sm, 3) << load.name;
    break;
  }
}

TEST(CoRun, AShareOfSmsNeedsTheirNumber) {
  const auto file = std::filesystem::temp_directory_path() / "orrery_sharing_without_sms.yaml";
  std::ofstream(file) << "name: x\nvendor: nvidia\narchitecture: hopper\nhbm_capacity: 80 GB\n"
                         "hbm_bandwidth: 3 TB/s\ndense_flops: {bf16: 900 TFLOP/s}\n"
                         "sharing: {hbm_rate: 2.8 TB/s, sms_for_hbm: 60, "
                         "bf16_under_power_limit: 600 TFLOP/s}\n";
  try {
    (void)read_device(file);
    ADD_FAILURE() << "accepted";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("num_sms"), std::string::npos) << error.what();
  }
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace orrery::test
