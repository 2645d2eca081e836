#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <stdexcept>

#include "kernels/attention/attention_prefill/attention_prefill.h"
#include "kernels/attention/attention_prefill/prefill_case.h"
#include "kernels/harness/operand_sets.h"
#include "kernels/kernel_spec.h"

namespace orrery {
namespace {

// Where the keys of a case lie: one after the other, or in scattered pages of a cache that holds
// twice as many, the free rows NaN.
struct KeyLayout {
  bool is_paged = false;
  std::int32_t block_size = kDefaultBlockSize;
  std::int64_t blocks_per_sequence = 0;
  std::int32_t num_blocks = 0;
  std::vector<std::int32_t> block_table;
  std::int64_t rows = 0;                 // of the tensor
  std::vector<std::int64_t> row_of_key;  // of all sequences' keys in order
};

KeyLayout key_layout(std::span<const PrefillChunk> sequences, bool is_paged,
                     std::int32_t block_size) {
  KeyLayout layout{.is_paged = is_paged, .block_size = block_size};
  std::int64_t blocks = 0;
  for (const PrefillChunk& sequence : sequences) {
    const std::int64_t keys = sequence.query + sequence.context;
    layout.blocks_per_sequence =
        std::max(layout.blocks_per_sequence, (keys + block_size - 1) / block_size);
    blocks += (keys + block_size - 1) / block_size;
    layout.rows += keys;
  }
  if (!is_paged) {
    for (std::int64_t row = 0; row < layout.rows; ++row) layout.row_of_key.push_back(row);
    return layout;
  }
  // Block i lies at the odd place i * kStep modulo a power of two: all different, far apart.
  constexpr std::int64_t kStep = 0x9E3779B1;
  layout.num_blocks = 2;
  while (layout.num_blocks < 2 * blocks) layout.num_blocks *= 2;
  layout.rows = std::int64_t{layout.num_blocks} * block_size;
  std::int64_t next = 0;
  for (const PrefillChunk& sequence : sequences) {
    const std::int64_t keys = sequence.query + sequence.context;
    for (std::int64_t i = 0; i < layout.blocks_per_sequence; ++i) {
      const bool is_used = i * block_size < keys;
      const std::int64_t block = is_used ? next++ * kStep % layout.num_blocks : -1;
      layout.block_table.push_back(static_cast<std::int32_t>(block));
      for (std::int64_t key = i * block_size;
           key < std::min<std::int64_t>((i + 1) * block_size, keys); ++key) {
        layout.row_of_key.push_back(block * block_size + key % block_size);
      }
    }
  }
  return layout;
}

// The variant "in_qkv": queries lie in rows that hold keys and values of their token, too.
class AttentionPrefillCase final : public KernelCase {
 public:
  AttentionPrefillCase(const KernelOp& op, const CaseOptions& options)
      : head_dim_(dim(op.dims, "head_dim")), seed_(options.seed) {
    if (op.dtype != DType::kBf16) throw std::invalid_argument("attention_prefill takes bf16 only");
    const std::int64_t query = dim(op.dims, "query");
    const std::int64_t context = dim(op.dims, "context");
    shape_ = {.heads = dim(op.dims, "heads"),
              .kv_heads = dim(op.dims, "kv_heads"),
              .qk_dim = head_dim_,
              .v_dim = head_dim_,
              .window = dim(op.dims, "window"),
              .scale = 1 / std::sqrt(static_cast<double>(head_dim_))};
    q_stride_ =
        (shape_.heads + (variant(op.dims, "in_qkv") != 0 ? 2 * shape_.kv_heads : 0)) * head_dim_;
    sequences_ = prefill::sequences(dim(op.dims, "batch"), query, context, options.vary);
    constexpr std::int32_t kBlockSizes[] = {16, 32, 64, 128};
    const std::int64_t choice = query + context + shape_.heads;
    layout_ = key_layout(sequences_, options.vary ? choice % 5 != 0 : context > 0,
                         options.vary ? kBlockSizes[choice % 4] : kDefaultBlockSize);
    plan_ = std::make_unique<PrefillPlan>(
        sequences_, attention_prefill_tile_rows(static_cast<std::int32_t>(head_dim_)),
        static_cast<std::int32_t>(std::min<std::int64_t>(shape_.window, kNoWindow)));
    table_ = device_copy(std::span<const std::int32_t>(layout_.block_table));
    for (int set = 0; set < options.sets; ++set) {
      sets_.push_back({.q = cuda::DeviceBuffer<bf16>(query_count()),
                       .keys = cuda::DeviceBuffer<bf16>(key_count()),
                       .values = cuda::DeviceBuffer<bf16>(key_count()),
                       .out = cuda::DeviceBuffer<bf16>(rows() * head_dim_),
                       .lse = cuda::DeviceBuffer<float>(rows())});
      fill(cuda::Stream(), set);
    }
  }

  void launch(const cuda::Stream& stream, int set) override {
    const Set& s = sets_[set];
    const AttentionPrefill call{.q = s.q.get(),
                                .out = s.out.get(),
                                .lse = s.lse.get(),
                                .heads = static_cast<std::int32_t>(shape_.heads),
                                .kv_heads = static_cast<std::int32_t>(shape_.kv_heads),
                                .head_dim = static_cast<std::int32_t>(head_dim_),
                                .scale = static_cast<float>(shape_.scale),
                                .q_stride = q_stride_};
    if (layout_.is_paged) {
      attention_prefill(stream, *plan_, call,
                        PagedKv<const bf16>{.keys = s.keys.get(),
                                            .values = s.values.get(),
                                            .block_table = table_.get(),
                                            .blocks_per_sequence = layout_.blocks_per_sequence,
                                            .block_size = layout_.block_size,
                                            .num_blocks = layout_.num_blocks});
    } else {
      attention_prefill(stream, *plan_, call, s.keys.get(), s.values.get());
    }
  }
  void reset(const cuda::Stream& stream) override {
    fill(stream, 0);
    poison(stream, sets_[0].out);
    poison(stream, sets_[0].lse);
    stream.synchronize();
  }
  std::vector<Difference> differences(const cuda::Stream& stream) override {
    if (!reference_) {
      reference_.emplace(sequences_, shape_,
                         columns_of(host_normal<bf16>(query_count(), seed_), q_stride_, 0,
                                    shape_.heads * head_dim_),
                         gathered(seed_ + 1), gathered(seed_ + 2));
    }
    return reference_->differences(stream, sets_[0].out.get(), sets_[0].lse.get());
  }
  std::vector<Tile> tiles() override {
    // The keys that the first token sees: its own and its neighbours'.
    const Set& s = sets_[0];
    const std::int64_t own = layout_.row_of_key[sequences_[0].context];
    const std::int64_t first =
        layout_.is_paged ? own / layout_.block_size * layout_.block_size : own;
    const std::int64_t keys =
        layout_.is_paged ? layout_.block_size : std::min<std::int64_t>(64, sequences_[0].query);
    const std::int64_t at = first * shape_.kv_heads * head_dim_;
    const std::size_t bytes = keys * shape_.kv_heads * head_dim_ * sizeof(bf16);
    const std::size_t out_bytes =
        std::min<std::int64_t>(plan_->tokens(), 64) * shape_.heads * head_dim_ * sizeof(bf16);
    return {{.what = "64 outputs", .data = s.out.get(), .bytes = out_bytes, .is_output = true},
            {.what = "an lse", .data = s.lse.get(), .bytes = sizeof(float), .is_output = true},
            {.what = "a tile of keys", .data = s.keys.get() + at, .bytes = bytes},
            {.what = "a tile of values", .data = s.values.get() + at, .bytes = bytes}};
  }
  [[nodiscard]] int num_sets() const override { return static_cast<int>(sets_.size()); }

 private:
  struct Set {
    cuda::DeviceBuffer<bf16> q;
    cuda::DeviceBuffer<bf16> keys;
    cuda::DeviceBuffer<bf16> values;
    cuda::DeviceBuffer<bf16> out;
    cuda::DeviceBuffer<float> lse;
  };

  [[nodiscard]] std::size_t rows() const { return plan_->tokens() * shape_.heads; }
  [[nodiscard]] std::size_t query_count() const { return plan_->tokens() * q_stride_; }
  [[nodiscard]] std::size_t key_count() const { return layout_.rows * shape_.kv_heads * head_dim_; }

  // Complete on return.
  void fill(const cuda::Stream& stream, int set) {
    const Set& s = sets_[set];
    const std::uint64_t seed = seed_ + 3 * static_cast<std::uint64_t>(set);
    fill_normal(stream, s.q.get(), query_count(), seed);
    fill_normal(stream, s.keys.get(), key_count(), seed + 1);
    fill_normal(stream, s.values.get(), key_count(), seed + 2);
    if (layout_.is_paged) {
      std::vector<bool> is_used(layout_.rows);
      for (const std::int64_t row : layout_.row_of_key) is_used[row] = true;
      const std::size_t row_elements = shape_.kv_heads * head_dim_;
      for (std::int64_t row = 0; row < layout_.rows;) {
        std::int64_t end = row;
        while (end < layout_.rows && !is_used[end]) ++end;
        for (bf16* data : {s.keys.get(), s.values.get()}) {
          if (end == row) continue;
          ORRERY_CUDA(cudaMemsetAsync(data + row * row_elements, 0xFF,
                                      (end - row) * row_elements * sizeof(bf16), stream.get()));
        }
        row = end + 1;
      }
    }
    stream.synchronize();
  }
  // Keys or values as made, in the order of the sequences.
  [[nodiscard]] std::vector<double> gathered(std::uint64_t seed) const {
    const std::vector<double> all = host_normal<bf16>(key_count(), seed);
    const std::int64_t width = shape_.kv_heads * head_dim_;
    std::vector<double> result;
    for (const std::int64_t row : layout_.row_of_key) {
      result.insert(result.end(), all.begin() + row * width, all.begin() + (row + 1) * width);
    }
    return result;
  }

  std::int64_t head_dim_;
  std::uint64_t seed_;
  std::int64_t q_stride_ = 0;
  reference::AttentionShape shape_;
  std::vector<PrefillChunk> sequences_;
  KeyLayout layout_;
  std::unique_ptr<PrefillPlan> plan_;
  cuda::DeviceBuffer<std::int32_t> table_{0};
  std::vector<Set> sets_;
  std::optional<prefill::SampledReference> reference_;
};

std::unique_ptr<KernelCase> make_case(const KernelOp& op, const CaseOptions& options) {
  return std::make_unique<AttentionPrefillCase>(op, options);
}

struct Size {
  std::int64_t batch;
  std::int64_t query;
  std::int64_t context;
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t head_dim;
  std::int64_t window = kNoWindow;
};
KernelOp op(const Size& size) {
  return {.kernel = "attention_prefill",
          .dims = {{"batch", size.batch},
                   {"query", size.query},
                   {"context", size.context},
                   {"heads", size.heads},
                   {"kv_heads", size.kv_heads},
                   {"head_dim", size.head_dim},
                   {"window", size.window}}};
}

KernelOp in_qkv(const Size& size) {
  KernelOp result = op(size);
  result.dims.push_back({"in_qkv", 1});
  return result;
}

std::vector<KernelOp> check_ops() {
  std::vector<KernelOp> ops;
  for (const std::int64_t head_dim : {64, 128}) {
    for (const Size& size : {Size{1, 1, 0, 1, 1, head_dim},
                             {1, 63, 0, 3, 1, head_dim},
                             {1, 64, 1, 7, 7, head_dim},
                             {1, 65, 0, 8, 2, head_dim},
                             {1, 127, 100, 8, 2, head_dim},
                             {1, 129, 0, 8, 2, head_dim},
                             {1, 1, 1009, 32, 8, head_dim},
                             {3, 193, 0, 8, 2, head_dim},
                             {5, 257, 100, 3, 1, head_dim},
                             {7, 131, 1013, 8, 2, head_dim},
                             {2, 2048, 0, 8, 2, head_dim},
                             {4, 1021, 0, 8, 8, head_dim},
                             {2, 512, 3000, 8, 1, head_dim},
                             {3, 700, 523, 4, 2, head_dim, 1},
                             {3, 700, 523, 4, 2, head_dim, 100},
                             {2, 900, 0, 4, 2, head_dim, 128},
                             {2, 900, 1, 4, 2, head_dim, 513}}) {
      ops.push_back(op(size));
    }
    ops.push_back(in_qkv({3, 193, 0, 8, 2, head_dim}));
    ops.push_back(in_qkv({7, 131, 1013, 8, 2, head_dim}));
    ops.push_back(in_qkv({1, 1, 1009, 32, 8, head_dim}));
  }
  return ops;
}

std::vector<KernelOp> bench_ops() {
  return {op({1, 2048, 0, 32, 8, 128}),     op({1, 8192, 0, 32, 8, 128}),
          in_qkv({1, 8192, 0, 32, 8, 128}), op({1, 16384, 0, 32, 8, 128}),
          op({1, 32768, 0, 32, 8, 128}),    op({4, 4096, 0, 64, 8, 128}),
          op({1, 8192, 0, 32, 8, 64}),      op({1, 2048, 14336, 32, 8, 128}),
          op({16, 256, 0, 32, 8, 128})};
}

// Points of at most 20 ms at 500 TFLOP/s, and with whole groups of heads.
bool is_measured(const Dims& dims) {
  constexpr Flops kMost{1e13};
  return dim(dims, "heads") % dim(dims, "kv_heads") == 0 &&
         kernel_spec("attention_prefill").work(DType::kBf16, dims).flops <= kMost;
}

std::vector<Grid> grids() {
  return {{.axes = {{.dim = "batch", .values = {1, 4}},
                    {.dim = "query", .values = {16, 128, 512, 2048, 8192, 32768}},
                    {.dim = "context", .values = {0, 1024, 8192, 32768}},
                    {.dim = "heads", .values = {8, 32}},
                    {.dim = "kv_heads", .values = {1, 8}},
                    {.dim = "head_dim", .values = {64, 128}},
                    {.dim = "window", .values = {kNoWindow}}},
           .accept = is_measured}};
}

}  // namespace

Launch bind_attention_prefill(const BindContext& context);  // bind.cpp

GpuKernel attention_prefill_gpu() {
  return {.name = "attention_prefill",
          .make_case = make_case,
          .check_ops = check_ops,
          .bench_ops = bench_ops,
          .grids = grids,
          .bind = bind_attention_prefill};
}

}  // namespace orrery
