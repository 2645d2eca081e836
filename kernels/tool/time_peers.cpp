#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/comm/all_reduce/choice.h"
#include "kernels/comm/collectives/hops.h"
#include "kernels/comm/collectives/sweep.h"
#include "kernels/comm/kv_transfer/measure.h"
#include "kernels/cuda/devices.h"
#include "kernels/cuda/nccl.h"
#include "kernels/experts/fused_moe/ranks.h"
#include "kernels/probes/link.h"
#include "kernels/tool/arguments.h"
#include "kernels/tool/peers.h"

namespace orrery::tool {
namespace {

struct Options {
  std::vector<int> gpus;  // numbers of GPUs
  std::filesystem::path directory;
  std::int64_t most_bytes = std::int64_t{1} << 30;
};

// Of one GPU, where that is enough, none are listed.
Options parse(std::span<const std::string_view> arguments, int fewest) {
  Options options;
  const int present = cuda::device_count();
  const std::vector<Option> known = {
      {"--gpus",
       [&](const Value& value) {
         for (const std::string_view count : split(value.text, ',')) {
           options.gpus.push_back(Value{.name = value.name, .text = count}.small(2));
         }
       }},
      {"-o", [&](const Value& value) { options.directory = value.text; }},
      {"--most-bytes", [&](const Value& value) { options.most_bytes = value.whole(1); }}};
  read_arguments("time", arguments, known);
  if (!options.directory.empty()) std::filesystem::create_directories(options.directory);
  if (options.gpus.empty() && present == 1 && fewest == 1) return options;
  if (options.gpus.empty()) options.gpus = present > 2 ? std::vector{2, present} : std::vector{2};
  for (const int gpus : options.gpus) {
    if (gpus < 2 || gpus > std::min(present, kMaxRanks)) {
      throw std::invalid_argument("--gpus " + std::to_string(gpus) + ": expected 2 to " +
                                  std::to_string(kMaxRanks) + ", and there are " +
                                  std::to_string(present));
    }
  }
  return options;
}

std::vector<int> first_devices(int count) {
  std::vector<int> devices(count);
  std::iota(devices.begin(), devices.end(), 0);
  return devices;
}

// Lines of one table, to stdout and to a file when there is a directory.
class Table {
 public:
  Table(const Options& options, const std::string& name, const std::string& header) {
    if (!options.directory.empty()) file_.open(options.directory / (name + ".csv"));
    std::printf("%s\n", name.c_str());
    write(header);
  }
  void write(const std::string& line) {
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
    if (file_.is_open()) file_ << line << "\n";
  }

 private:
  std::ofstream file_;
};

std::string microseconds(Seconds time) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3f", time.value() * 1e6);
  return text.data();
}

std::string spread_and_samples(double spread, int samples) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.4f,%d", spread, samples);
  return text.data();
}

void time_collectives(const Options& options) {
  const std::string header =
      "implementation,version,mode,dtype,num_gpus,bytes,time_us,spread,samples";
  std::map<CollectiveKind, Table> tables;
  for (const int gpus : options.gpus) {
    sweep_collectives(first_devices(gpus), options.most_bytes, [&](const CollectiveRow& row) {
      const std::string name(to_text(row.kind));
      Table& table = tables.try_emplace(row.kind, options, name, header).first->second;
      table.write(row.implementation + "," + row.version + "," + std::string(to_text(row.mode)) +
                  "," + std::string(to_text(row.dtype)) + "," + std::to_string(row.num_gpus) + "," +
                  std::to_string(row.bytes) + "," + microseconds(row.time.median) + "," +
                  spread_and_samples(row.time.spread, row.time.samples));
    });
  }
}

void time_links(const Options& options) {
  Table table(options, "nvlink",
              "probe,method,traffic,from,to,bytes,time_us,gbytes_per_s,spread,samples");
  const int gpus = std::ranges::max(options.gpus);
  for (const LinkRow& row : probe_link(first_devices(gpus))) {
    const double peers = row.from < 0 ? gpus - 1 : 1;
    std::array<char, 32> rate{};
    std::snprintf(rate.data(), rate.size(), "%.1f", peers * (row.bytes / row.time).value() * 1e-9);
    table.write(row.probe + "," + row.method + "," + row.traffic + "," + std::to_string(row.from) +
                "," + std::to_string(row.to) + "," +
                std::to_string(static_cast<std::int64_t>(row.bytes.value())) + "," +
                microseconds(row.time) + "," + rate.data() + "," +
                spread_and_samples(row.spread, row.samples));
  }
}

void time_kv_transfer(const Options& options) {
  Table table(options, "kv_transfer",
              "method,block_bytes,blocks,layout,bytes,time_us,gbytes_per_s,spread,samples");
  const cuda::DeviceTeam team(first_devices(2));
  for (const KvTransferRow& row : measure_kv_transfer(team)) {
    const std::int64_t bytes = row.shape.block_bytes * row.shape.blocks * row.shape.layers;
    std::array<char, 32> rate{};
    std::snprintf(rate.data(), rate.size(), "%.1f",
                  static_cast<double>(bytes) / row.time.median.value() * 1e-9);
    table.write(row.method + "," + std::to_string(row.shape.block_bytes) + "," +
                std::to_string(row.shape.blocks) + "," +
                (row.shape.scattered ? "scattered" : "contiguous") + "," + std::to_string(bytes) +
                "," + microseconds(row.time.median) + "," + rate.data() + "," +
                spread_and_samples(row.time.spread, row.time.samples));
  }
}

void time_hops(const Options& options) {
  Table table(options, "hops", "probe,mode,collective,num_gpus,bytes,time_us,spread,samples");
  for (const int gpus : options.gpus) {
    measure_hops(first_devices(gpus), [&](const HopRow& row) {
      table.write(row.probe + "," + std::string(to_text(row.mode)) + "," + row.collective + "," +
                  std::to_string(gpus) + "," + std::to_string(row.bytes) + "," +
                  microseconds(row.time.median) + "," +
                  spread_and_samples(row.time.spread, row.time.samples));
    });
  }
}

struct MoeLayer {
  std::int64_t hidden;
  std::int64_t ffn;
  std::int64_t experts;
  std::int64_t topk;
  std::int64_t shared = 0;
  ExpertActivation activation = ExpertActivation::kSwiglu;
};
// The layer of the FlashDMoE paper (arXiv 2506.04667), gated and plain; Qwen3-30B-A3B's and
// Mixtral's half as wide.
constexpr auto kMoeLayers = std::to_array<MoeLayer>(
    {{.hidden = 2048, .ffn = 2048, .experts = 64, .topk = 2},
     {.hidden = 2048, .ffn = 2048, .experts = 64, .topk = 2, .activation = ExpertActivation::kGelu},
     {.hidden = 2048, .ffn = 768, .experts = 128, .topk = 8},
     {.hidden = 2048, .ffn = 7168, .experts = 8, .topk = 2}});
constexpr auto kFp8Layers =
    std::to_array<MoeLayer>({{.hidden = 2048, .ffn = 2048, .experts = 64, .topk = 2},
                             {.hidden = 2048, .ffn = 768, .experts = 128, .topk = 8}});
// Of models: Qwen3-235B-A22B, GLM-4.5-Air without its shared expert, DeepSeek-V2-Lite, 32 of
// DeepSeek-V3's experts, Llama-4 Scout, Mixtral-8x7B.
constexpr auto kModelLayers =
    std::to_array<MoeLayer>({{.hidden = 4096, .ffn = 1536, .experts = 128, .topk = 8},
                             {.hidden = 4096, .ffn = 1408, .experts = 128, .topk = 8},
                             {.hidden = 2048, .ffn = 1408, .experts = 64, .topk = 6, .shared = 2},
                             {.hidden = 7168, .ffn = 2048, .experts = 32, .topk = 8, .shared = 1},
                             {.hidden = 5120, .ffn = 8192, .experts = 16, .topk = 1, .shared = 1},
                             {.hidden = 4096, .ffn = 14336, .experts = 8, .topk = 2}});

// Rows of a table of fused_moe; so many tokens on each GPU.
class MoeTable {
 public:
  explicit MoeTable(const Options& options)
      : table_(options, "fused_moe",
               "dtype,tokens,hidden,ffn,experts_total,topk,activation,experts,shared,time_us,"
               "spread,samples,l2,mode"),
        counts_(options.gpus) {
    counts_.insert(counts_.begin(), 1);
  }
  void time(std::span<const MoeLayer> layers, bool is_fp8,
            std::span<const std::int64_t> all_tokens) {
    for (const int gpus : counts_) {
      for (const MoeLayer& layer : layers) {
        for (const std::int64_t tokens : all_tokens) time(layer, is_fp8, tokens, gpus);
      }
    }
  }

 private:
  void time(const MoeLayer& layer, bool is_fp8, std::int64_t tokens, int gpus) {
    const FusedMoeShape shape{.tokens = tokens,
                              .hidden = layer.hidden,
                              .ffn = layer.ffn,
                              .experts = layer.experts,
                              .topk = layer.topk,
                              .activation = layer.activation,
                              .is_fp8 = is_fp8,
                              .ranks = gpus,
                              .shared = layer.shared};
    const Measurement found = time_fused_moe_ranks(first_devices(gpus), shape);
    std::string line = is_fp8 ? "fp8" : "bf16";
    for (const std::int64_t size :
         {tokens, layer.hidden, layer.ffn, layer.experts, layer.topk,
          static_cast<std::int64_t>(layer.activation), own_experts(shape), shape.shared}) {
      line += "," + std::to_string(size);
    }
    table_.write(line + "," + microseconds(found.median) + "," +
                 spread_and_samples(found.spread, found.samples) + ",cold,graph");
  }

  Table table_;
  std::vector<int> counts_;
};

void time_fused_moe(const Options& options) {
  constexpr std::array<std::int64_t, 11> kTokens = {1,    4,    16,   64,   256,  512,
                                                    1024, 2048, 4096, 8192, 16384};
  MoeTable table(options);
  table.time(kMoeLayers, /*is_fp8=*/false, kTokens);
  table.time(kFp8Layers, /*is_fp8=*/true, kTokens);
}

void time_fused_moe_models(const Options& options) {
  constexpr std::array<std::int64_t, 7> kTokens = {1, 16, 128, 512, 2048, 4096, 8192};
  MoeTable table(options);
  table.time(kModelLayers, /*is_fp8=*/true, kTokens);
  table.time(kModelLayers, /*is_fp8=*/false, kTokens);
}

struct Timing {
  std::string_view what;
  void (*run)(const Options& options);
  int fewest = 2;  // GPUs
};
constexpr std::array kTimings = {
    Timing{.what = "collectives", .run = time_collectives},
    Timing{.what = "links", .run = time_links},
    Timing{.what = "kv_transfer", .run = time_kv_transfer},
    Timing{.what = "hops", .run = time_hops},
    Timing{.what = "fused_moe_ranks", .run = time_fused_moe, .fewest = 1},
    Timing{.what = "fused_moe_models", .run = time_fused_moe_models, .fewest = 1}};

}  // namespace

bool is_peer_timing(std::string_view what) {
  return std::ranges::find(kTimings, what, &Timing::what) != kTimings.end();
}

int time_peers(std::string_view what, std::span<const std::string_view> arguments) {
  const Timing& timing = *std::ranges::find(kTimings, what, &Timing::what);
  timing.run(parse(arguments, timing.fewest));
  return 0;
}

}  // namespace orrery::tool
