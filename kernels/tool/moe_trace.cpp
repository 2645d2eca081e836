// orrery-gpu moe_trace: when the blocks of a layer of experts that is one kernel did what.
//
//   orrery-gpu moe_trace -o DIR [--tokens N[,N…]] [--hidden N] [--ffn N] [--experts N] [--topk N]
//                        [--shared N] [--dtype bf16|fp8] [--activation swiglu|gelu|relu] [--gpus N]
//
// The layer of the FlashDMoE paper with gated experts where nothing else is said (8,192 tokens on
// each GPU). DIR gets a file for each number of tokens, which `orrery trace layer` reads
// (fused_moe_spans_csv).

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/devices.h"
#include "kernels/experts/fused_moe/ranks.h"
#include "kernels/tool/arguments.h"
#include "kernels/tool/commands.h"
#include "kernels/tool/environment.h"

namespace orrery::tool {
namespace {

struct TraceOptions {
  std::filesystem::path directory;
  std::vector<std::int64_t> tokens;
  FusedMoeShape shape{.hidden = 2048, .ffn = 2048, .experts = 64, .topk = 2};
};

constexpr std::array<std::pair<std::string_view, ExpertActivation>, 3> kActivations = {
    {{"swiglu", ExpertActivation::kSwiglu},
     {"gelu", ExpertActivation::kGelu},
     {"relu", ExpertActivation::kRelu}}};

ExpertActivation activation_of(const Value& value) {
  for (const auto& [name, activation] : kActivations) {
    if (name == value.text) return activation;
  }
  throw std::invalid_argument("--activation " + std::string(value.text) +
                              ": expected swiglu, gelu or relu");
}

bool is_fp8(const Value& value) {
  if (value.text == "fp8") return true;
  if (value.text == "bf16") return false;
  throw std::invalid_argument("--dtype " + std::string(value.text) + ": expected bf16 or fp8");
}

TraceOptions parse_trace(std::span<const std::string_view> arguments) {
  TraceOptions options;
  FusedMoeShape& shape = options.shape;
  const auto size = [](std::int64_t& to, std::int64_t least) {
    return [&to, least](const Value& value) { to = value.whole(least); };
  };
  const std::vector<Option> known = {
      {"-o", [&](const Value& value) { options.directory = value.text; }},
      {"--tokens",
       [&](const Value& value) {
         for (const std::string_view count : split(value.text, ',')) {
           options.tokens.push_back(Value{.name = value.name, .text = count}.whole(1));
         }
       }},
      {"--hidden", size(shape.hidden, 8)},
      {"--ffn", size(shape.ffn, 8)},
      {"--experts", size(shape.experts, 1)},
      {"--topk", size(shape.topk, 1)},
      {"--shared", size(shape.shared, 0)},
      {"--gpus", size(shape.ranks, 1)},
      {"--activation", [&](const Value& value) { shape.activation = activation_of(value); }},
      {"--dtype", [&](const Value& value) { shape.is_fp8 = is_fp8(value); }}};
  read_arguments("moe_trace", arguments, known);
  if (options.directory.empty()) throw std::invalid_argument("moe_trace needs -o DIR");
  if (options.tokens.empty()) options.tokens.push_back(8192);
  for (const std::int64_t tokens : options.tokens) {
    shape.tokens = tokens;
    require_fused_moe_shape(shape);
  }
  return options;
}

// "fused_moe_1024_2048_2048_64_2_bf16_1gpu.blocks.csv"
std::string file_of(const FusedMoeShape& shape) {
  std::string name = "fused_moe";
  for (const std::int64_t size :
       {shape.tokens, shape.hidden, shape.ffn, shape.experts, shape.topk}) {
    name += "_" + std::to_string(size);
  }
  if (shape.shared > 0) name += "_shared" + std::to_string(shape.shared);
  if (shape.activation != ExpertActivation::kSwiglu) {
    name += "_" + std::string(kActivations.at(static_cast<std::size_t>(shape.activation)).first);
  }
  return name + (shape.is_fp8 ? "_fp8_" : "_bf16_") + std::to_string(shape.ranks) +
         (shape.ranks == 1 ? "gpu" : "gpus") + ".blocks.csv";
}

void trace_one(const TraceOptions& options, const FusedMoeShape& shape) {
  std::vector<int> devices(static_cast<std::size_t>(shape.ranks));
  std::iota(devices.begin(), devices.end(), 0);
  const FusedMoeTraced found = trace_fused_moe_ranks(devices, shape);
  const std::filesystem::path file = options.directory / file_of(shape);
  std::ofstream stream(file, std::ios::binary | std::ios::trunc);
  stream << fused_moe_spans_csv(found.ranks);
  if (!stream.flush()) throw std::runtime_error(file.string() + ": cannot be written");
  constexpr double kMicroseconds = 1e6;
  std::printf("%-60s %10.2f us, traced %10.2f\n", file.filename().c_str(),
              found.untraced.value() * kMicroseconds, found.traced.value() * kMicroseconds);
  std::fflush(stdout);
}

}  // namespace

int moe_trace(std::span<const std::string_view> arguments) {
  const TraceOptions options = parse_trace(arguments);
  set_execute_environment();  // ranks wait for each other
  require_gpu();
  if (options.shape.ranks > cuda::device_count()) {
    throw std::invalid_argument("--gpus " + std::to_string(options.shape.ranks) +
                                ": expected at most " + std::to_string(cuda::device_count()) +
                                ", which are here");
  }
  std::filesystem::create_directories(options.directory);
  for (const std::int64_t tokens : options.tokens) {
    FusedMoeShape shape = options.shape;
    shape.tokens = tokens;
    trace_one(options, shape);
  }
  return 0;
}

}  // namespace orrery::tool
