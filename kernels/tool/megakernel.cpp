#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda/handles.h"
#include "kernels/cuda/launch.h"
#include "kernels/execute/executor.h"
#include "kernels/execute/rank_error.h"
#include "kernels/execute/reference/interpreted.h"
#include "kernels/harness/operands.h"
#include "kernels/tool/commands.h"
#include "kernels/tool/megakernel_times.h"
#include "kernels/tool/run_faults.h"
#include "sim/megakernel/interpreter.h"
#include "sim/megakernel/program.h"
#include "sim/model/model.h"
#include "sim/units/nearest.h"

namespace orrery::tool {
namespace {

// A decoder and the keys that its sequences have.
struct Case {
  const char* name;
  const char* type;
  std::int64_t hidden, layers, heads, kv_heads, head_dim, ffn, vocab;
  bool is_tied;
  std::int64_t batch;
  std::vector<std::int64_t> contexts;
  DType dtype = DType::kBf16;  // of weights
};

const std::vector<Case> kCases = {
    {"small", "llama", 512, 4, 8, 2, 64, 1024, 1004, false, 1, {1, 33, 300}},
    {"small", "llama", 512, 4, 8, 2, 64, 1024, 1004, false, 4, {33, 300}},
    {"small", "llama", 512, 4, 8, 2, 64, 1024, 1004, false, 8, {300}},
    {"small", "qwen3", 512, 4, 8, 2, 128, 1024, 1004, false, 1, {33, 300}},
    {"small", "qwen3", 512, 4, 8, 2, 128, 1024, 1004, false, 2, {300}},
    {"small", "llama", 512, 4, 8, 2, 64, 1024, 1004, false, 1, {33, 300}, DType::kFp8},
    {"small", "qwen3", 2048, 2, 16, 4, 128, 2560, 1004, false, 4, {300}, DType::kFp8},
    {"llama-3.2-1b",
     "llama",
     2048,
     16,
     32,
     8,
     64,
     8192,
     128256,
     true,
     1,
     {32, 158, 512, 2048, 16384}},
    {"llama-3.2-1b", "llama", 2048, 16, 32, 8, 64, 8192, 128256, true, 4, {512}},
    {"llama-3.2-1b", "llama", 2048, 16, 32, 8, 64, 8192, 128256, true, 1, {158, 512}, DType::kFp8},
    {"llama-3.1-8b", "llama", 4096, 32, 32, 8, 128, 14336, 128256, false, 1, {512}},
    {"llama-3.1-8b", "llama", 4096, 32, 32, 8, 128, 14336, 128256, false, 1, {512}, DType::kFp8},
};

constexpr std::int32_t kBlockSize = 64;
constexpr int kRepeats = 60;
constexpr int kForwards = 10'000;        // that are to be the same
constexpr std::int64_t kMostAhead = 32;  // steps of one launch

// Blocks have room for kMostAhead tokens more.
std::int64_t room_of(std::int64_t context) {
  return (context + kMostAhead + kBlockSize) / kBlockSize * kBlockSize;
}

StepInput input_of(std::int64_t batch, std::int64_t context) {
  StepInput input;
  std::int32_t block = 0;
  for (std::int64_t i = 0; i < batch; ++i) {
    SequenceTokens& one = input.decodes.emplace_back();
    one.tokens = {static_cast<std::int32_t>(7 + i)};
    one.context = context;
    for (std::int64_t at = 0; at < room_of(context); at += kBlockSize) {
      one.blocks.push_back(block++);
    }
  }
  return input;
}

Plan plan_of(const Case& one, const StepInput& input) {
  const ConfigFields fields{{"model_type", std::string(one.type)},
                            {"hidden_size", one.hidden},
                            {"vocab_size", one.vocab},
                            {"num_hidden_layers", one.layers},
                            {"num_attention_heads", one.heads},
                            {"num_key_value_heads", one.kv_heads},
                            {"head_dim", one.head_dim},
                            {"intermediate_size", one.ffn},
                            {"tie_word_embeddings", one.is_tied}};
  LoweringOptions options;
  options.precision.weights = options.precision.activations = one.dtype;
  return lower(model_config(one.name, fields), batch_of(input), options);
}

// Random keys and values in place of a prefill's.
void fill_cache(const Executor& executor) {
  constexpr std::uint64_t kSeed = 3;
  const cuda::Stream stream;
  const KvPool& pool = executor.kv(0);
  fill_normal(stream, reinterpret_cast<bf16*>(pool.data()),
              static_cast<std::size_t>(pool.bytes()) / sizeof(bf16), kSeed);
  stream.synchronize();
}

// Largest difference of a logit over the largest logit.
double difference(const std::vector<float>& a, const std::vector<float>& b) {
  float largest = 0;
  float apart = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::fabs(a[i]));
    const float own = std::fabs(a[i] - b[i]);
    if (!(own <= apart)) apart = own;
  }
  return static_cast<double>(apart) / static_cast<double>(largest);
}

// The same step again and again: the same tokens each time and the same logits in the end.
void repeat(Executor& executor, PreparedStep& step, const StepInput& input, int times) {
  const auto tokens = executor.run(step, input).next_tokens;
  const auto logits = executor.logits(step);
  int others = 0;
  for (int i = 0; i < times; ++i) {
    if (executor.run(step, input).next_tokens != tokens) ++others;
  }
  if (others > 0 || executor.logits(step) != logits) {
    throw std::runtime_error("of " + std::to_string(times) + " forwards " + std::to_string(others) +
                             " had other tokens, or the last other logits");
  }
  std::printf("    %d forwards: the same tokens, the last the same logits to the bit\n", times);
}

// Several steps in one launch, and the same steps one by one: the same tokens, and the time of one.
double run_ahead(Executor& executor, PreparedStep& step, const StepInput& input) {
  const StepOutput together = executor.run_ahead(step, input, kMostAhead);
  StepInput next = input;
  const std::size_t sequences = input.decodes.size();
  for (std::size_t i = 0; i < static_cast<std::size_t>(kMostAhead); ++i) {
    const std::vector<std::int32_t> tokens = executor.run(step, next).next_tokens;
    for (std::size_t s = 0; s < sequences; ++s) {
      if (tokens[s] != together.next_tokens[i * sequences + s]) {
        throw std::runtime_error(std::to_string(kMostAhead) +
                                 " steps in one launch have another token in step " +
                                 std::to_string(i) + " than one by one");
      }
      next.decodes[s].tokens = {tokens[s]};
      ++next.decodes[s].context;
    }
  }
  std::vector<double> times;
  times.reserve(kRepeats);
  for (int i = 0; i < kRepeats / 4; ++i) {
    times.push_back(executor.run_ahead(step, input, kMostAhead).device.value() * 1e6 /
                    static_cast<double>(kMostAhead));
  }
  std::ranges::sort(times);
  return times[times.size() / 2];
}

// A conversation from its first token on beside the program in double precision on the CPU, whose
// weights and keys are the same: the largest difference of a logit over the largest logit.
double from_reference(Executor& executor, PreparedStep& step, const StepInput& input) {
  const Plan& plan = step.plan();
  megakernel::Interpreter interpreter(
      megakernel::compile(plan, {.num_sms = cuda::device_properties().multiProcessorCount}),
      reference::interpreter_setup(plan));
  constexpr std::int64_t kTokens = 40;
  double apart = 0;
  StepInput own = input;
  for (std::int64_t context = 0; context < kTokens; ++context) {
    std::vector<megakernel::NewToken> tokens;
    for (std::size_t s = 0; s < own.decodes.size(); ++s) {
      const auto token = static_cast<std::int32_t>(
          (131 * context * context + 17 * context + 29 * static_cast<std::int64_t>(s) + 5) % 1000);
      own.decodes[s].tokens = {token};
      own.decodes[s].context = context;
      tokens.push_back({.token = token, .context = context});
    }
    static_cast<void>(executor.run(step, own));
    const std::vector<float> found = executor.logits(step);
    const megakernel::Forward expected = interpreter.run(tokens);
    const std::vector<float> logits(expected.logits.begin(), expected.logits.end());
    apart = std::max(apart, difference(logits, found));
  }
  return apart;
}

// A value that never arrives ends the forward with its place, and the executor with it.
void lose(Executor& executor, PreparedStep& step, const StepInput& input, std::int32_t unit) {
  executor.lose_value(step, unit);
  std::string message;
  try {
    static_cast<void>(executor.run(step, input));
  } catch (const RankError& error) {
    message = error.what();
  }
  if (message.empty()) throw std::runtime_error("nobody missed a lost value");
  std::printf("    a lost value: %s\n", message.c_str());
}

struct Outcome {
  std::vector<float> logits;
  std::vector<std::int32_t> tokens;
  double us = 0;        // on the device, median
  double ahead_us = 0;  // of a step, many in one launch
};

struct Options {
  std::string model;  // empty: all
  megakernel::Schedule schedule = megakernel::CompileOptions{}.schedule;
  bool is_checked = false;
  std::optional<std::filesystem::path> instructions;  // where their times are written
  std::optional<Seconds> watch;                       // how long a step may take
};

// bf16 rounds each value that SMs tell each other.
constexpr double kOfReference = 0.03;

Outcome run_mode(Executor& executor, const Plan& plan, const StepInput& input, LaunchMode mode,
                 const Options& options, const std::string& name) {
  const auto step = executor.prepare(plan, input, mode);
  Outcome outcome;
  outcome.tokens = executor.run(*step, input).next_tokens;
  outcome.logits = executor.logits(*step);
  std::vector<double> times;
  times.reserve(kRepeats);
  for (int i = 0; i < kRepeats; ++i) {
    times.push_back(executor.run(*step, input).device.value() * 1e6);
  }
  std::ranges::sort(times);
  outcome.us = times[times.size() / 2];
  if (mode == LaunchMode::kMegakernel) {
    outcome.ahead_us = run_ahead(executor, *step, input);
    const Seconds duration(outcome.us * 1e-6);
    const megakernel::TimedProgram timed = executor.instruction_times(*step, input);
    print_times(timed, duration);
    if (options.instructions) {
      std::filesystem::create_directories(*options.instructions);
      write_instructions(*options.instructions / (name + ".csv"), timed, duration);
    }
    if (options.is_checked) {
      repeat(executor, *step, input, kForwards);
      if (name.starts_with("small")) {
        const double apart = from_reference(executor, *step, input);
        std::printf("    the program in double precision: logits %.2e of the largest\n", apart);
        if (!(apart < kOfReference)) throw std::runtime_error("further apart than 3e-2");
      }
      if (input.decodes.size() == 1) lose(executor, *step, input, 0);
    }
  }
  return outcome;
}

void run_case(const Case& one, std::int64_t context, const Options& options) {
  const StepInput input = input_of(one.batch, context);
  const Plan plan = plan_of(one, input);
  const std::int64_t longest = room_of(context);
  const std::string name = std::string(one.name) + "_" + one.type + "_" +
                           std::string(to_text(one.dtype)) + "_" + std::to_string(one.batch) + "_" +
                           std::to_string(context);
  Executor executor({.plan = plan,
                     .grid = {},
                     .numbers = {.head_dim = one.head_dim, .max_positions = longest},
                     .devices = {0},
                     .num_kv_blocks = one.batch * longest / kBlockSize,
                     .block_size = kBlockSize,
                     .max_tokens = one.batch,
                     .max_sequences = one.batch,
                     .max_model_len = longest,
                     .watch_limit = options.watch,
                     .megakernel_schedule = options.schedule});
  fill_cache(executor);
  const Outcome graph = run_mode(executor, plan, input, LaunchMode::kGraph, options, name);
  const Outcome kernel = run_mode(executor, plan, input, LaunchMode::kMegakernel, options, name);
  std::printf(
      "%s %s %s batch %lld context %lld: logits %.2e of the largest, tokens %s; graph %.1f us, "
      "megakernel %.1f us, of %lld in a launch %.1f us\n",
      one.name, one.type, std::string(to_text(one.dtype)).c_str(),
      static_cast<long long>(one.batch), static_cast<long long>(context),
      difference(graph.logits, kernel.logits), graph.tokens == kernel.tokens ? "equal" : "differ",
      graph.us, kernel.us, static_cast<long long>(kMostAhead), kernel.ahead_us);
  std::fflush(stdout);
}

Options parse(std::span<const std::string_view> arguments) {
  Options options;
  FaultOptions faults;
  std::vector<Option> known = fault_options(faults);
  known.erase(known.begin());  // no rank of these can be made to fail
  known.push_back({"--model", [&](const Value& value) { options.model = value.text; }});
  known.push_back({"--check", [&] { options.is_checked = true; }});
  known.push_back({"--schedule", [&](const Value& value) {
                     options.schedule = megakernel::parse_schedule(value.text);
                   }});
  known.push_back(
      {"--instructions", [&](const Value& value) { options.instructions = value.text; }});
  static_cast<void>(read_arguments("megakernel", arguments, known));
  options.watch = faults.limit;
  std::vector<std::string_view> names;
  names.reserve(kCases.size());
  for (const Case& one : kCases) names.emplace_back(one.name);
  if (!options.model.empty() && std::ranges::find(names, options.model) == names.end()) {
    throw std::invalid_argument("megakernel: found --model " + options.model + "; expected " +
                                std::string(nearest(options.model, names)));
  }
  return options;
}

}  // namespace

int megakernel(std::span<const std::string_view> arguments) {
  const Options options = parse(arguments);
  set_execute_environment();
  require_gpu();
  int exit_code = 0;
  for (const Case& one : kCases) {
    for (const std::int64_t context : one.contexts) {
      if (!options.model.empty() && options.model != one.name) continue;
      try {
        run_case(one, context, options);
      } catch (const std::exception& error) {
        std::printf("%s context %lld: %s\n", one.name, static_cast<long long>(context),
                    error.what());
        std::fflush(stdout);
        exit_code = 1;
      }
    }
  }
  return exit_code;
}

}  // namespace orrery::tool
