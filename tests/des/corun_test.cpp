// Pairs of loads side by side on an H200 (topologies/devices/h200-sxm/corun.csv) against what the
// simulator makes of them. The parameters of the sharing model come from loads alone, so that every
// pair is held out. `des_test --gtest_filter='CoRun*'` prints the errors that docs/sharing.md
// states.

#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "sim/cost/csv_reader.h"
#include "sim/des/gpu_shares.h"
#include "tests/des/step_builder.h"

#ifndef ORRERY_NO_SIMGRID

namespace orrery::test {
namespace {

const std::filesystem::path kDevice =
    std::filesystem::path(ORRERY_SOURCE_DIR) / "topologies/devices/h200-sxm";
constexpr int kSms = 132;
const SharingRates kRates{
    .hbm_rate = BytesPerSecond(4.67e12), .sms_for_hbm = 66.0 / kSms, .math_share = 667e12 / 989e12};
constexpr double kPeak = 989e12;

struct Load {
  std::string name;
  std::string kind;
  std::map<std::string, double> dims;
  double alone_us = 0;
};

struct Pair {
  Load loads[2];
  double together_us[2] = {};
};

Load parse_load(const std::string& text, double alone_us) {
  Load load{.name = text, .alone_us = alone_us};
  std::istringstream words(text);
  words >> load.kind;
  for (std::string word; words >> word;) {
    const auto equals = word.find('=');
    load.dims[word.substr(0, equals)] = std::stod(word.substr(equals + 1));
  }
  return load;
}

std::vector<Pair> read_pairs(const std::filesystem::path& file) {
  CsvReader csv(file);
  std::vector<Pair> pairs;
  while (csv.next()) {
    Pair pair;
    for (int side = 0; side < 2; ++side) {
      const std::string name = side == 0 ? "first" : "second";
      pair.loads[side] = parse_load(std::string(csv.text(csv.require(name))),
                                    csv.positive_number(csv.require(name + "_alone_us")));
      pair.together_us[side] = csv.positive_number(csv.require(name + "_together_us"));
    }
    pairs.push_back(std::move(pair));
  }
  return pairs;
}

des::GpuDemand demand_of(const Load& load) {
  const auto dim = [&](const char* name) {
    const auto found = load.dims.find(name);
    return found == load.dims.end() ? 0 : found->second;
  };
  const double seconds = load.alone_us * 1e-6;
  const auto memory_share = [&](double bytes) {
    return std::min(bytes / kRates.hbm_rate.value() / seconds, 1.0);
  };
  const auto sm_share = [&](const char* name) { return dim(name) > 0 ? dim(name) / kSms : 1; };
  if (load.kind == "gemm") {
    const double m = dim("m");
    const double n = dim("n");
    const double k = dim("k");
    return {.sms = sm_share("sms"),
            .math = std::min(2 * m * n * k / kPeak / seconds, 1.0),
            .hbm = memory_share(2 * (m * n + m * k + n * k))};
  }
  if (load.kind == "hold") return {.sms = sm_share("blocks"), .math = 0};
  if (load.kind == "l2_read") return {.sms = 1, .math = 0};
  return {.sms = sm_share("blocks"),
          .math = 0,
          .hbm = memory_share(dim("bytes") * (load.kind == "copy" ? 2 : 1))};
}

// Microseconds per launch of both loads in the simulator, as the measurement takes them: the same
// number of launches of each on a stream of its own, counted while both run, less the first tenth.
std::array<double, 2> simulated(const Pair& pair) {
  StepBuilder step;
  std::vector<des::GpuDemand> demands;
  for (int side = 0; side < 2; ++side) {
    const Load& load = pair.loads[side];
    const int launches =
        12 * std::clamp(static_cast<int>(std::lround(1000 / load.alone_us)), 1, 200);
    for (int i = 0; i < launches; ++i) {
      step.kernel({0}, load.alone_us, side);
      demands.push_back(demand_of(load));
    }
  }
  Machine machine = nvswitch_machine(1, kSms);
  machine.spec.device.sharing = kRates;
  const PricedPlan priced = des::assemble(step.plan, step.times);
  const Timeline timeline =
      des::simulate({.priced = &priced, .machine = &machine, .demands = std::move(demands)},
                    {.level = StepLevel::kAllRanks});
  std::array<std::vector<double>, 2> ends;
  for (const Span& span : timeline.spans) ends[span.stream].push_back(span.end.value() * 1e6);
  for (auto& stream : ends) std::ranges::sort(stream);
  const double end = std::min(ends[0].back(), ends[1].back());
  const double from = 0.1 * end;
  std::array<double, 2> times{};
  for (int side = 0; side < 2; ++side) {
    const auto launches_by = [&](double date) {
      const auto next = std::ranges::upper_bound(ends[side], date);
      const double before = next == ends[side].begin() ? 0 : *(next - 1);
      const double part = next == ends[side].end() ? 0 : (date - before) / (*next - before);
      return static_cast<double>(next - ends[side].begin()) + part;
    };
    times[side] = (end - from) / (launches_by(end) - launches_by(from));
  }
  return times;
}

TEST(CoRun, PairsOnAnH200AreWithinTheErrorOfTheDocumentation) {
  std::vector<double> errors;
  const char* file = std::getenv("CORUN");
  for (const Pair& pair : read_pairs(file ? file : kDevice / "corun.csv")) {
    const auto predicted = simulated(pair);
    for (int side = 0; side < 2; ++side) {
      const double error = predicted[side] / pair.together_us[side] - 1;
      errors.push_back(std::abs(error));
      std::printf("%-45s %-45s alone %8.1f together %8.1f predicted %8.1f %+6.1f %%\n",
                  pair.loads[side].name.c_str(), pair.loads[1 - side].name.c_str(),
                  pair.loads[side].alone_us, pair.together_us[side], predicted[side], 100 * error);
    }
  }
  std::ranges::sort(errors);
  std::printf("%zu times: median error %.1f %%, p95 %.1f %%\n", errors.size(),
              100 * errors[errors.size() / 2], 100 * errors[errors.size() * 95 / 100]);
}

}  // namespace
}  // namespace orrery::test

#endif
