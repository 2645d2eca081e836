#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda/handles.h"
#include "kernels/execute/executor.h"
#include "kernels/execute/rank_error.h"
#include "kernels/harness/operands.h"
#include "kernels/tool/commands.h"
#include "sim/megakernel/program.h"
#include "sim/model/model.h"

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
constexpr int kForwards = 10'000;  // that are to be the same

StepInput input_of(std::int64_t batch, std::int64_t context) {
  StepInput input;
  std::int32_t block = 0;
  for (std::int64_t i = 0; i < batch; ++i) {
    SequenceTokens& one = input.decodes.emplace_back();
    one.tokens = {static_cast<std::int32_t>(7 + i)};
    one.context = context;
    for (std::int64_t at = 0; at <= context; at += kBlockSize) one.blocks.push_back(block++);
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

// Where an SM's time goes, the mean over SMs, in shares of its cycles from first to last.
void print_times(const megakernel::TimedProgram& program, double us) {
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
  double us = 0;  // on the device, median
};

Outcome run_mode(Executor& executor, const Plan& plan, const StepInput& input, LaunchMode mode,
                 bool is_checked) {
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
    const megakernel::TimedProgram timed = executor.instruction_times(*step, input);
    print_times(timed, outcome.us);
    print_spread(timed, outcome.us);
    if (is_checked) {
      repeat(executor, *step, input, kForwards);
      if (input.decodes.size() == 1) lose(executor, *step, input, 0);
    }
  }
  return outcome;
}

void run_case(const Case& one, std::int64_t context, bool is_checked,
              megakernel::Schedule schedule) {
  const StepInput input = input_of(one.batch, context);
  const Plan plan = plan_of(one, input);
  const std::int64_t longest = (context + 1 + kBlockSize) / kBlockSize * kBlockSize;
  Executor executor({.plan = plan,
                     .grid = {},
                     .numbers = {.head_dim = one.head_dim, .max_positions = longest},
                     .devices = {0},
                     .num_kv_blocks = one.batch * longest / kBlockSize,
                     .block_size = kBlockSize,
                     .max_tokens = one.batch,
                     .max_sequences = one.batch,
                     .max_model_len = longest,
                     .megakernel_schedule = schedule});
  fill_cache(executor);
  const Outcome graph = run_mode(executor, plan, input, LaunchMode::kGraph, is_checked);
  const Outcome kernel = run_mode(executor, plan, input, LaunchMode::kMegakernel, is_checked);
  std::printf(
      "%s %s %s batch %lld context %lld: logits %.2e of the largest, tokens %s; graph %.1f us, "
      "megakernel %.1f us\n",
      one.name, one.type, std::string(to_text(one.dtype)).c_str(),
      static_cast<long long>(one.batch), static_cast<long long>(context),
      difference(graph.logits, kernel.logits), graph.tokens == kernel.tokens ? "equal" : "differ",
      graph.us, kernel.us);
  std::fflush(stdout);
}

}  // namespace

int megakernel(std::span<const std::string_view> arguments) {
  set_execute_environment();
  require_gpu();
  int exit_code = 0;
  megakernel::Schedule schedule = megakernel::CompileOptions{}.schedule;
  std::vector<std::string_view> words;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] != "--schedule") {
      words.push_back(arguments[i]);
      continue;
    }
    if (++i == arguments.size()) throw std::invalid_argument("--schedule needs a name");
    schedule = megakernel::parse_schedule(arguments[i]);
  }
  const bool is_checked = words.size() > 1 && words[1] == "check";
  for (const Case& one : kCases) {
    for (const std::int64_t context : one.contexts) {
      if (!words.empty() && words[0] != one.name) continue;
      try {
        run_case(one, context, is_checked, schedule);
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
