#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "kernels/attention/kv_gather/kv_gather.h"
#include "kernels/attention/kv_gather/reference.h"
#include "kernels/harness/operand_sets.h"

namespace orrery {
namespace {

constexpr std::int32_t kBlockSize = kDefaultBlockSize;

// The variant "sequences": so many, of about as many tokens; one where it is not given. Blocks of
// the cache lie in falling order.
class KvGatherCase final : public KernelCase {
 public:
  KvGatherCase(const KernelOp& op, const CaseOptions& options)
      : shape_{.tokens = dim(op.dims, "tokens"),
               .sequences = variant(op.dims, "sequences", 1),
               .latent = dim(op.dims, "kv_lora_rank"),
               .rope = dim(op.dims, "rope_dim")},
        lengths_(lengths()),
        columns_((*std::ranges::max_element(lengths_) + kBlockSize - 1) / kBlockSize),
        table_(static_cast<std::size_t>(shape_.sequences * columns_)),
        cache_(table_.size() * kBlockSize * width(), options.seed, options.sets),
        latents_(static_cast<std::size_t>(shape_.tokens * shape_.latent), options.sets),
        rotated_(static_cast<std::size_t>(shape_.tokens * shape_.rope), options.sets) {
    std::iota(table_.rbegin(), table_.rend(), 0);
    std::vector<std::int32_t> starts(lengths_.size() + 1);
    std::partial_sum(lengths_.begin(), lengths_.end(), starts.begin() + 1);
    device_starts_ = device_copy<std::int32_t>(starts);
    device_table_ = device_copy<std::int32_t>(table_);
  }

  void launch(const cuda::Stream& stream, int set) override {
    const PagedKv<const bf16> cache{.keys = cache_[set],
                                    .block_table = device_table_.get(),
                                    .blocks_per_sequence = columns_,
                                    .block_size = kBlockSize,
                                    .num_blocks = static_cast<std::int32_t>(table_.size())};
    kv_gather(stream, cache, device_starts_.get(), shape_, latents_[set], rotated_[set]);
  }
  void reset(const cuda::Stream& stream) override {
    cache_.reset(stream);
    latents_.reset(stream);
    rotated_.reset(stream);
    stream.synchronize();
  }
  std::vector<Difference> differences(const cuda::Stream& stream) override {
    const std::vector<double> cache = cache_.made();
    const reference::KvGatherResult expected = reference::kv_gather({.cache = cache,
                                                                     .block_table = table_,
                                                                     .lengths = lengths_,
                                                                     .latent = shape_.latent,
                                                                     .rope = shape_.rope,
                                                                     .block_size = kBlockSize});
    return {difference("latents", latents_.host(stream), expected.latents, 0),
            difference("rotated keys", rotated_.host(stream), expected.rotated, 0)};
  }
  std::vector<Tile> tiles() override {
    const auto first = static_cast<std::size_t>(table_.front()) * kBlockSize * width();
    return {latents_.tile("a latent", 0, static_cast<std::size_t>(shape_.latent)),
            rotated_.tile("a rotated key", 0, static_cast<std::size_t>(shape_.rope)),
            cache_.tile("a cached token", first, width())};
  }
  [[nodiscard]] int num_sets() const override { return cache_.num_sets(); }

 private:
  [[nodiscard]] std::size_t width() const {
    return static_cast<std::size_t>(shape_.latent + shape_.rope);
  }
  [[nodiscard]] std::vector<std::int32_t> lengths() const {
    const std::int64_t each = shape_.tokens / shape_.sequences;
    std::vector<std::int32_t> result(static_cast<std::size_t>(shape_.sequences),
                                     static_cast<std::int32_t>(each));
    result.back() += static_cast<std::int32_t>(shape_.tokens - each * shape_.sequences);
    return result;
  }

  KvGatherShape shape_;
  std::vector<std::int32_t> lengths_;
  std::int64_t columns_;
  std::vector<std::int32_t> table_;
  InputSets<bf16> cache_;
  OutputSets<bf16> latents_;
  OutputSets<bf16> rotated_;
  cuda::DeviceBuffer<std::int32_t> device_starts_{0};
  cuda::DeviceBuffer<std::int32_t> device_table_{0};
};

std::unique_ptr<KernelCase> make_case(const KernelOp& op, const CaseOptions& options) {
  if (op.dtype != DType::kBf16) throw std::invalid_argument("kv_gather takes a bf16 cache only");
  return std::make_unique<KvGatherCase>(op, options);
}

KernelOp op(std::int64_t tokens, std::int64_t sequences, std::int64_t latent = 512,
            std::int64_t rope = 64) {
  return {.kernel = "kv_gather",
          .dtype = DType::kBf16,
          .dims = {{"tokens", tokens},
                   {"kv_lora_rank", latent},
                   {"rope_dim", rope},
                   {"sequences", sequences}}};
}

// One token; just over a block; sequences that end within blocks; more than a launch's rows.
std::vector<KernelOp> check_ops() {
  return {op(1, 1), op(65, 1), op(131, 3), op(1009, 7), op(4096, 64), op(515, 5, 8, 8)};
}
std::vector<KernelOp> bench_ops() { return {op(2048, 1), op(16384, 1), op(16384, 8)}; }

std::vector<Grid> grids() {
  return {{.dtype = DType::kBf16,
           .axes = {{.dim = "tokens", .values = {64, 512, 2048, 8192, 32768}},
                    {.dim = "kv_lora_rank", .values = {512}},
                    {.dim = "rope_dim", .values = {64}}}}};
}

}  // namespace

Launch bind_kv_gather(const BindContext& context);  // bind.cpp

GpuKernel kv_gather_gpu() {
  return {.name = "kv_gather",
          .make_case = make_case,
          .check_ops = check_ops,
          .bench_ops = bench_ops,
          .grids = grids,
          .bind = bind_kv_gather};
}

}  // namespace orrery
