#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <stdexcept>

#include "kernels/attention/mla_decode/mla_decode.h"
#include "kernels/attention/mla_decode/reference.h"
#include "kernels/harness/gpu_kernel.h"
#include "kernels/harness/operand_sets.h"

namespace orrery {
namespace {

constexpr float kScale = 0.0721687836f;  // 1 / sqrt(128 + 64), of DeepSeek-V3

// All sequences `context` long; varied, those of no whole number of blocks from 0 to twice that,
// with this mean.
std::vector<std::int32_t> lengths_of(std::int64_t batch, std::int64_t context, bool vary) {
  std::vector<std::int32_t> lengths(static_cast<std::size_t>(batch),
                                    static_cast<std::int32_t>(context));
  if (!vary || context % kDefaultBlockSize == 0) return lengths;
  for (std::int64_t i = 0; i < batch / 2; ++i) {
    const auto less = static_cast<std::int32_t>(context - context * i / (batch / 2));
    lengths[static_cast<std::size_t>(2 * i)] -= less;
    lengths[static_cast<std::size_t>(2 * i + 1)] += less;
  }
  return lengths;
}

// Varied, blocks are of 16 to 128 tokens.
std::int32_t block_size_of(std::int64_t batch, std::int64_t context, bool vary) {
  if (!vary || context % kDefaultBlockSize == 0) return kDefaultBlockSize;
  return std::int32_t{16} << (batch + context) % 4;
}

// The variant "apart": the latent parts of queries by themselves, the rotated ones at the end of
// rows of 192 elements, as a projection leaves them.
class MlaDecodeCase final : public KernelCase {
 public:
  MlaDecodeCase(const KernelOp& op, const CaseOptions& options)
      : dims_{.sequences = static_cast<std::int32_t>(dim(op.dims, "batch")),
              .heads = static_cast<std::int32_t>(dim(op.dims, "heads"))},
        seed_(options.seed),
        is_apart_(variant(op.dims, "apart") != 0),
        lengths_(lengths_of(dim(op.dims, "batch"), dim(op.dims, "context"), options.vary)),
        block_size_(block_size_of(dim(op.dims, "batch"), dim(op.dims, "context"), options.vary)),
        blocks_per_sequence_(
            std::max(1, (std::ranges::max(lengths_) + block_size_ - 1) / block_size_)),
        table_(shuffled_table()),
        device_lengths_(device_copy<std::int32_t>(lengths_)),
        device_table_(device_copy<std::int32_t>(table_)),
        workspace_(mla_decode_workspace_bytes(dims_)) {
    if (op.dtype != DType::kBf16) {
      throw std::invalid_argument("mla_decode takes a bf16 cache only");
    }
    if (dim(op.dims, "kv_lora_rank") != kMlaLatent || dim(op.dims, "rope_dim") != kMlaRope) {
      throw std::invalid_argument("mla_decode takes kv_lora_rank 512 and rope_dim 64 only");
    }
    const cuda::Stream stream;
    for (int set = 0; set < options.sets; ++set) {
      q_.push_back(normal_buffer<bf16>(q_count(), seed_ + 2 * static_cast<std::uint64_t>(set)));
      cache_.emplace_back(cache_count());
      fill_cache(stream, set);
      out_.emplace_back(out_count());
      lse_.emplace_back(rows());
    }
    stream.synchronize();
  }

  void launch(const cuda::Stream& stream, int set) override {
    mla_decode(stream, queries(set), cache_of(set), device_lengths_.get(), dims_, kScale,
               out_[set].get(), lse_[set].get(), workspace_.get());
  }
  void reset(const cuda::Stream& stream) override {
    fill_normal(stream, q_[0].get(), q_count(), seed_);
    fill_cache(stream, 0);
    poison(stream, out_[0]);
    poison(stream, lse_[0]);
    poison(stream, workspace_);
    stream.synchronize();
  }
  std::vector<Difference> differences(const cuda::Stream& stream) override {
    if (reference_.out.empty()) make_reference();
    auto out = host_double(stream, out_[0].get(), out_count());
    auto lse = host_double(stream, lse_[0].get(), rows());
    std::vector<double> ref_lse = reference_.lse;
    for (std::size_t row = 0; row < lse.size(); ++row) {  // -inf must be met exactly
      if (lse[row] == ref_lse[row]) lse[row] = ref_lse[row] = 0;
    }
    return {difference("out", out, reference_.out, kBf16Bound),
            difference("lse", lse, ref_lse, kLseBound)};
  }
  std::vector<Tile> tiles() override {
    const auto longest =
        static_cast<std::size_t>(std::ranges::max_element(lengths_) - lengths_.begin());
    const std::size_t row = longest * static_cast<std::size_t>(dims_.heads);
    const std::size_t block =
        static_cast<std::size_t>(table_[longest * static_cast<std::size_t>(blocks_per_sequence_)]);
    const std::size_t block_elements =
        static_cast<std::size_t>(block_size_) * static_cast<std::size_t>(kMlaKey);
    return {{.what = "the output of a head",
             .data = out_[0].get() + row * kMlaLatent,
             .bytes = kMlaLatent * sizeof(bf16),
             .is_output = true},
            {.what = "a block of the cache",
             .data = cache_[0].get() + block * block_elements,
             .bytes = block_elements * sizeof(bf16)}};
  }
  [[nodiscard]] int num_sets() const override { return static_cast<int>(q_.size()); }

 private:
  static constexpr double kLseBound = 1e-4;
  static constexpr std::int32_t kProjected = 192;  // elements of a head

  [[nodiscard]] std::size_t rows() const {
    return static_cast<std::size_t>(dims_.sequences) * static_cast<std::size_t>(dims_.heads);
  }
  [[nodiscard]] std::int64_t q_columns() const {
    return is_apart_ ? kMlaLatent + kProjected : kMlaKey;
  }
  [[nodiscard]] std::size_t q_count() const {
    return rows() * static_cast<std::size_t>(q_columns());
  }
  [[nodiscard]] MlaQueries queries(int set) const {
    const bf16* const q = q_[static_cast<std::size_t>(set)].get();
    if (!is_apart_) return joined_queries(q);
    return {.latent = q,
            .rotated = q + rows() * kMlaLatent + kProjected - kMlaRope,
            .rotated_head_stride = kProjected};
  }
  // As made, [sequences, heads, 576].
  [[nodiscard]] std::vector<double> host_queries() const {
    std::vector<double> made = host_normal<bf16>(q_count(), seed_);
    if (!is_apart_) return made;
    std::vector<double> q;
    for (std::size_t row = 0; row < rows(); ++row) {
      const auto latent = made.begin() + static_cast<std::ptrdiff_t>(row * kMlaLatent);
      const auto end =
          made.begin() + static_cast<std::ptrdiff_t>(rows() * kMlaLatent + (row + 1) * kProjected);
      q.insert(q.end(), latent, latent + kMlaLatent);
      q.insert(q.end(), end - kMlaRope, end);
    }
    return q;
  }
  [[nodiscard]] std::size_t out_count() const { return rows() * kMlaLatent; }
  [[nodiscard]] std::size_t cache_count() const {
    return table_.size() * static_cast<std::size_t>(block_size_) * kMlaKey;
  }
  [[nodiscard]] PagedKv<const bf16> cache_of(int set) const {
    return {.keys = cache_[set].get(),
            .block_table = device_table_.get(),
            .blocks_per_sequence = blocks_per_sequence_,
            .block_size = block_size_,
            .num_blocks = static_cast<std::int32_t>(table_.size())};
  }

  [[nodiscard]] std::vector<std::int32_t> shuffled_table() const {
    std::vector<std::int32_t> table(static_cast<std::size_t>(blocks_per_sequence_) *
                                    static_cast<std::size_t>(dims_.sequences));
    std::iota(table.begin(), table.end(), 0);
    std::mt19937_64 random(seed_);
    for (std::size_t i = table.size(); i > 1; --i) std::swap(table[i - 1], table[random() % i]);
    return table;
  }

  // Blocks without a token hold NaN, and so do the rows past the last token of a sequence.
  void fill_cache(const cuda::Stream& stream, int set) {
    fill_normal(stream, cache_[set].get(), cache_count(),
                seed_ + 2 * static_cast<std::uint64_t>(set) + 1);
    for (std::size_t s = 0; s < lengths_.size(); ++s) {
      for (std::int64_t b = lengths_[s] / block_size_; b < blocks_per_sequence_; ++b) {
        const std::int64_t valid = std::max<std::int64_t>(0, lengths_[s] - b * block_size_);
        const std::int64_t block = table_[s * static_cast<std::size_t>(blocks_per_sequence_) +
                                          static_cast<std::size_t>(b)];
        bf16* stale = cache_[set].get() + (block * block_size_ + valid) * kMlaKey;
        const auto bytes = static_cast<std::size_t>(block_size_ - valid) * kMlaKey * sizeof(bf16);
        ORRERY_CUDA(cudaMemsetAsync(stale, 0xFF, bytes, stream.get()));
      }
    }
  }

  void make_reference() {
    const auto q = host_queries();
    const auto cache = host_normal<bf16>(cache_count(), seed_ + 1);
    reference_ = reference::mla_decode({.q = q,
                                        .cache = cache,
                                        .block_table = table_,
                                        .lengths = lengths_,
                                        .heads = dims_.heads,
                                        .latent = kMlaLatent,
                                        .rope = kMlaRope,
                                        .block_size = block_size_,
                                        .scale = kScale});
  }

  MlaDecodeDims dims_;
  std::uint64_t seed_;
  bool is_apart_;
  std::vector<std::int32_t> lengths_;
  std::int32_t block_size_;
  std::int64_t blocks_per_sequence_;
  std::vector<std::int32_t> table_;
  cuda::DeviceBuffer<std::int32_t> device_lengths_;
  cuda::DeviceBuffer<std::int32_t> device_table_;
  cuda::DeviceBuffer<std::uint8_t> workspace_;
  std::vector<cuda::DeviceBuffer<bf16>> q_;
  std::vector<cuda::DeviceBuffer<bf16>> cache_;
  std::vector<cuda::DeviceBuffer<bf16>> out_;
  std::vector<cuda::DeviceBuffer<float>> lse_;
  reference::MlaDecodeResult reference_;
};

std::unique_ptr<KernelCase> make_case(const KernelOp& op, const CaseOptions& options) {
  return std::make_unique<MlaDecodeCase>(op, options);
}

KernelOp op(std::int64_t batch, std::int64_t context, std::int64_t heads) {
  return {.kernel = "mla_decode",
          .dims = {{"batch", batch},
                   {"context", context},
                   {"heads", heads},
                   {"kv_lora_rank", kMlaLatent},
                   {"rope_dim", kMlaRope}}};
}

KernelOp apart(KernelOp of) {
  of.dims.push_back({"apart", 1});
  return of;
}

// With 5 x 211 two units have two pieces of one tile: the end of the ring comes while values are
// stored, long enough under compute-sanitizer for a missing wait to stop the kernel forever.
std::vector<KernelOp> check_ops() {
  return {apart(op(1, 65, 1)), apart(op(7, 509, 128)), apart(op(5, 211, 16)), op(1, 1, 1),
          op(1, 63, 16),       op(1, 64, 128),         op(1, 65, 17),         op(2, 127, 64),
          op(3, 97, 5),        op(5, 211, 100),        op(6, 130, 16),        op(7, 509, 128),
          op(150, 37, 3),      op(1, 2048, 128),       op(1, 1537, 64),       op(4, 1000, 65),
          op(133, 640, 2),     op(70, 383, 66)};
}

std::vector<KernelOp> bench_ops() {
  std::vector<KernelOp> ops;
  for (const std::int64_t heads : {16, 32, 64, 128}) ops.push_back(op(128, 4096, heads));
  for (const std::int64_t heads : {16, 128}) {
    ops.push_back(op(1, 4096, heads));
    ops.push_back(op(32, 8192, heads));
    ops.push_back(op(256, 1024, heads));
  }
  return ops;
}

std::vector<Grid> grids() {
  return {{.axes = {{.dim = "batch", .values = {1, 8, 32, 128, 512}},
                    {.dim = "context", .values = {64, 512, 4096, 32768}},
                    {.dim = "heads", .values = {8, 16, 32, 64, 128}},
                    {.dim = "kv_lora_rank", .values = {kMlaLatent}},
                    {.dim = "rope_dim", .values = {kMlaRope}}},
           .accept = [](const Dims& dims) {
             return dim(dims, "batch") * dim(dims, "context") <= std::int64_t{128} * 32768;
           }}};
}

}  // namespace

Launch bind_mla_decode(const BindContext& context);  // bind.cpp

GpuKernel mla_decode_gpu() {
  return {.name = "mla_decode",
          .make_case = make_case,
          .check_ops = check_ops,
          .bench_ops = bench_ops,
          .grids = grids,
          .bind = bind_mla_decode};
}

}  // namespace orrery
