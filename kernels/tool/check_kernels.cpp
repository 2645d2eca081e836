#include "kernels/tool/check_kernels.h"

#include <cstdio>
#include <fstream>
#include <set>
#include <stdexcept>
#include <string>

#include "kernels/harness/check.h"
#include "kernels/harness/probe.h"
#include "kernels/harness/signature.h"
#include "kernels/harness/small_calls.h"
#include "kernels/tool/selection.h"

namespace orrery::tool {
namespace {

std::set<std::string> read_calls(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::set<std::string> calls;
  // Behind a tab stand the functions of libraries that a call launches.
  for (std::string line; std::getline(stream, line);) calls.insert(line.substr(0, line.find('\t')));
  if (!stream.eof() || calls.empty()) {
    throw std::invalid_argument("--calls: found no call in " + file.string() +
                                "; expected what `orrery-gpu check --small --list` prints");
  }
  return calls;
}

struct SmallOp {
  KernelOp op;
  std::string signature;  // launch_signature()
};

std::vector<SmallOp> small_ops(const GpuKernel& kernel, double most_work) {
  std::vector<KernelOp> ops = kernel.check_ops();
  std::vector<CallCandidate> candidates;
  std::vector<std::string> signatures;
  for (const KernelOp& op : ops) {
    const auto kernel_case = kernel.make_case(op, {.vary = true});
    signatures.push_back(launch_signature(*kernel_case));
    candidates.push_back(
        {.work = call_work(op), .signature = call_form(op) + ": " + signatures.back()});
  }
  std::vector<SmallOp> chosen;
  for (const std::size_t i : small_calls(candidates, most_work)) {
    chosen.push_back({std::move(ops[i]), std::move(signatures[i])});
  }
  return chosen;
}

std::vector<KernelOp> checked_ops(const GpuKernel& kernel, const KernelCheckOptions& options) {
  if (!options.small) return kernel.check_ops();
  std::vector<KernelOp> ops;
  for (SmallOp& small : small_ops(kernel, options.most_work)) ops.push_back(std::move(small.op));
  return ops;
}

// Of a signature, the functions that are not of this project: its own are in namespace orrery.
std::string library_functions(const std::string& signature) {
  std::string names;
  for (std::size_t begin = 0; begin < signature.size();) {
    const std::size_t end = signature.find("; ", begin);
    const std::string node = signature.substr(begin, end - begin);
    const std::size_t threads = node.find(" threads ");
    if (threads != std::string::npos && node.find("orrery") == std::string::npos) {
      names += (names.empty() ? "" : " ") + node.substr(0, threads);
    }
    begin = end + 2;
  }
  return names;
}

void print(const std::string& text, const CheckReport& report) {
  std::printf("%s %s", report.passes() ? "ok  " : "FAIL", text.c_str());
  for (const Difference& difference : report.differences) {
    std::printf("  %s %.2e (<= %.1e)", difference.what.c_str(), difference.error, difference.bound);
  }
  for (const std::string& tile : report.unnoticed) {
    std::printf("  loss of %s not noticed", tile.c_str());
  }
  std::printf("\n");
  std::fflush(stdout);
}

}  // namespace

CheckCount check_kernels(const std::vector<const GpuKernel*>& kernels,
                         const KernelCheckOptions& options, RunWatch& watch) {
  const Seconds begin = host_now();
  std::set<std::string> calls;
  if (!options.calls.empty()) calls = read_calls(options.calls);
  CheckCount count;
  int num_left_out = 0;
  for (const GpuKernel* kernel : kernels) {
    for (const KernelOp& op : checked_ops(*kernel, options)) {
      const std::string text = describe(op);
      if (text.find(options.cases) == std::string::npos) continue;
      if (!options.calls.empty() && calls.erase(text) == 0) continue;
      if (options.limit > Seconds(0) && host_now() - begin > options.limit) {
        ++num_left_out;
        continue;
      }
      const CheckReport report = watch.run(
          RunPhase::kCall,
          [&] {
            const auto kernel_case = kernel->make_case(op, {.vary = true});
            return options.once ? check_once(*kernel_case) : check_case(*kernel_case);
          },
          text);
      ++(report.passes() ? count.passed : count.failed);
      print(text, report);
    }
  }
  if (num_left_out > 0) std::printf("%d left out: the time is over\n", num_left_out);
  return count;
}

void list_small(const std::vector<const GpuKernel*>& kernels, const KernelCheckOptions& options) {
  for (const GpuKernel* kernel : kernels) {
    for (const SmallOp& small : small_ops(*kernel, options.most_work)) {
      const std::string libraries = library_functions(small.signature);
      std::printf("%s%s%s\n", describe(small.op).c_str(), libraries.empty() ? "" : "\t",
                  libraries.c_str());
    }
    std::fflush(stdout);
  }
}

}  // namespace orrery::tool
