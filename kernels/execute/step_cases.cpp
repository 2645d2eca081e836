#include "kernels/execute/step_cases.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <system_error>

#include "kernels/execute/draw_input.h"
#include "kernels/execute/rank_program.h"
#include "sim/megakernel/program.h"

namespace orrery {
namespace {

namespace fs = std::filesystem;

Plan read_plan(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(stream), {});
  if (!stream.good()) {
    throw std::invalid_argument(file.string() + ": cannot be read; expected a plan");
  }
  try {
    return parse_plan(text);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(file.string() + ": " + error.what());
  }
}

std::vector<std::string> names_in(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code error;  // a directory that is not there has none
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    if (entry.path().extension() == ".step") names.push_back(entry.path().stem().string());
  }
  std::ranges::sort(names);
  if (names.empty()) {
    throw std::invalid_argument(directory.string() +
                                ": no steps; expected <name>.step as orrery validate writes them");
  }
  return names;
}

// The most rows and sequences that a plan's tensors are a part of.
std::int64_t largest(const Plan& plan, std::string_view axis_name) {
  std::int64_t most = 0;
  for (const Tensor& tensor : plan.tensors()) {
    for (const Axis& axis : tensor.axes) {
      if (axis.name == axis_name) most = std::max(most, plan.whole_size(axis));
    }
  }
  return most;
}

// That a plan is what its step says, so that it is not run as something else.
void check_plan(const StepCase& one) {
  if (one.step.mode == LaunchMode::kMegakernel) {
    try {
      megakernel::require_runs(one.plan);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(std::string(error.what()) + "; or mode graph");
    }
  }
  if (!one.step.layers) return;
  if (!is_layer_plan(one.plan)) {
    throw std::invalid_argument("found layers, but the plan is a whole step's");
  }
  if (std::ssize(one.plan.ops()) % one.step.layers->count != 0) {
    throw std::invalid_argument(
        "found " + std::to_string(one.step.layers->count) + " layers, but the plan has " +
        std::to_string(one.plan.ops().size()) + " ops; expected as many in each layer");
  }
}

}  // namespace

std::int64_t num_tokens(const StepCase& one) {
  return one.step.layers ? one.step.layers->tokens : num_tokens(one.step.batch);
}

int num_layers(const StepCase& one) {
  return one.step.layers ? static_cast<int>(one.step.layers->count) : 0;
}

std::vector<StepCase> read_step_cases(const fs::path& directory,
                                      std::span<const std::string> only) {
  const fs::path steps = directory / "steps";
  const std::vector<std::string> names =
      only.empty() ? names_in(steps) : std::vector<std::string>(only.begin(), only.end());
  std::vector<StepCase> cases;
  cases.reserve(names.size());
  for (const std::string& name : names) {
    StepCase& one = cases.emplace_back(StepCase{.name = name,
                                                .step = read_step(steps / (name + ".step")),
                                                .plan = read_plan(steps / (name + ".plan"))});
    try {
      check_plan(one);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument((steps / (name + ".step")).string() + ": " + error.what());
    }
  }
  return cases;
}

int ranks_dealt_to(const Plan& plan, int dp, bool overlaps_halves) {
  return num_micro_batches(plan) == 1 || overlaps_halves ? dp : 1;
}

StepLimits limits_of(std::span<const StepCase> cases, std::int32_t block_size, int dp,
                     bool overlaps_halves) {
  StepLimits limits;
  for (const StepCase& one : cases) {
    if (one.step.layers) continue;
    const Batch& batch = one.step.batch;
    limits.rows = std::max({limits.rows, num_tokens(batch), largest(one.plan, axis::kTokens)});
    limits.sequences =
        std::max({limits.sequences, num_sequences(batch), largest(one.plan, axis::kSeqs)});
    limits.context = std::max(limits.context, longest_context(batch));
    const int ranks = ranks_dealt_to(one.plan, dp, overlaps_halves);
    limits.kv_blocks = std::max(limits.kv_blocks, blocks_of_fullest(batch, block_size, ranks));
  }
  return limits;
}

}  // namespace orrery
