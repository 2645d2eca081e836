#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "kernels/attention/attention_decode/attention_decode.h"
#include "kernels/attention/attention_decode/reference.h"
#include "kernels/cuda/launch.h"
#include "kernels/harness/operand_sets.h"
#include "kernels/work.h"

namespace orrery {
namespace {

constexpr std::int64_t kFull = 1 << 30;  // window

// Varied: the first sequence has the context, the second none, others anything below.
std::vector<std::int32_t> lengths(std::int64_t batch, std::int64_t context, bool vary) {
  std::vector<std::int32_t> result(batch, static_cast<std::int32_t>(context));
  for (std::int64_t i = 1; vary && context > 0 && i < batch; ++i) {
    result[i] = i == 1 ? 0 : static_cast<std::int32_t>(i * 7919 % context);
  }
  return result;
}
// As many tokens as equal contexts, in contexts from 0.4 to 1.6 times as long, in no order.
std::vector<std::int32_t> uneven_lengths(std::int64_t batch, std::int64_t context) {
  std::vector<std::int32_t> result(batch, static_cast<std::int32_t>(context));
  for (std::int64_t i = 0; i + 1 < batch; i += 2) {
    const double part =
        0.6 * static_cast<double>((i / 2 + 1) * 7919 % batch) / static_cast<double>(batch);
    const auto less = static_cast<std::int32_t>(part * static_cast<double>(context));
    result[i] -= less;
    result[i + 1] += less;
  }
  return result;
}
std::vector<std::int32_t> case_lengths(const Dims& dims, bool vary) {
  const std::int64_t batch = dim(dims, "batch");
  const std::int64_t context = dim(dims, "context");
  std::vector<std::int32_t> result =
      variant(dims, "uneven") != 0 ? uneven_lengths(batch, context) : lengths(batch, context, vary);
  result.resize(batch + variant(dims, "padding"), 0);
  return result;
}
std::int32_t block_size(std::int64_t context, bool vary) {
  return vary ? static_cast<std::int32_t>(16 << context % 4) : kDefaultBlockSize;
}

// The operands of one set. Cache rows that no token sees are NaN. Variants: "in_qkv", queries lie
// in rows that hold keys and values of their token, too; "uneven", as many tokens in contexts that
// differ; "padding", so many sequences without keys besides, as a captured batch has.
template <typename T>
struct Operands {
  cuda::DeviceBuffer<bf16> q;
  cuda::DeviceBuffer<T> keys;
  cuda::DeviceBuffer<T> values;
  cuda::DeviceBuffer<std::int32_t> block_table;
  cuda::DeviceBuffer<std::int32_t> context_lens;
  cuda::DeviceBuffer<bf16> out;
  cuda::DeviceBuffer<float> lse;
};

template <typename T>
class AttentionDecodeCase final : public KernelCase {
 public:
  AttentionDecodeCase(const Dims& dims, const CaseOptions& options, int free_sms)
      : shape_{.seqs = static_cast<std::int32_t>(dim(dims, "batch") + variant(dims, "padding")),
               .heads = static_cast<std::int32_t>(dim(dims, "heads")),
               .kv_heads = static_cast<std::int32_t>(dim(dims, "kv_heads")),
               .head_dim = static_cast<std::int32_t>(dim(dims, "head_dim")),
               .window = static_cast<std::int32_t>(dim(dims, "window"))},
        lengths_(case_lengths(dims, options.vary)),
        block_size_(block_size(dim(dims, "context"), options.vary)),
        seed_(options.seed) {
    if (variant(dims, "in_qkv") != 0) {
      shape_.q_stride =
          static_cast<std::int64_t>(shape_.heads + 2 * shape_.kv_heads) * shape_.head_dim;
    }
    shape_.max_context = std::ranges::max(lengths_);
    split_ = attention_decode_split(shape_, sizeof(T),
                                    cuda::device_properties().multiProcessorCount - free_sms);
    blocks_per_sequence_ = std::max<std::int64_t>(1, pages(shape_.max_context));
    make_block_table();
    workspace_ = std::make_unique<cuda::DeviceBuffer<char>>(
        attention_decode_workspace_bytes(shape_, split_));
    ORRERY_CUDA(cudaMemset(workspace_->get(), 0, attention_decode_counter_bytes(split_)));
    const cuda::Stream stream;
    for (int set = 0; set < options.sets; ++set) {
      sets_.push_back({.q = cuda::DeviceBuffer<bf16>(q_count()),
                       .keys = cuda::DeviceBuffer<T>(cache_count()),
                       .values = cuda::DeviceBuffer<T>(cache_count()),
                       .block_table = device_copy<std::int32_t>(block_table_),
                       .context_lens = device_copy<std::int32_t>(lengths_),
                       .out = cuda::DeviceBuffer<bf16>(out_count()),
                       .lse = cuda::DeviceBuffer<float>(head_count())});
      fill(stream, set);
    }
    stream.synchronize();
  }

  void launch(const cuda::Stream& stream, int set) override {
    const Operands<T>& operands = sets_[set];
    const PagedKv<const T> cache{.keys = operands.keys.get(),
                                 .values = operands.values.get(),
                                 .block_table = operands.block_table.get(),
                                 .blocks_per_sequence = blocks_per_sequence_,
                                 .block_size = block_size_,
                                 .num_blocks = static_cast<std::int32_t>(num_blocks()),
                                 .key_scale = kKeyScale,
                                 .value_scale = kValueScale};
    attention_decode(stream, {.out = operands.out.get(), .lse = operands.lse.get()},
                     operands.q.get(), cache, operands.context_lens.get(), shape_, scale(), split_,
                     workspace_->get());
  }
  void reset(const cuda::Stream& stream) override {
    fill(stream, 0);
    poison(stream, sets_[0].out);
    poison(stream, sets_[0].lse);
    stream.synchronize();
  }
  std::vector<Difference> differences(const cuda::Stream& stream) override {
    const std::size_t width = static_cast<std::size_t>(shape_.heads) * shape_.head_dim;
    const auto q = columns_of(host_normal<bf16>(q_count(), seed_), q_stride(), 0, width);
    const auto keys = host_normal<T>(cache_count(), seed_ + 1);
    const auto values = host_normal<T>(cache_count(), seed_ + 2);
    auto ref = reference::attention_decode(shape_, {.q = q,
                                                    .keys = keys,
                                                    .values = values,
                                                    .block_table = block_table_,
                                                    .context_lens = lengths_,
                                                    .blocks_per_sequence = blocks_per_sequence_,
                                                    .block_size = block_size_,
                                                    .scale = scale() * kKeyScale,
                                                    .value_scale = kValueScale});
    auto lse = host_double(stream, sets_[0].lse.get(), head_count());
    // -infinity is right where the reference has it, and has no place in a norm.
    for (std::size_t i = 0; i < lse.size(); ++i) {
      if (ref.lse[i] != -std::numeric_limits<double>::infinity()) continue;
      lse[i] = lse[i] == ref.lse[i] ? 0 : std::nan("");
      ref.lse[i] = 0;
    }
    constexpr double kLseBound = 1e-5;  // fp32 sums of exact products
    return {difference("out", host_double(stream, sets_[0].out.get(), out_count()), ref.out,
                       kBf16Bound),
            difference("lse", lse, ref.lse, kLseBound)};
  }
  std::vector<Tile> tiles() override {
    const std::size_t longest = std::ranges::max_element(lengths_) - lengths_.begin();
    const std::size_t head_bytes = shape_.head_dim * sizeof(bf16);
    std::vector<Tile> tiles{{.what = "one head's output",
                             .data = sets_[0].out.get() + longest * shape_.heads * shape_.head_dim,
                             .bytes = head_bytes,
                             .is_output = true},
                            {.what = "one lse",
                             .data = sets_[0].lse.get() + longest * shape_.heads,
                             .bytes = sizeof(float),
                             .is_output = true}};
    if (lengths_[longest] == 0) return tiles;
    // The last page whose tokens are all seen, or the last.
    std::int64_t page = pages(lengths_[longest]) - 1;
    if ((page - 1) * block_size_ >= std::max(0, lengths_[longest] - shape_.window)) --page;
    page = block_table_[longest * blocks_per_sequence_ + page];
    const std::size_t bytes = page_count() * sizeof(T);
    tiles.push_back({.what = "a page of keys",
                     .data = sets_[0].keys.get() + page * page_count(),
                     .bytes = bytes});
    tiles.push_back({.what = "a page of values",
                     .data = sets_[0].values.get() + page * page_count(),
                     .bytes = bytes});
    return tiles;
  }
  [[nodiscard]] int num_sets() const override { return static_cast<int>(sets_.size()); }

 private:
  static constexpr float kKeyScale = sizeof(T) == 1 ? 0.75f : 1.0f;
  static constexpr float kValueScale = sizeof(T) == 1 ? 0.4f : 1.0f;

  [[nodiscard]] float scale() const { return 1 / std::sqrt(static_cast<float>(shape_.head_dim)); }
  [[nodiscard]] std::int64_t pages(std::int64_t context) const {
    return (context + block_size_ - 1) / block_size_;
  }
  [[nodiscard]] std::int64_t num_blocks() const { return blocks_per_sequence_ * shape_.seqs + 1; }
  [[nodiscard]] std::size_t page_count() const {
    return static_cast<std::size_t>(block_size_) * shape_.kv_heads * shape_.head_dim;
  }
  [[nodiscard]] std::size_t cache_count() const { return num_blocks() * page_count(); }
  [[nodiscard]] std::size_t head_count() const {
    return static_cast<std::size_t>(shape_.seqs) * shape_.heads;
  }
  [[nodiscard]] std::size_t out_count() const { return head_count() * shape_.head_dim; }
  [[nodiscard]] std::size_t q_stride() const {
    return shape_.q_stride == 0 ? static_cast<std::size_t>(shape_.heads) * shape_.head_dim
                                : static_cast<std::size_t>(shape_.q_stride);
  }
  [[nodiscard]] std::size_t q_count() const { return shape_.seqs * q_stride(); }

  // Pages in no order: a stride that is prime to their number. Entries that must not be read name
  // a page that is all NaN.
  void make_block_table() {
    const std::int64_t used = blocks_per_sequence_ * shape_.seqs;
    std::int64_t stride = used * 5 / 8 + 1;
    while (std::gcd(stride, used) != 1) ++stride;
    block_table_.assign(used, static_cast<std::int32_t>(used));
    for (std::int64_t seq = 0; seq < shape_.seqs; ++seq) {
      for (std::int64_t page = 0; page < pages(lengths_[seq]); ++page) {
        const std::int64_t index = seq * blocks_per_sequence_ + page;
        block_table_[index] = static_cast<std::int32_t>(index * stride % used);
      }
    }
  }
  void fill(const cuda::Stream& stream, int set) {
    const Operands<T>& operands = sets_[set];
    const std::uint64_t seed = seed_ + 3 * static_cast<std::uint64_t>(set);
    fill_normal(stream, operands.q.get(), q_count(), seed);
    fill_normal(stream, operands.keys.get(), cache_count(), seed + 1);
    fill_normal(stream, operands.values.get(), cache_count(), seed + 2);
    poison_tokens(stream, operands, num_blocks() - 1, 0, block_size_);
    for (std::int64_t seq = 0; seq < shape_.seqs; ++seq) {
      const std::int64_t context = lengths_[seq];
      const std::int64_t first_seen = std::max<std::int64_t>(0, context - shape_.window);
      for (std::int64_t page = 0; page < pages(context); ++page) {
        const std::int64_t block = block_table_[seq * blocks_per_sequence_ + page];
        const std::int64_t begin = page * block_size_;
        poison_tokens(stream, operands, block, 0,
                      std::clamp<std::int64_t>(first_seen - begin, 0, block_size_));
        poison_tokens(stream, operands, block, std::min<std::int64_t>(context - begin, block_size_),
                      block_size_);
      }
    }
  }
  void poison_tokens(const cuda::Stream& stream, const Operands<T>& operands, std::int64_t block,
                     std::int64_t begin, std::int64_t end) const {
    if (begin >= end) return;
    const std::size_t token = static_cast<std::size_t>(shape_.kv_heads) * shape_.head_dim;
    for (T* data : {operands.keys.get(), operands.values.get()}) {
      ORRERY_CUDA(cudaMemsetAsync(data + (block * block_size_ + begin) * token, 0xFF,
                                  (end - begin) * token * sizeof(T), stream.get()));
    }
  }

  AttentionDecodeShape shape_;
  std::vector<std::int32_t> lengths_;
  std::int32_t block_size_;
  std::uint64_t seed_;
  AttentionDecodeSplit split_;
  std::int64_t blocks_per_sequence_ = 0;
  std::vector<std::int32_t> block_table_;
  std::unique_ptr<cuda::DeviceBuffer<char>> workspace_;
  std::vector<Operands<T>> sets_;
};

std::unique_ptr<KernelCase> make_case(const KernelOp& op, const CaseOptions& options) {
  if (op.dtype == DType::kBf16) {
    return std::make_unique<AttentionDecodeCase<bf16>>(op.dims, options, op.free_sms);
  }
  if (op.dtype == DType::kFp8) {
    return std::make_unique<AttentionDecodeCase<fp8>>(op.dims, options, op.free_sms);
  }
  throw std::invalid_argument("attention_decode takes a bf16 or fp8 cache, not " +
                              std::string(to_text(op.dtype)));
}

KernelOp op(DType dtype, std::int64_t batch, std::int64_t context, std::int64_t heads,
            std::int64_t kv_heads, std::int64_t head_dim, std::int64_t window = kFull) {
  return {.kernel = "attention_decode",
          .dtype = dtype,
          .dims = {{"batch", batch},
                   {"context", context},
                   {"heads", heads},
                   {"kv_heads", kv_heads},
                   {"head_dim", head_dim},
                   {"window", window}}};
}

KernelOp in_qkv(KernelOp of) {
  of.dims.push_back({"in_qkv", 1});
  return of;
}

KernelOp uneven(KernelOp of) {
  of.dims.push_back({"uneven", 1});
  return of;
}

std::vector<KernelOp> check_ops() {
  std::vector<KernelOp> ops;
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    for (const std::int64_t head_dim : {64, 128}) {
      const auto add = [&](std::int64_t batch, std::int64_t context, std::int64_t heads,
                           std::int64_t kv_heads, std::int64_t window = kFull) {
        ops.push_back(op(dtype, batch, context, heads, kv_heads, head_dim, window));
      };
      add(1, 0, 8, 2);  // nothing to see
      for (const int context : {1, 2, 15, 16, 17, 31, 63, 65}) add(1, context, 4, 1);
      for (const int context : {60, 61, 62, 63}) add(5, context, 12, 4);  // each block size
      add(1, 1009, 16, 1);                                                // 16 heads per kv head
      add(3, 509, 27, 3);                                                 // 9, odd kv heads
      add(2, 509, 14, 2);                                                 // 7
      add(3, 300, 6, 6);                                                  // 1, 6 kv heads
      add(7, 257, 32, 8);
      add(1, 12001, 8, 1);  // one row on so many blocks that they merge in two levels
      add(5, 1025, 64, 8);
      add(64, 129, 16, 16);  // four kv heads per block
      add(131, 65, 6, 2);    // two
      add(300, 33, 2, 1);    // more sequences than threads
      add(4, 700, 8, 2, 128);
      add(5, 333, 8, 8, 1);
      add(5, 335, 16, 4, 77);
      ops.push_back(in_qkv(op(dtype, 7, 257, 32, 8, head_dim)));
      ops.push_back(in_qkv(op(dtype, 131, 65, 6, 2, head_dim)));
      ops.push_back(in_qkv(op(dtype, 3, 509, 27, 3, head_dim)));
      ops.push_back(uneven(op(dtype, 37, 300, 32, 8, head_dim)));
      ops.back().dims.push_back({"padding", 3});
    }
  }
  return ops;
}

std::vector<KernelOp> bench_ops() {
  std::vector<KernelOp> ops;
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    ops.push_back(op(dtype, 1, 8192, 32, 8, 128));
    ops.push_back(op(dtype, 64, 2048, 32, 8, 128));
    ops.push_back(op(dtype, 128, 4096, 64, 8, 128));
    ops.push_back(op(dtype, 128, 4096, 8, 1, 128));
    ops.push_back(op(dtype, 1, 131072, 32, 8, 128));
    ops.push_back(op(dtype, 64, 2048, 64, 8, 64));
    ops.push_back(op(dtype, 64, 4096, 32, 8, 128));
    ops.push_back(in_qkv(op(dtype, 64, 4096, 32, 8, 128)));
    for (const std::int64_t batch : {8, 16, 32, 64, 128}) {
      ops.push_back(op(dtype, batch, 1150, 32, 8, 128));
      ops.push_back(uneven(ops.back()));
    }
  }
  return ops;
}

// Caches of up to 24 GB, and what the kernel takes.
bool fits(const Dims& dims) {
  const std::int64_t heads = dim(dims, "heads");
  const std::int64_t kv_heads = dim(dims, "kv_heads");
  const double elements = 2 * size(dims, "batch") * size(dims, "context") * size(dims, "kv_heads") *
                          size(dims, "head_dim");
  return elements * 2 <= 24e9 && heads % kv_heads == 0 && heads <= decode::kMaxRatio * kv_heads;
}

std::vector<Grid> grids() {
  std::vector<Grid> grids;
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    grids.push_back({.dtype = dtype,
                     .axes = {{.dim = "batch", .values = {1, 4, 16, 64, 256}},
                              {.dim = "context", .values = {128, 1024, 8192, 65536}},
                              {.dim = "heads", .values = {8, 32, 64}},
                              {.dim = "kv_heads", .values = {1, 8}},
                              {.dim = "head_dim", .values = {64, 128}},
                              {.dim = "window", .values = {kFull}}},
                     .accept = fits});
  }
  return grids;
}

}  // namespace

Launch bind_attention_decode(const BindContext& context);  // bind.cpp

GpuKernel attention_decode_gpu() {
  return {.name = "attention_decode",
          .make_case = make_case,
          .check_ops = check_ops,
          .bench_ops = bench_ops,
          .grids = grids,
          .bind = bind_attention_decode};
}

}  // namespace orrery
