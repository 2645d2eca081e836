#include <stdexcept>

#include "kernels/attention/rope/reference.h"
#include "kernels/attention/rope/rope.h"
#include "kernels/harness/operand_sets.h"

namespace orrery {
namespace {

constexpr std::size_t kPositions = 4099;
constexpr double kBase = 500000;

// Of the heads one in five, at least one where there are several, is a key head. Variants:
// "interleaved"; "head_dim_total", of which head_dim elements turn.
class RopeCase final : public KernelCase {
 public:
  RopeCase(const KernelOp& op, const CaseOptions& options)
      : shape_(shape_of(op)),
        tables_(
            reference::rope_tables(kPositions, static_cast<std::size_t>(shape_.rotary_dim), kBase)),
        queries_(static_cast<std::size_t>(shape_.tokens * shape_.query_heads * shape_.head_dim),
                 options.seed, options.sets),
        keys_(static_cast<std::size_t>(shape_.tokens * shape_.key_heads * shape_.head_dim),
              options.seed + 1, options.sets),
        positions_(device_copy<std::int32_t>(positions())),
        cosines_(device_copy<float>(tables_.cosines)),
        sines_(device_copy<float>(tables_.sines)) {
    if (op.dtype != DType::kBf16) throw std::invalid_argument("rope takes bf16 only");
  }

  void launch(const cuda::Stream& stream, int set) override {
    rope(stream, queries_[set], keys_[set], positions_.get(), cosines_.get(), sines_.get(), shape_);
  }
  void reset(const cuda::Stream& stream) override {
    queries_.reset(stream);
    keys_.reset(stream);
    ORRERY_CUDA(cudaMemcpyAsync(cosines_.get(), tables_.cosines.data(),
                                tables_.cosines.size() * sizeof(float), cudaMemcpyHostToDevice,
                                stream.get()));
    stream.synchronize();
  }
  std::vector<Difference> differences(const cuda::Stream& stream) override {
    std::vector<Difference> all{compare(stream, "queries", queries_, shape_.query_heads)};
    if (shape_.key_heads > 0) all.push_back(compare(stream, "keys", keys_, shape_.key_heads));
    return all;
  }
  std::vector<Tile> tiles() override {
    Tile queries = tile("queries of a token", queries_, shape_.query_heads);
    queries.is_output = true;
    const std::size_t half = tables_.cosines.size() / kPositions;
    const auto row =
        static_cast<std::size_t>(positions()[static_cast<std::size_t>(shape_.tokens / 2)]);
    const Tile cosines{.what = "a row of cosines",
                       .data = cosines_.get() + row * half,
                       .bytes = half * sizeof(float)};
    if (shape_.key_heads == 0) return {queries, cosines};
    Tile keys = tile("keys of a token", keys_, shape_.key_heads);
    keys.is_output = true;
    return {queries, keys, cosines};
  }
  [[nodiscard]] int num_sets() const override { return queries_.num_sets(); }

 private:
  static RopeShape shape_of(const KernelOp& op) {
    constexpr std::int64_t kHeadsPerKey = 5;
    const std::int64_t heads = dim(op.dims, "heads");
    const std::int64_t keys = heads == 1 ? 0 : std::max<std::int64_t>(1, heads / kHeadsPerKey);
    const std::int64_t rotary = dim(op.dims, "head_dim");
    return {.tokens = dim(op.dims, "tokens"),
            .query_heads = heads - keys,
            .key_heads = keys,
            .head_dim = variant(op.dims, "head_dim_total", rotary),
            .rotary_dim = rotary,
            .interleaved = variant(op.dims, "interleaved") != 0};
  }
  // Scattered over the tables, so that a wrong row shows.
  [[nodiscard]] std::vector<std::int32_t> positions() const {
    constexpr std::size_t kStride = 1021;
    std::vector<std::int32_t> result(static_cast<std::size_t>(shape_.tokens));
    for (std::size_t token = 0; token < result.size(); ++token) {
      result[token] = static_cast<std::int32_t>((token + 1) * kStride % kPositions);
    }
    return result;
  }
  Difference compare(const cuda::Stream& stream, const char* what, const InputSets<bf16>& x,
                     std::int64_t heads) const {
    const reference::RopeLayout layout{.heads = static_cast<std::size_t>(heads),
                                       .head_dim = static_cast<std::size_t>(shape_.head_dim),
                                       .rotary_dim = static_cast<std::size_t>(shape_.rotary_dim),
                                       .interleaved = shape_.interleaved};
    return difference(what, host_double(stream, x[0], x.count()),
                      reference::rope(x.made(), positions(), tables_, layout), kBf16Bound);
  }
  [[nodiscard]] Tile tile(const char* what, const InputSets<bf16>& x, std::int64_t heads) const {
    const auto row = static_cast<std::size_t>(heads * shape_.head_dim);
    return x.tile(what, static_cast<std::size_t>(shape_.tokens / 2) * row, row);
  }

  RopeShape shape_;
  reference::RopeTables tables_;
  InputSets<bf16> queries_;
  InputSets<bf16> keys_;
  cuda::DeviceBuffer<std::int32_t> positions_;
  cuda::DeviceBuffer<float> cosines_;
  cuda::DeviceBuffer<float> sines_;
};

KernelOp op(std::int64_t tokens, std::int64_t heads, std::int64_t head_dim) {
  return {.kernel = "rope", .dims = {{"tokens", tokens}, {"heads", heads}, {"head_dim", head_dim}}};
}
KernelOp interleaved(KernelOp of) {
  of.dims.push_back({"interleaved", 1});
  return of;
}
KernelOp partial(KernelOp of, std::int64_t head_dim) {
  of.dims.push_back({"head_dim_total", head_dim});
  return of;
}

// One pair; heads that are no whole vectors (the scalar path); few and many tokens; heads that do
// not fill a thread's group; a part of the head.
std::vector<KernelOp> check_ops() {
  std::vector<KernelOp> ops;
  for (const KernelOp& one :
       {op(1, 1, 2), op(7, 3, 6), op(3, 5, 64), op(131, 40, 128), op(65, 129, 16), op(1, 1, 64),
        op(3001, 71, 128), partial(op(37, 9, 32), 128), partial(op(37, 9, 32), 100)}) {
    ops.push_back(one);
    ops.push_back(interleaved(one));
  }
  return ops;
}
std::vector<KernelOp> bench_ops() {
  std::vector<KernelOp> ops;
  for (const std::int64_t tokens : {1, 64, 256, 4096, 16384}) ops.push_back(op(tokens, 40, 128));
  ops.push_back(interleaved(op(16384, 40, 128)));
  ops.push_back(op(16384, 129, 64));
  return ops;
}

std::vector<Grid> grids() {
  return {{.axes = {{.dim = "tokens", .values = {1, 16, 256, 4096, 32768}},
                    {.dim = "heads", .values = {5, 10, 40, 72, 129}},
                    {.dim = "head_dim", .values = {64, 128}}}}};
}

std::unique_ptr<KernelCase> make_case(const KernelOp& op, const CaseOptions& options) {
  return std::make_unique<RopeCase>(op, options);
}

}  // namespace

Launch bind_rope(const BindContext& context);  // bind.cpp

GpuKernel rope_gpu() {
  return {.name = "rope",
          .make_case = make_case,
          .check_ops = check_ops,
          .bench_ops = bench_ops,
          .grids = grids,
          .bind = bind_rope};
}

}  // namespace orrery
