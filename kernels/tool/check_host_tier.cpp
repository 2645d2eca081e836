#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kernels/binding/kv_pool.h"
#include "kernels/cuda/devices.h"
#include "kernels/serve/executed_steps.h"
#include "kernels/serve/executor_runner.h"
#include "kernels/serve/host_tier.h"
#include "kernels/serve/live.h"
#include "kernels/serve/rank_grid.h"
#include "kernels/tool/check_cases.h"
#include "kernels/tool/checks.h"
#include "kernels/tool/small_service.h"
#include "sim/serve/kv_tiers.h"
#include "sim/serve/workload.h"

namespace orrery::tool {
namespace {

constexpr std::int64_t kUnitTokens = 64;
constexpr std::int64_t kLongestPrompt = 1000;

// Prompts of five families that begin alike, in turn, so that each family's prefix is pushed out of
// a small cache before it is asked for again.
Workload shared_prompts(std::int64_t concurrency) {
  constexpr std::int64_t kRequests = 40;
  Workload workload =
      closed_loop(concurrency, kRequests,
                  {.kind = LengthKind::kUniform, .min = kLongestPrompt / 3, .max = kLongestPrompt},
                  {.kind = LengthKind::kUniform, .min = 2, .max = 40}, 5);
  workload.hash_block_tokens = kUnitTokens;
  for (Request& request : workload.requests) {
    // A prompt of whole units computes its last one again, in place where that is on the GPU, and
    // rounds it otherwise than it was.
    request.prompt_tokens |= 1;
    for (std::int64_t unit = 0; unit < request.prompt_tokens / kUnitTokens; ++unit) {
      request.block_hashes.push_back(static_cast<std::uint64_t>(1000 * (request.id % 5) + unit));
    }
  }
  return workload;
}

struct ServedCase {
  Mesh mesh;
  std::int64_t num_kv_blocks = 0;
  std::optional<TierWrite> write;  // none: no tier
  TierOverlap overlap = TierOverlap::kLayers;
  bool uses_graphs = false;
  std::int64_t concurrency = 1;
};

LiveResult served(const ServedCase& of) {
  const ModelConfig model = small_service_model(2);
  const Workload workload = shared_prompts(of.concurrency);
  ServiceConfig service;
  service.engine.max_num_seqs = 4;
  service.engine.max_num_batched_tokens = 256;
  service.engine.block_size = kServedBlockTokens;
  service.engine.enable_prefix_caching = true;
  service.num_kv_blocks = of.num_kv_blocks;
  constexpr std::int64_t kUnitBlocks = kUnitTokens / kServedBlockTokens;
  constexpr double kHostUnits = 400;  // room for all
  const Bytes block(2.0 * 8 * kServedBlockTokens * 2 * 64 *
                    2);  // keys and values of 8 layers, bf16
  if (of.write) {
    // A link that takes hardly any time: a unit is found by the request after the one that pushed
    // it out, as it would be on the GPU.
    service.kv_tiers = {.tiers = {{.name = "host",
                                   .capacity = block * (kUnitBlocks * kHostUnits),
                                   .bandwidth = BytesPerSecond(1e15),
                                   .write_bandwidth = BytesPerSecond(1e15),
                                   .write = *of.write}},
                        .overlap = of.overlap,
                        .block_of_gpu = block,
                        .block = block,
                        .layers = {.all = 8, .of_stage = 8}};
  }
  ExecutorRunnerSetup setup{.model = model, .mesh = of.mesh};
  setup.executor = {.grid = grid_of(of.mesh),
                    .numbers = {.head_dim = 64, .max_positions = 2048},
                    .num_kv_blocks = of.num_kv_blocks,
                    .block_size = kServedBlockTokens,
                    .max_tokens = 256,
                    .max_sequences = 4,
                    .max_model_len = 2048};
  setup.executor.devices.resize(static_cast<std::size_t>(num_ranks(of.mesh)));
  std::iota(setup.executor.devices.begin(), setup.executor.devices.end(), 0);
  if (of.write) {
    setup.host_tier = HostTierConfig{
        .num_slots = tier_units(service.kv_tiers, service.kv_tiers.tiers.front(), kUnitBlocks, 1),
        .blocks_per_unit = kUnitBlocks,
        .overlap = of.overlap};
  }
  ExecutorRunner runner(std::move(setup));
  ExecutedStepsConfig steps{.num_kv_blocks = of.num_kv_blocks,
                            .block_size = kServedBlockTokens,
                            .vocab_size = kServedVocab,
                            .seed = 3,
                            .hash_block_tokens = kUnitTokens,
                            .caches_prefixes = true};
  if (of.uses_graphs) {
    steps.graph_batch_sizes = {1, 4};
    for (const std::int64_t rows : {4, 1}) runner.capture(rows);
  }
  LiveClock clock;
  LiveResult result = serve_live(
      workload, {.first = {.service = service, .steps = steps, .runners = {&runner}}}, {}, clock);
  if (result.error) std::rethrow_exception(result.error);
  return result;
}

class HostTierCheck : public CheckCases {
 public:
  using CheckCases::CheckCases;

  // One request after the other runs the same steps with all prefixes on the GPU and with most of
  // them on the host, so every token must be the same.
  void check_tokens(const Mesh& mesh) {
    const std::string what = "host_tier tokens tp " + std::to_string(mesh.tp);
    if (is_skipped(what, mesh)) return;
    for (const bool uses_graphs : {false, true}) {
      guarded(what, [&] {
        const LiveResult whole =
            served({.mesh = mesh, .num_kv_blocks = 2000, .uses_graphs = uses_graphs});
        for (const TierWrite write : {TierWrite::kEviction, TierWrite::kThrough}) {
          for (const TierOverlap overlap : {TierOverlap::kLayers, TierOverlap::kNone}) {
            const ServedCase tiered{.mesh = mesh,
                                    .num_kv_blocks = 90,  // a longest request and little more
                                    .write = write,
                                    .overlap = overlap,
                                    .uses_graphs = uses_graphs};
            compare(what, tiered, whole, served(tiered));
          }
        }
      });
    }
  }

  // Under load batches are others, and so are roundings: what is asked is that all of it ends.
  void check_load(const Mesh& mesh) {
    const std::string what = "host_tier load tp " + std::to_string(mesh.tp);
    if (is_skipped(what, mesh)) return;
    guarded(what, [&] {
      const LiveResult result = served({.mesh = mesh,
                                        .num_kv_blocks = 130,
                                        .write = TierWrite::kEviction,
                                        .uses_graphs = true,
                                        .concurrency = 8});
      const TierMetrics& tier = result.service.metrics.kv_tiers->tiers.front();
      count(result.is_complete && tier.hit_tokens > 0);
      std::printf("%s %s  %zu of 40 requests, %lld tokens from the host, %lld preemptions\n",
                  verdict(), what.c_str(), result.service.requests.size(),
                  static_cast<long long>(tier.hit_tokens),
                  static_cast<long long>(result.service.metrics.num_preemptions));
    });
  }

  // Units of random bytes go to the host and come back into other blocks while those they left are
  // overwritten: all bytes of all layers.
  void check_bytes() {
    guarded("host_tier bytes", [&] {
      constexpr std::int64_t kUnits = 6;
      constexpr std::int32_t kBlocks = 4;
      const cuda::DeviceGuard guard(0);
      const KvShape shape{.layers = 5,
                          .num_blocks = 2 * kUnits * kBlocks,
                          .block_size = kServedBlockTokens,
                          .kv_heads = 2,
                          .head_dim = 64};
      const KvPool pool(shape);
      std::vector<std::byte> given(static_cast<std::size_t>(pool.bytes()));
      std::mt19937 random(1);
      for (std::byte& byte : given) byte = static_cast<std::byte>(random());
      ORRERY_CUDA(cudaMemcpy(pool.data(), given.data(), given.size(), cudaMemcpyHostToDevice));

      HostTier tier({.num_slots = 2, .blocks_per_unit = kBlocks});  // others are made when needed
      const KvPool* const pools[] = {&pool};
      const int devices[] = {0};
      tier.open(pools, devices);
      // Blocks of even units are neighbours, of odd ones not.
      std::vector<std::vector<std::int32_t>> blocks;
      for (std::int32_t unit = 0; unit < 2 * kUnits; ++unit) {
        std::vector<std::int32_t>& of = blocks.emplace_back();
        for (std::int32_t i = 0; i < kBlocks; ++i) of.push_back(unit * kBlocks + i);
        if (unit % 2 == 1) std::ranges::reverse(of);
      }
      KvMoves out{.batch = 1, .overwrites = 1, .num_slots = kUnits};
      KvMoves in{.loads_after = 1, .num_slots = kUnits};
      for (std::int64_t unit = 0; unit < kUnits; ++unit) {
        out.writes.push_back({.blocks = blocks[static_cast<std::size_t>(unit)], .slot = unit});
        in.loads.push_back(
            {.blocks = blocks[static_cast<std::size_t>(2 * kUnits - 1 - unit)], .slot = unit});
      }
      const cuda::Stream step;
      run(tier, out, step, shape, [&](std::int64_t layer) {  // the layer overwrites its blocks
        ORRERY_CUDA(cudaMemsetAsync(pool.keys(layer), 0,
                                    static_cast<std::size_t>(pool.pool_bytes()), step.get()));
        ORRERY_CUDA(cudaMemsetAsync(pool.values(layer), 0,
                                    static_cast<std::size_t>(pool.pool_bytes()), step.get()));
      });
      run(tier, in, step, shape, [](std::int64_t) {});
      std::vector<std::byte> found(given.size());
      ORRERY_CUDA(cudaMemcpy(found.data(), pool.data(), found.size(), cudaMemcpyDeviceToHost));
      std::int64_t wrong = 0;
      const std::int64_t size = kv_block_bytes(shape);
      for (std::int64_t p = 0; p < shape.pools(); ++p) {
        for (std::size_t unit = 0; unit < out.writes.size(); ++unit) {
          for (std::size_t i = 0; i < kBlocks; ++i) {
            const std::byte* const was =
                given.data() + p * pool.pool_bytes() + out.writes[unit].blocks[i] * size;
            const std::byte* const is =
                found.data() + p * pool.pool_bytes() + in.loads[unit].blocks[i] * size;
            wrong += std::memcmp(was, is, static_cast<std::size_t>(size)) == 0 ? 0 : 1;
          }
        }
      }
      count(wrong == 0);
      const long long all = shape.pools() * kUnits * kBlocks;
      std::printf("%s host_tier bytes  %lld of %lld blocks came back otherwise\n", verdict(),
                  static_cast<long long>(wrong), all);
    });
  }

 private:
  template <typename Layer>
  static void run(HostTier& tier, const KvMoves& moves, const cuda::Stream& step,
                  const KvShape& shape, const Layer& compute) {
    tier.set(moves);
    tier.begin_step(0, step, true);
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      tier.begin_layer(0, layer, step);
      compute(layer);
    }
    tier.end_step(0, step);
    step.synchronize();
  }

  void compare(const std::string& what, const ServedCase& tiered, const LiveResult& whole,
               const LiveResult& found) {
    std::size_t equal = 0;
    std::size_t cached_alike = 0;
    for (std::size_t i = 0; i < whole.tokens.size(); ++i) {
      equal += !whole.tokens[i].empty() && whole.tokens[i] == found.tokens[i] ? 1 : 0;
      cached_alike +=
          whole.service.requests[i].cached_tokens == found.service.requests[i].cached_tokens ? 1
                                                                                             : 0;
    }
    const KvTierMetrics& metrics = *found.service.metrics.kv_tiers;
    const TierMetrics& tier = metrics.tiers.front();
    count(equal == whole.tokens.size() && cached_alike == whole.tokens.size() &&
          tier.hit_tokens > 0);
    std::printf(
        "%s %s write %s overlap %s%s  %zu of %zu requests as from the GPU alone, %lld tokens from "
        "the host, %.1f ms waited\n",
        verdict(), what.c_str(),
        std::string(kTierWriteNames[static_cast<std::size_t>(*tiered.write)]).c_str(),
        std::string(kTierOverlapNames[static_cast<std::size_t>(tiered.overlap)]).c_str(),
        tiered.uses_graphs ? " graphs" : "", equal, whole.tokens.size(),
        static_cast<long long>(tier.hit_tokens), metrics.exposed.value() * 1e3);
    std::fflush(stdout);
  }
};

}  // namespace

CheckCount check_host_tier() {
  HostTierCheck check(cuda::device_count());
  check.check_bytes();
  for (const int tp : {1, 2}) {
    check.check_tokens({.tp = tp});
    check.check_load({.tp = tp});
  }
  return check.result();
}

}  // namespace orrery::tool
