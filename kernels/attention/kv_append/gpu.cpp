#include <cmath>
#include <stdexcept>

#include "kernels/attention/kv_append/kv_append.h"
#include "kernels/attention/kv_append/reference.h"
#include "kernels/harness/operand_sets.h"

namespace orrery {
namespace {

constexpr std::int32_t kBlockSize = kDefaultBlockSize;

// Half of the width is keys and half values; an odd width, or the variant "keys_only", is one
// tensor as in MLA. Slots are scattered over a cache of twice the tokens; every seventh token is
// skipped. The variant "stride": keys, as values, end rows of so many elements.
template <typename T>
class KvAppendCase final : public KernelCase {
 public:
  KvAppendCase(const KernelOp& op, const CaseOptions& options)
      : tokens_(dim(op.dims, "tokens")),
        keys_only_(dim(op.dims, "width") % 2 != 0 || variant(op.dims, "keys_only") != 0),
        width_(dim(op.dims, "width") / (keys_only_ ? 1 : 2)),
        stride_(variant(op.dims, "stride", width_)),
        blocks_(2 * tokens_ / kBlockSize + 1),
        keys_(static_cast<std::size_t>(tokens_ * stride_), options.seed, options.sets),
        values_(static_cast<std::size_t>(keys_only_ ? 0 : tokens_ * stride_), options.seed + 1,
                options.sets),
        key_cache_(static_cast<std::size_t>(cache_rows() * width_), options.sets),
        value_cache_(static_cast<std::size_t>(keys_only_ ? 0 : cache_rows() * width_),
                     options.sets),
        slots_(device_copy<std::int64_t>(slots())) {}

  void launch(const cuda::Stream& stream, int set) override {
    const PagedKv<T> cache{.keys = key_cache_[set],
                           .values = keys_only_ ? nullptr : value_cache_[set],
                           .block_size = kBlockSize,
                           .num_blocks = static_cast<std::int32_t>(blocks_),
                           .key_scale = kKeyScale,
                           .value_scale = kValueScale};
    const std::int64_t offset = stride_ - width_;
    kv_append(stream, keys_[set] + offset, keys_only_ ? nullptr : values_[set] + offset,
              slots_.get(), cache, tokens_, width_, stride_);
  }
  void reset(const cuda::Stream& stream) override {
    keys_.reset(stream);
    values_.reset(stream);
    key_cache_.reset(stream);
    value_cache_.reset(stream);
    stream.synchronize();
  }
  std::vector<Difference> differences(const cuda::Stream& stream) override {
    auto all = compare("keys", key_cache_.host(stream), keys_.made(), kKeyScale);
    if (keys_only_) return all;
    for (auto& one : compare("values", value_cache_.host(stream), values_.made(), kValueScale)) {
      all.push_back(std::move(one));
    }
    return all;
  }
  std::vector<Tile> tiles() override {
    const auto width = static_cast<std::size_t>(width_);
    const auto slot = static_cast<std::size_t>(slots()[0]);
    std::vector<Tile> all{key_cache_.tile("a cached key", slot * width, width),
                          keys_.tile("a key", static_cast<std::size_t>(stride_ - width_), width)};
    if (keys_only_) return all;
    all.push_back(value_cache_.tile("a cached value", slot * width, width));
    all.push_back(values_.tile("a value", static_cast<std::size_t>(stride_ - width_), width));
    return all;
  }
  [[nodiscard]] int num_sets() const override { return keys_.num_sets(); }

 private:
  static constexpr bool kExact = sizeof(T) == sizeof(bf16);
  static constexpr float kKeyScale = kExact ? 1.0f : 0.02f;
  static constexpr float kValueScale = kExact ? 1.0f : 0.05f;
  static constexpr double kUntouched = 1e30;  // stands for the poison of rows that are not written

  // Written rows against the reference, and that the others are still poisoned.
  std::vector<Difference> compare(const std::string& what, std::vector<double> cache,
                                  const std::vector<double>& rows, double scale) const {
    const auto width = static_cast<std::size_t>(width_);
    const std::vector<double> untouched(cache.size(), kUntouched);
    const auto stride = static_cast<std::size_t>(stride_);
    const auto ref = reference::kv_append(
        untouched, columns_of(rows, stride, stride - width, width), slots(), width);
    double overwritten = 0;
    for (std::size_t i = 0; i < cache.size(); ++i) {
      if (ref[i] == kUntouched) {
        overwritten += std::isnan(cache[i]) ? 0 : 1;
        cache[i] = 0;
      } else {
        cache[i] *= scale;
      }
    }
    std::vector<double> written = ref;
    std::ranges::replace(written, kUntouched, 0.0);
    return {difference(what, cache, written, kExact ? 0 : kFp8Bound),
            {.what = what + " overwritten", .error = overwritten, .bound = 0}};
  }
  [[nodiscard]] std::int64_t cache_rows() const { return blocks_ * kBlockSize; }
  [[nodiscard]] std::vector<std::int64_t> slots() const {
    std::vector<std::int64_t> result(static_cast<std::size_t>(tokens_));
    constexpr std::int64_t kSkipped = 7;
    for (std::int64_t token = 0; token < tokens_; ++token) {
      // Whole blocks in falling order, tokens in order within.
      const std::int64_t block = blocks_ - 1 - token / kBlockSize;
      result[static_cast<std::size_t>(token)] =
          token % kSkipped == kSkipped - 1 ? -1 : block * kBlockSize + token % kBlockSize;
    }
    return result;
  }

  std::int64_t tokens_;
  bool keys_only_;
  std::int64_t width_;
  std::int64_t stride_;  // of rows of keys, and of values
  std::int64_t blocks_;
  InputSets<bf16> keys_;
  InputSets<bf16> values_;
  OutputSets<T> key_cache_;
  OutputSets<T> value_cache_;
  cuda::DeviceBuffer<std::int64_t> slots_;
};

// The variant "latent": so many elements of each row are a latent, as normed, and the others its
// rotated key, the last of rows of the variant "stride".
class LatentAppendCase final : public KernelCase {
 public:
  LatentAppendCase(const KernelOp& op, const CaseOptions& options)
      : tokens_(dim(op.dims, "tokens")),
        rows_{.latent = variant(op.dims, "latent"),
              .rope = dim(op.dims, "width") - variant(op.dims, "latent"),
              .rope_stride = variant(op.dims, "stride", dim(op.dims, "width"))},
        latents_(static_cast<std::size_t>(tokens_ * rows_.latent), options.seed, options.sets),
        projected_(static_cast<std::size_t>(tokens_ * rows_.rope_stride), options.seed + 1,
                   options.sets),
        cache_(static_cast<std::size_t>(2 * tokens_ * width()), options.sets),
        slots_(device_copy<std::int64_t>(slots())) {
    if (op.dtype != DType::kBf16) throw std::invalid_argument("kv_append of latents takes bf16");
  }

  void launch(const cuda::Stream& stream, int set) override {
    LatentRows rows = rows_;
    rows.latents = latents_[set];
    rows.rotated = projected_[set] + rows.rope_stride - rows.rope;
    kv_append_latent(stream, rows, slots_.get(), {.keys = cache_[set], .block_size = 1}, tokens_);
  }
  void reset(const cuda::Stream& stream) override {
    latents_.reset(stream);
    projected_.reset(stream);
    cache_.reset(stream);
    stream.synchronize();
  }
  std::vector<Difference> differences(const cuda::Stream& stream) override {
    const auto rope = static_cast<std::size_t>(rows_.rope);
    const auto latent = static_cast<std::size_t>(rows_.latent);
    const auto stride = static_cast<std::size_t>(rows_.rope_stride);
    const std::vector<double> latents = latents_.made();
    const std::vector<double> rotated = columns_of(projected_.made(), stride, stride - rope, rope);
    std::vector<double> found = cache_.host(stream);
    double overwritten = 0;
    std::vector<double> expected(found.size());
    for (std::size_t token = 0; token < static_cast<std::size_t>(tokens_); ++token) {
      const std::size_t odd = (2 * token + 1) * static_cast<std::size_t>(width());
      for (std::size_t i = 0; i < static_cast<std::size_t>(width()); ++i) {
        const std::size_t even = odd - static_cast<std::size_t>(width()) + i;
        overwritten += std::isnan(found[even]) ? 0 : 1;
        found[even] = 0;
        expected[odd + i] =
            i < latent ? latents[token * latent + i] : rotated[token * rope + i - latent];
      }
    }
    return {difference("rows", found, expected, 0),
            {.what = "rows overwritten", .error = overwritten, .bound = 0}};
  }
  std::vector<Tile> tiles() override {
    return {
        cache_.tile("a cached row", static_cast<std::size_t>(width()),
                    static_cast<std::size_t>(width())),
        latents_.tile("a latent", 0, static_cast<std::size_t>(rows_.latent)),
        projected_.tile("a rotated key", static_cast<std::size_t>(rows_.rope_stride - rows_.rope),
                        static_cast<std::size_t>(rows_.rope))};
  }
  [[nodiscard]] int num_sets() const override { return latents_.num_sets(); }

 private:
  [[nodiscard]] std::int64_t width() const { return rows_.latent + rows_.rope; }
  // Every other row of the cache.
  [[nodiscard]] std::vector<std::int64_t> slots() const {
    std::vector<std::int64_t> result(static_cast<std::size_t>(tokens_));
    for (std::size_t i = 0; i < result.size(); ++i) {
      result[i] = static_cast<std::int64_t>(2 * i + 1);
    }
    return result;
  }

  std::int64_t tokens_;
  LatentRows rows_;
  InputSets<bf16> latents_;
  InputSets<bf16> projected_;
  OutputSets<bf16> cache_;
  cuda::DeviceBuffer<std::int64_t> slots_;
};

KernelOp op(DType dtype, std::int64_t tokens, std::int64_t width) {
  return {.kernel = "kv_append", .dtype = dtype, .dims = {{"tokens", tokens}, {"width", width}}};
}
KernelOp strided(KernelOp of, std::int64_t stride) {
  of.dims.push_back({"stride", stride});
  return of;
}
KernelOp mla_op(DType dtype, std::int64_t tokens) {
  constexpr std::int64_t kWidth = 576;  // kv_lora_rank 512 and rope_dim 64
  KernelOp result = op(dtype, tokens, kWidth);
  result.dims.push_back({"keys_only", 1});
  return result;
}

KernelOp latent_op(std::int64_t tokens, std::int64_t latent, std::int64_t rope,
                   std::int64_t stride) {
  KernelOp result = op(DType::kBf16, tokens, latent + rope);
  result.dims.push_back({"latent", latent});
  result.dims.push_back({"stride", stride});
  return result;
}

// One element; odd widths (the scalar path); several rows to a block; just over a KV block.
std::vector<KernelOp> check_ops() {
  std::vector<KernelOp> ops;
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    ops.insert(ops.end(), {op(dtype, 1, 1), op(dtype, 1, 2), op(dtype, 13, 2731), op(dtype, 5, 16),
                           op(dtype, 65, 2048), op(dtype, 1009, 256), op(dtype, 3, 16400),
                           mla_op(dtype, 131), strided(op(dtype, 65, 2048), 6144),
                           strided(op(dtype, 131, 256), 331), strided(op(dtype, 1, 2), 3)});
  }
  ops.insert(ops.end(),
             {latent_op(1, 512, 64, 576), latent_op(331, 512, 64, 2112), latent_op(7, 13, 3, 19)});
  return ops;
}
std::vector<KernelOp> bench_ops() {
  std::vector<KernelOp> ops;
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    for (const std::int64_t tokens : {1, 64, 256, 4096, 16384})
      ops.push_back(op(dtype, tokens, 2048));
    ops.push_back(mla_op(dtype, 16384));
    ops.push_back(op(dtype, 8192, 2048));
    ops.push_back(strided(op(dtype, 8192, 2048), 6144));
  }
  return ops;
}

std::vector<Grid> grids() {
  std::vector<Grid> all;
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    all.push_back({.dtype = dtype,
                   .axes = {{.dim = "tokens", .values = {1, 16, 256, 4096, 32768}},
                            {.dim = "width", .values = {256, 576, 1024, 2048, 4096}}}});
  }
  return all;
}

std::unique_ptr<KernelCase> make_case(const KernelOp& op, const CaseOptions& options) {
  if (variant(op.dims, "latent") > 0) return std::make_unique<LatentAppendCase>(op, options);
  if (op.dtype == DType::kBf16) return std::make_unique<KvAppendCase<bf16>>(op, options);
  if (op.dtype == DType::kFp8) return std::make_unique<KvAppendCase<fp8>>(op, options);
  throw std::invalid_argument("kv_append takes bf16 and fp8, not " +
                              std::string(to_text(op.dtype)));
}

}  // namespace

Launch bind_kv_append(const BindContext& context);  // bind.cpp

GpuKernel kv_append_gpu() {
  return {.name = "kv_append",
          .make_case = make_case,
          .check_ops = check_ops,
          .bench_ops = bench_ops,
          .grids = grids,
          .bind = bind_kv_append};
}

}  // namespace orrery
