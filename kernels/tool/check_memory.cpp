#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/cuda/devices.h"
#include "kernels/cuda/nvml.h"
#include "kernels/execute/draw_input.h"
#include "kernels/execute/executor.h"
#include "kernels/kernel_spec.h"
#include "kernels/tool/checks.h"
#include "kernels/tool/executor_setup.h"
#include "sim/memory/footprint.h"
#include "sim/model/model.h"
#include "sim/parallel/parallel.h"
#include "sim/units/parse.h"

namespace orrery::tool {
namespace {

constexpr double kMostError = 0.03;  // of the total
constexpr std::int64_t kBlockSize = 64;
constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

// Four layers of a dense model of 8 billion parameters, or of a mixture of 128 experts.
ModelConfig four_layers(bool has_experts) {
  ConfigFields fields{{"model_type", has_experts ? "qwen3_moe" : "llama"},
                      {"hidden_size", std::int64_t{has_experts ? 2048 : 4096}},
                      {"vocab_size", std::int64_t{128256}},
                      {"num_hidden_layers", std::int64_t{4}},
                      {"num_attention_heads", std::int64_t{32}},
                      {"num_key_value_heads", std::int64_t{8}},
                      {"head_dim", std::int64_t{128}},
                      {"intermediate_size", std::int64_t{14336}},
                      {"tie_word_embeddings", false}};
  if (has_experts) {
    fields["num_experts"] = std::int64_t{128};
    fields["num_experts_per_tok"] = std::int64_t{8};
    fields["moe_intermediate_size"] = std::int64_t{768};
  }
  return model_config("four layers", fields);
}

// As one step of prefill and one of decodes.
class MemoryCase {
 public:
  MemoryCase(bool has_experts, int num_ranks)
      : mesh_{.tp = num_ranks}, model_(four_layers(has_experts)) {
    LoweringOptions options;
    if (has_experts) options.moe_design = MoeDesign::kShuffling;
    const Batch prefill{.prefill = {{.query = 2048}}};
    const Batch decode{.num_decodes = 64, .decode_context = 64 * kContext};
    for (const Batch& batch : {prefill, decode}) {
      batches_.push_back(batch);
      plans_.push_back(parallelize(lower(model_, batch, options), mesh_));
    }
  }

  [[nodiscard]] RankMemory predict(std::int64_t num_blocks) const {
    const std::array<const Plan*, 2> steps{&plans_[0], &plans_[1]};
    const std::array<const Plan*, 1> captured{&plans_[1]};
    return footprint({.steps = steps,
                      .captured = captured,
                      .kv_cache = block_bytes() * static_cast<double>(num_blocks),
                      .max_tokens = kMaxTokens,
                      .max_sequences = kMaxSequences,
                      .max_model_len = kContext,
                      .block_size = kBlockSize,
                      .head_dim = model_.head_dim,
                      .fixed = {.context = parse_bytes(ORRERY_CONTEXT_MEMORY),
                                .libraries = parse_bytes(ORRERY_LIBRARY_MEMORY),
                                .workspace = parse_bytes(ORRERY_WORKSPACE_MEMORY)},
                      .scratch = std::max(workspace_of(plans_[0], 0), workspace_of(plans_[1], 0))},
                     0);
  }
  // Blocks with which `share` of `capacity` is predicted to be in use.
  [[nodiscard]] std::int64_t blocks_for(Bytes capacity, double share) const {
    const Bytes rest = predict(0).total();
    return static_cast<std::int64_t>((capacity * share - rest) / block_bytes());
  }
  // Memory of the ranks once both steps have been prepared and have run.
  [[nodiscard]] std::map<int, RankMemory> measure(std::int64_t num_blocks) const {
    std::vector<int> devices(static_cast<std::size_t>(mesh_.tp));
    std::iota(devices.begin(), devices.end(), 0);
    ExecutorSetup setup{.plan = plans_[0],
                        .grid = {.tp = mesh_.tp},
                        .devices = devices,
                        .num_kv_blocks = num_blocks,
                        .block_size = kBlockSize,
                        .max_tokens = kMaxTokens,
                        .max_sequences = kMaxSequences,
                        .max_model_len = kContext};
    setup.numbers.head_dim = model_.head_dim;
    setup.numbers.max_positions = kContext;
    setup.numbers.routing = routing_of(model_);
    Executor executor(std::move(setup));
    std::vector<std::unique_ptr<PreparedStep>> prepared;
    for (std::size_t i = 0; i < batches_.size(); ++i) {
      const StepInput input =
          draw_input(batches_[i], model_.vocab_size, num_blocks, kBlockSize, /*seed=*/1);
      const LaunchMode mode = batches_[i].prefill.empty() ? LaunchMode::kGraph : LaunchMode::kEager;
      prepared.push_back(executor.prepare(plans_[i], input, mode));
      static_cast<void>(executor.run(*prepared.back(), input));
    }
    return executor.memory();
  }

 private:
  static constexpr std::int64_t kContext = 2048;
  static constexpr std::int64_t kMaxTokens = 2048;
  static constexpr std::int64_t kMaxSequences = 64;

  [[nodiscard]] Bytes block_bytes() const {
    return kv_bytes_per_rank(model_, mesh_, DType::kBf16, kBlockSize);
  }

  Mesh mesh_;
  ModelConfig model_;
  std::vector<Batch> batches_;
  std::vector<Plan> plans_;
};

class MemoryCheck {
 public:
  // What is predicted is in use: by all terms, and for the largest of the ranks.
  void check_fits(const MemoryCase& memory_case, const std::string& what, std::int64_t blocks) {
    const RankMemory predicted = memory_case.predict(blocks);
    try {
      for (const auto& [rank, found] : memory_case.measure(blocks)) {
        const double error = predicted.total() / found.total() - 1;
        report(std::abs(error) <= kMostError, what + " rank " + std::to_string(rank),
               error_text(error) + terms(predicted, found));
      }
    } catch (const std::runtime_error& error) {
      report(false, what, std::string("predicted to fit: ") + error.what());
    }
  }

  // It is refused, with an error that says what is needed.
  void check_refused(const MemoryCase& memory_case, const std::string& what, std::int64_t blocks) {
    try {
      static_cast<void>(memory_case.measure(blocks));
      report(false, what,
             "fits, though " + gibibytes(memory_case.predict(blocks).total()) + " were predicted");
    } catch (const std::runtime_error& error) {
      const std::string text = error.what();
      report(text.find("free of") != std::string::npos && text.find("needed") != std::string::npos,
             what, text);
    }
  }

  [[nodiscard]] CheckCount count() const { return count_; }

 private:
  static std::string gibibytes(Bytes bytes) {
    char text[32];
    std::snprintf(text, sizeof(text), "%.3f GiB", bytes.value() / kGiB);
    return text;
  }
  static std::string error_text(double error) {
    char text[48];
    std::snprintf(text, sizeof(text), "predicted %+.2f %% of measured;", error * 100);
    return text;
  }
  static std::string terms(const RankMemory& predicted, const RankMemory& found) {
    std::string text;
    const auto measured = memory_terms(found);
    const std::map<std::string_view, Bytes> by_name(measured.begin(), measured.end());
    for (const auto& [name, bytes] : memory_terms(predicted)) {
      text.append(" ").append(name).append(" ").append(gibibytes(bytes));
      text.append("/").append(gibibytes(by_name.at(name)));
    }
    return text;
  }
  void report(bool passes, const std::string& what, const std::string& text) {
    ++(passes ? count_.passed : count_.failed);
    std::printf("%s memory %s  %s\n", passes ? "ok  " : "FAIL", what.c_str(), text.c_str());
    std::fflush(stdout);
  }

  CheckCount count_;
};

}  // namespace

CheckCount check_memory() {
  const cuda::BoardMemory board = cuda::Board::of_device(0).memory();
  const Bytes capacity = board.total - board.reserved;
  MemoryCheck check;
  for (const int num_ranks : {1, 2}) {
    if (num_ranks > cuda::device_count()) {
      std::printf("skipped: memory of 2 ranks needs 2 GPUs, there is 1\n");
      continue;
    }
    const MemoryCase memory_case(/*has_experts=*/false, num_ranks);
    const std::string ranks = " on " + std::to_string(num_ranks) + " GPUs";
    check.check_fits(memory_case, "of a small cache" + ranks, 4096);
    check.check_fits(memory_case, "predicted to fill 98 %" + ranks,
                     memory_case.blocks_for(capacity, 0.98));
    check.check_refused(memory_case, "predicted to fill 102 %" + ranks,
                        memory_case.blocks_for(capacity, 1.02));
    check.check_fits(MemoryCase(/*has_experts=*/true, num_ranks), "of experts" + ranks, 4096);
  }
  return check.count();
}

}  // namespace orrery::tool
