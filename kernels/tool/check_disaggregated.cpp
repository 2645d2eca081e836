#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/binding/kv_pool.h"
#include "kernels/cuda/devices.h"
#include "kernels/serve/executed_steps.h"
#include "kernels/serve/executor_runner.h"
#include "kernels/serve/kv_mover.h"
#include "kernels/serve/live.h"
#include "kernels/serve/rank_grid.h"
#include "kernels/tool/check_cases.h"
#include "kernels/tool/checks.h"
#include "kernels/tool/small_service.h"
#include "sim/parallel/kv_flows.h"
#include "sim/serve/workload.h"

namespace orrery::tool {
namespace {

std::string describe_split(const Mesh& mesh) {
  std::string text = "tp " + std::to_string(mesh.tp);
  if (mesh.pp > 1) text += " pp " + std::to_string(mesh.pp);
  if (mesh.dp > 1) text += " dp " + std::to_string(mesh.dp);
  return text;
}

// What a cache holds is told by where it belongs in the whole model: two bytes of one token's key
// or value, from which the destination is known without what was moved.
struct Place {
  std::int64_t layer = 0;
  std::int64_t is_value = 0;
  std::int64_t head = 0;
  std::int64_t token = 0;  // of the sequence
  std::int64_t element = 0;
};
std::uint16_t content(const Place& place) {
  std::uint64_t hash = 14695981039346656037U;  // FNV-1a
  for (const std::int64_t part :
       {place.layer, place.is_value, place.head, place.token, place.element}) {
    hash = (hash ^ static_cast<std::uint64_t>(part)) * 1099511628211U;
  }
  return static_cast<std::uint16_t>(hash >> 32);
}

// KV caches of one instance of `mesh` for a sequence in `blocks`, on GPUs 0, 1, … and again 0.
class Caches {
 public:
  Caches(const Mesh& mesh, std::int64_t layers, std::int64_t heads, std::int64_t head_dim,
         bool is_latent, std::vector<std::int32_t> blocks, std::int64_t num_blocks, int first_gpu)
      : mesh_(mesh), heads_(heads), blocks_(std::move(blocks)) {
    const int gpus = cuda::device_count();
    for (int rank = 0; rank < mesh.pp * mesh.tp; ++rank) {
      const int device = (first_gpu + rank) % gpus;
      const cuda::DeviceGuard guard(device);
      pools_.push_back(std::make_unique<KvPool>(
          KvShape{.layers = layers / mesh.pp,
                  .num_blocks = num_blocks,
                  .block_size = static_cast<std::int32_t>(kServedBlockTokens),
                  .kv_heads = std::max<std::int64_t>(heads / mesh.tp, 1),
                  .head_dim = head_dim,
                  .is_latent = is_latent}));
      instance_.gpus.push_back({.pool = pools_.back().get(), .device = device, .rank = rank});
    }
  }

  [[nodiscard]] const MovedInstance& instance() const { return instance_; }
  [[nodiscard]] std::span<const std::int32_t> blocks() const { return blocks_; }
  void fill() {
    visit([](std::uint16_t& found, const Place& place) { found = content(place); }, true);
  }
  void clear() {
    visit([](std::uint16_t& found,
             const Place& place) { found = static_cast<std::uint16_t>(~content(place)); },
          true);
  }
  std::int64_t num_wrong() {
    std::int64_t wrong = 0;
    visit(
        [&](std::uint16_t& found, const Place& place) { wrong += found == content(place) ? 0 : 1; },
        false);
    return wrong;
  }

 private:
  template <typename Visit>
  void visit(const Visit& call, bool writes) {
    for (std::size_t rank = 0; rank < pools_.size(); ++rank) {
      const KvPool& pool = *pools_[rank];
      const KvShape& shape = pool.shape();
      const auto tp_rank = static_cast<std::int64_t>(rank) % mesh_.tp;
      const auto stage = static_cast<std::int64_t>(rank) / mesh_.tp;
      std::vector<std::uint16_t> bytes(static_cast<std::size_t>(pool.bytes()) / 2);
      const cuda::DeviceGuard guard(instance_.gpus[rank].device);
      ORRERY_CUDA(cudaMemcpy(bytes.data(), pool.data(), bytes.size() * 2, cudaMemcpyDeviceToHost));
      const std::int64_t per_layer = shape.pools() / shape.layers;
      for (std::int64_t p = 0; p < shape.pools(); ++p) {
        for (std::size_t block = 0; block < blocks_.size(); ++block) {
          for (std::int64_t row = 0; row < kServedBlockTokens; ++row) {
            for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
              for (std::int64_t i = 0; i < shape.head_dim; ++i) {
                const std::int64_t at =
                    p * pool.pool_bytes() / 2 +
                    ((blocks_[block] * kServedBlockTokens + row) * shape.kv_heads + head) *
                        shape.head_dim +
                    i;
                call(bytes[static_cast<std::size_t>(at)],
                     {.layer = stage * shape.layers + p / per_layer,
                      .is_value = p % per_layer,
                      .head = tp_rank * heads_ / mesh_.tp + head,
                      .token = static_cast<std::int64_t>(block) * kServedBlockTokens + row,
                      .element = i});
              }
            }
          }
        }
      }
      if (!writes) continue;
      ORRERY_CUDA(cudaMemcpy(pool.data(), bytes.data(), bytes.size() * 2, cudaMemcpyHostToDevice));
    }
  }

  Mesh mesh_;
  std::int64_t heads_;
  std::vector<std::int32_t> blocks_;
  std::vector<std::unique_ptr<KvPool>> pools_;
  MovedInstance instance_;
};

struct ServedSide {
  Mesh mesh;
  std::vector<int> devices;
};

std::unique_ptr<ExecutorRunner> make_runner(const ServedSide& side, bool announces_layers) {
  ExecutorRunnerSetup setup{.model = small_service_model(4), .mesh = side.mesh};
  setup.executor = {.grid = grid_of(side.mesh),
                    .numbers = {.head_dim = 64, .max_positions = 2048},
                    .devices = side.devices,
                    .num_kv_blocks = 200,
                    .block_size = kServedBlockTokens,
                    .max_tokens = 512,
                    .max_sequences = 8,
                    .max_model_len = 1024};
  setup.announces_layers = announces_layers;
  return std::make_unique<ExecutorRunner>(std::move(setup));
}

MovedInstance instance_of(const ExecutorRunner& runner, const std::vector<int>& devices) {
  MovedInstance instance{.layers = runner.layer_events()};
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    instance.gpus.push_back({.pool = &runner.executor().kv(static_cast<int>(rank)),
                             .device = devices[rank],
                             .rank = static_cast<int>(rank)});
  }
  return instance;
}

class DisaggregatedCheck : public CheckCases {
 public:
  using CheckCases::CheckCases;

  // Every byte of a sequence's caches by which heads of which layers belong where; a layer that is
  // left out must be noticed.
  void check_bytes(const ModelConfig& model, const Mesh& from, const Mesh& to) {
    const bool is_latent = model.kv_lora_rank > 0;
    const std::string what = std::string("disaggregated bytes ") + (is_latent ? "latents " : "") +
                             describe_split(from) + " to " + describe_split(to);
    guarded(what, [&] {
      const std::int64_t layers = std::ssize(model.layers);
      const std::int64_t heads = is_latent ? 1 : model.num_key_value_heads;
      const std::int64_t width = is_latent ? 576 : 64;
      Caches prefill(from, layers, heads, width, is_latent, {7, 2, 9, 4, 0}, 12, 0);
      // From GPU 1 on: where each side has one rank, it is a GPU of its own.
      Caches decode(to, layers, heads, width, is_latent, {3, 8, 1, 6, 5}, 10, 1);
      const std::vector<KvPart> parts = kv_parts(model, from, to);
      const KvMover::Move move{.source = prefill.blocks(), .destination = decode.blocks()};
      prefill.fill();
      for (const auto& [by, name] :
           {std::pair(MoveBy::kSm, "by SMs"), {MoveBy::kCopyEngine, "by copy engines"}}) {
        GpuKvMover mover({prefill.instance()}, {decode.instance()}, parts, by);
        decode.clear();
        static_cast<void>(mover.move(move));
        const std::int64_t wrong = decode.num_wrong();
        const std::int64_t told = mover.wrong_bytes(move);
        count(wrong == 0 && told == 0);
        std::printf("%s %s %s  %zu parts, %s wrong\n", verdict(), what.c_str(), name, parts.size(),
                    std::to_string(wrong + told).c_str());
      }
      std::vector<KvPart> fewer = parts;
      --fewer.front().num_layers;
      GpuKvMover mover({prefill.instance()}, {decode.instance()}, fewer);
      decode.clear();
      static_cast<void>(mover.move(move));
      count(decode.num_wrong() > 0);
      std::printf("%s %s  a layer left out noticed\n", verdict(), what.c_str());
    });
  }

  // A small service with prompts and decodes apart: under load every byte that moved; one request
  // at a time the tokens that the decode side makes by itself, if it splits the model alike.
  void check_service(const ServedSide& prefill, const ServedSide& decode, bool layerwise) {
    const std::string what = "disaggregated service " + describe_split(prefill.mesh) + " to " +
                             describe_split(decode.mesh) + (layerwise ? " layer by layer" : "");
    const std::set<int> devices = [&] {
      std::set<int> all(prefill.devices.begin(), prefill.devices.end());
      all.insert(decode.devices.begin(), decode.devices.end());
      return all;
    }();
    if (is_skipped(what, {.dp = static_cast<int>(devices.size())})) return;
    guarded(what, [&] {
      const auto from = make_runner(prefill, layerwise);
      const auto to = make_runner(decode, false);
      for (const std::int64_t concurrency : {1, 8}) {
        const Workload workload =
            closed_loop(concurrency, 40, {.kind = LengthKind::kUniform, .min = 1, .max = 500},
                        {.kind = LengthKind::kUniform, .min = 1, .max = 30}, 5);
        GpuKvMover mover({instance_of(*from, prefill.devices)}, {instance_of(*to, decode.devices)},
                         kv_parts(small_service_model(4), prefill.mesh, decode.mesh));
        CheckedKvMover checked(mover);
        const LiveResult apart = served(workload, *from, to.get(), &checked, layerwise);
        const LiveResult whole = served(workload, *to, nullptr, nullptr, false);
        std::size_t equal = 0;
        for (std::size_t i = 0; i < whole.tokens.size(); ++i) {
          equal += apart.tokens[i] == whole.tokens[i] ? 1 : 0;
        }
        const bool must_equal = concurrency == 1 && prefill.mesh == decode.mesh;
        count(apart.is_complete && (!must_equal || equal == whole.tokens.size()));
        std::printf(
            "%s %s, %lld at once  %lld caches right, %zu of %zu requests' tokens as whole\n",
            verdict(), what.c_str(), static_cast<long long>(concurrency),
            static_cast<long long>(apart.service.metrics.disaggregation->num_transfers), equal,
            whole.tokens.size());
      }
    });
  }

 private:
  static LiveResult served(const Workload& workload, ExecutorRunner& first, ExecutorRunner* decode,
                           KvMover* mover, bool layerwise) {
    const auto side = [](ExecutorRunner& runner) {
      LiveSide live;
      live.service.engine.max_num_seqs = 8;
      live.service.engine.max_num_batched_tokens = 256;
      live.service.engine.block_size = kServedBlockTokens;
      live.service.num_kv_blocks = 200;
      live.steps = {.num_kv_blocks = 200,
                    .block_size = kServedBlockTokens,
                    .vocab_size = kServedVocab,
                    .seed = 3};
      live.runners = {&runner};
      return live;
    };
    LiveSetup setup{.first = side(first)};
    if (decode != nullptr) {
      setup.decode = side(*decode);
      setup.mover = mover;
      setup.kv_block = Bytes(1);
      setup.moves_layers = layerwise;
    }
    LiveClock clock;
    LiveResult result = serve_live(workload, setup, {}, clock);
    if (result.error) std::rethrow_exception(result.error);
    return result;
  }
};

}  // namespace

CheckCount check_disaggregated() {
  const int gpus = cuda::device_count();
  if (gpus < 2) {
    std::printf("skipped: needs 2 GPUs, there is %d\n", gpus);
    return {};
  }
  DisaggregatedCheck check(gpus);
  const ModelConfig heads = small_service_model(4);
  ModelConfig latents = heads;
  latents.kv_lora_rank = 512;
  for (LayerConfig& layer : latents.layers) layer.attention = AttentionKind::kMla;
  for (const auto& [from, to] :
       std::vector<std::pair<Mesh, Mesh>>{{{.tp = 2}, {.tp = 1}},
                                          {{.tp = 1}, {.tp = 2}},
                                          {{.tp = 2}, {.tp = 2}},
                                          {{.tp = 2}, {.tp = 8}},
                                          {{.pp = 2}, {.tp = 2}},
                                          {{.tp = 4}, {.tp = 2, .pp = 2}}}) {
    check.check_bytes(heads, from, to);
    check.check_bytes(latents, from, to);
  }
  // Of unlike sides one GPU has an executor of each, whose threads launch the same kernels.
  const ServedSide one{.mesh = {.tp = 1}, .devices = {0}};
  const ServedSide other{.mesh = {.tp = 1}, .devices = {1}};
  const ServedSide both{.mesh = {.tp = 2}, .devices = {0, 1}};
  const ServedSide stages{.mesh = {.pp = 2}, .devices = {0, 1}};
  for (const bool layerwise : {false, true}) {
    check.check_service(one, other, layerwise);
    check.check_service(both, other, layerwise);
    check.check_service(stages, one, layerwise);
    check.check_service(one, both, layerwise);
  }
  return check.result();
}

}  // namespace orrery::tool
