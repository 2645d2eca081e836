#include "kernels/tool/megakernel_times.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "sim/megakernel/program.h"

namespace orrery::tool {
namespace {

constexpr double kMicro = 1e6;

// Where an SM's time goes, the mean over SMs, in shares of its cycles from first to last.
void print_parts(const megakernel::TimedProgram& program, double us) {
  struct Sums {
    double wait = 0;
    double weights = 0;
    double rest = 0;
    std::int64_t count = 0;
  };
  std::map<megakernel::Opcode, Sums> sums;
  double cycles = 0;
  for (const auto& own : program) {
    if (own.empty()) continue;
    cycles += static_cast<double>(own.back().record.end - own.front().record.start);
    for (const auto& [instruction, record] : own) {
      if (instruction.opcode == megakernel::Opcode::kPick) continue;  // by warps without records
      Sums& sum = sums[instruction.opcode];
      sum.wait += static_cast<double>(record.ready - record.start);
      sum.weights += static_cast<double>(record.weights);
      sum.rest += static_cast<double>(record.end - record.ready - record.weights);
      ++sum.count;
    }
  }
  for (const auto& [opcode, sum] : sums) {
    const auto mean_us = [&](double part) { return part / cycles * us; };
    std::printf(
        "    %-10s %6lld instructions; us of an SM: values %6.1f, weights %6.1f, rest %6.1f\n",
        std::string(megakernel::to_text(opcode)).c_str(), static_cast<long long>(sum.count),
        mean_us(sum.wait), mean_us(sum.weights), mean_us(sum.rest));
  }
}

// The least, the middle and the most over SMs, the mean over layers.
struct Spread {
  double least = 0;
  double middle = 0;
  double most = 0;
  std::int64_t layers = 0;
  void add(std::vector<double>& of_sms) {
    std::ranges::sort(of_sms);
    least += of_sms.front();
    middle += of_sms[of_sms.size() / 2];
    most += of_sms.back();
    ++layers;
  }
};

// How long SMs wait for an instruction's values and then take for it. The least wait is what a
// value takes from SM to SM; what is beyond it is waiting for the slowest.
void print_spread(const megakernel::TimedProgram& program, double us) {
  struct OfSms {
    std::vector<double> waits;
    std::vector<double> takes;
  };
  std::map<std::pair<megakernel::Opcode, std::int32_t>, OfSms> instructions;
  double cycles = 0;  // of an SM from first to last, the mean
  for (const auto& own : program) {
    if (own.empty()) continue;
    cycles += static_cast<double>(own.back().record.end - own.front().record.start) /
              static_cast<double>(program.size());
    for (const auto& [instruction, record] : own) {
      if (instruction.opcode == megakernel::Opcode::kPick) continue;
      OfSms& of_sms = instructions[{instruction.opcode, instruction.layer}];
      of_sms.waits.push_back(static_cast<double>(record.ready - record.start));
      of_sms.takes.push_back(static_cast<double>(record.end - record.ready));
    }
  }
  std::map<megakernel::Opcode, std::pair<Spread, Spread>> spreads;
  for (auto& [place, of_sms] : instructions) {
    spreads[place.first].first.add(of_sms.waits);
    spreads[place.first].second.add(of_sms.takes);
  }
  const auto mean_us = [&](double sum, std::int64_t layers) {
    return sum / static_cast<double>(layers) / cycles * us;
  };
  for (const auto& [opcode, spread] : spreads) {
    const auto& [wait, take] = spread;
    std::printf(
        "    %-10s of a layer: waits for values %5.2f %5.2f %5.2f us, takes %5.2f %5.2f %5.2f "
        "(least, middle, most SM)\n",
        std::string(megakernel::to_text(opcode)).c_str(), mean_us(wait.least, wait.layers),
        mean_us(wait.middle, wait.layers), mean_us(wait.most, wait.layers),
        mean_us(take.least, take.layers), mean_us(take.middle, take.layers),
        mean_us(take.most, take.layers));
  }
}

// Cycles of an SM from its first instruction to its last, the mean.
double cycles_of(const megakernel::TimedProgram& program) {
  double cycles = 0;
  std::int64_t sms = 0;
  for (const auto& own : program) {
    if (own.empty()) continue;
    cycles += static_cast<double>(own.back().record.end - own.front().record.start);
    ++sms;
  }
  return cycles / static_cast<double>(sms);
}

}  // namespace

void print_times(const megakernel::TimedProgram& program, Seconds duration) {
  print_parts(program, duration.value() * kMicro);
  print_spread(program, duration.value() * kMicro);
}

void write_instructions(const std::filesystem::path& file, const megakernel::TimedProgram& program,
                        Seconds duration) {
  const double us_of_cycle = duration.value() * kMicro / cycles_of(program);
  std::ofstream out(file, std::ios::binary | std::ios::trunc);
  out << "sm,kind,name,start_us,ready_us,end_us,weights_us\n";
  for (std::size_t sm = 0; sm < program.size(); ++sm) {
    for (const auto& [instruction, record] : program[sm]) {
      if (instruction.opcode == megakernel::Opcode::kPick) continue;  // by warps without records
      const std::int64_t first = program[sm].front().record.start;
      char times[96];
      std::snprintf(times, sizeof(times), ",%.3f,%.3f,%.3f,%.3f\n",
                    static_cast<double>(record.start - first) * us_of_cycle,
                    static_cast<double>(record.ready - first) * us_of_cycle,
                    static_cast<double>(record.end - first) * us_of_cycle,
                    static_cast<double>(record.weights) * us_of_cycle);
      out << sm << ',' << megakernel::to_text(instruction.opcode) << ",\""
          << megakernel::describe(instruction) << '"' << times;
    }
  }
  if (!out.flush()) throw std::runtime_error(file.string() + ": cannot be written");
}

}  // namespace orrery::tool
