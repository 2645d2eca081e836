#include <algorithm>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "kernels/cuda/devices.h"
#include "kernels/execute/device_memory.h"
#include "kernels/execute/executor.h"
#include "kernels/tool/arguments.h"
#include "kernels/tool/check_kernels.h"
#include "kernels/tool/checks.h"
#include "kernels/tool/commands.h"
#include "kernels/tool/run_faults.h"
#include "kernels/tool/selection.h"

namespace orrery::tool {
namespace {

struct Group {
  std::string_view name;
  CheckCount (*run)();
  CheckCount (*run_small)() = nullptr;  // null: has no small calls
};
constexpr Group kGroups[] = {
    {"loading", check_loading},
    {"collectives", check_peers, check_small_peers},
    {"fused_moe_ranks", check_fused_moe, check_small_fused_moe},
    {"fused_moe_processes", check_fused_moe_processes},
    {"trace", check_trace_records},
    {"execute", check_execute},
    {"moe", check_moe},
    {"halves", check_halves},
    {"moe_layers", check_moe_layers},
    {"mla", check_mla},
    {"faults", check_faults},
    {"fault_phases", check_fault_phases},
    {"memory", check_memory},
    {"host_tier", check_host_tier},
    {"disaggregated", check_disaggregated},
};

struct Options {
  std::vector<std::string_view> names;  // of kernels and groups; none: all
  KernelCheckOptions kernels;
  bool lists = false;
  FaultOptions faults;
};

Options parse(std::span<const std::string_view> arguments) {
  Options options;
  KernelCheckOptions& of = options.kernels;
  std::vector<Option> known = {
      {"--cases", [&](const Value& value) { of.cases = value.text; }},
      {"--small", [&] { of.small = true; }},
      {"--list", [&] { options.lists = true; }},
      {"--work", [&](const Value& value) { of.most_work = static_cast<double>(value.whole(1)); }},
      {"--calls", [&](const Value& value) { of.calls = value.text; }},
      {"--once", [&] { of.once = true; }},
      {"--seconds",
       [&](const Value& value) { of.limit = Seconds(static_cast<double>(value.whole(1))); }}};
  for (Option& option : fault_options(options.faults)) known.push_back(std::move(option));
  std::vector<std::string_view> flags;  // and their values
  bool is_value = false;
  for (const std::string_view word : arguments) {
    (is_value || word.starts_with('-') ? flags : options.names).push_back(word);
    const auto option = std::ranges::find(known, word, &Option::name);
    is_value = !is_value && option != known.end() &&
               std::holds_alternative<std::function<void(const Value&)>>(option->read);
  }
  read_arguments("check", flags, known);
  if (options.lists && !of.small) {
    throw std::invalid_argument("check: --list goes with --small");
  }
  return options;
}

}  // namespace

int check(std::span<const std::string_view> arguments) {
  const Options options = parse(arguments);
  std::vector<std::string_view> names = options.names;
  std::vector<const Group*> groups;
  for (const Group& group : kGroups) {
    if (options.names.empty() || std::erase(names, group.name) > 0) groups.push_back(&group);
  }
  const bool only_groups = names.empty() && !options.names.empty();
  const KernelCheckOptions& chosen = options.kernels;
  if (!chosen.cases.empty() || !chosen.calls.empty() || options.lists) {
    if (only_groups) {
      throw std::invalid_argument("check: --cases, --calls and --list go with kernels");
    }
    groups.clear();
  }
  if (chosen.small && !options.lists) {
    std::erase_if(groups, [](const Group* group) { return group->run_small == nullptr; });
  }
  const auto kernels = only_groups ? std::vector<const GpuKernel*>() : select_kernels(names);
  set_execute_environment();  // check_execute runs ranks that wait for each other
  RunWatch watch(run_watch_setup(options.faults));
  watch.run(RunPhase::kStart, require_gpu);
  // Before anything of this process is there, which check_memory must not count as others'.
  for (int device = 0; device < cuda::device_count(); ++device) {
    static_cast<void>(held_by_others(device));
  }
  CheckCount sum;
  const auto add = [&](const CheckCount& count) {
    sum.passed += count.passed;
    sum.failed += count.failed;
  };
  if (options.lists) {
    list_small(kernels, chosen);
    return 0;
  }
  add(check_kernels(kernels, chosen, watch));
  for (const Group* group : groups) add(chosen.small ? group->run_small() : group->run());
  std::printf("%d passed, %d failed\n", sum.passed, sum.failed);
  if (sum.passed + sum.failed == 0 && chosen.limit == Seconds(0)) {
    throw std::invalid_argument("check: no call has '" + std::string(chosen.cases) + "' in it");
  }
  return sum.failed == 0 ? 0 : 1;
}

}  // namespace orrery::tool
