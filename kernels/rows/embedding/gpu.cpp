#include <stdexcept>

#include "kernels/harness/operand_sets.h"
#include "kernels/rows/embedding/embedding.h"
#include "kernels/rows/embedding/reference.h"

namespace orrery {
namespace {

class EmbeddingCase final : public KernelCase {
 public:
  EmbeddingCase(const KernelOp& op, const CaseOptions& options)
      : tokens_(dim(op.dims, "tokens")),
        hidden_(dim(op.dims, "hidden")),
        vocab_(dim(op.dims, "vocab")),
        table_(static_cast<std::size_t>(vocab_ * hidden_), options.seed, 1),
        y_(static_cast<std::size_t>(tokens_ * hidden_), options.sets) {
    if (op.dtype != DType::kBf16) throw std::invalid_argument("embedding takes bf16 only");
    for (int set = 0; set < options.sets; ++set) {
      ids_.push_back(device_copy<std::int32_t>(ids(set)));
    }
  }

  // One table for all sets: it is the ids that differ.
  void launch(const cuda::Stream& stream, int set) override {
    embedding(stream, ids_[static_cast<std::size_t>(set)].get(), table_[0], y_[set], tokens_,
              hidden_, vocab_);
  }
  void reset(const cuda::Stream& stream) override {
    table_.reset(stream);
    y_.reset(stream);
    stream.synchronize();
  }
  std::vector<Difference> differences(const cuda::Stream& stream) override {
    constexpr double kExact = 0;
    const auto ref = reference::embedding(ids(0), table_.made(), static_cast<std::size_t>(hidden_));
    return {difference("y", y_.host(stream), ref, kExact)};
  }
  std::vector<Tile> tiles() override {
    const auto hidden = static_cast<std::size_t>(hidden_);
    const auto row = static_cast<std::size_t>(ids(0)[0]);
    return {y_.tile("a row of y", static_cast<std::size_t>(tokens_ / 2) * hidden, hidden),
            table_.tile("a row of the table", row * hidden, hidden)};
  }
  [[nodiscard]] int num_sets() const override { return static_cast<int>(ids_.size()); }

 private:
  // A walk over the table by a stride prime to most sizes; where there are several, the second id
  // lies below the table and the last above.
  [[nodiscard]] std::vector<std::int32_t> ids(int set) const {
    constexpr std::int64_t kStride = 7919;
    std::vector<std::int32_t> result(static_cast<std::size_t>(tokens_));
    for (std::int64_t token = 0; token < tokens_; ++token) {
      const std::int64_t at = (static_cast<std::int64_t>(set) * tokens_ + token + 1) * kStride;
      result[static_cast<std::size_t>(token)] = static_cast<std::int32_t>(at % vocab_);
    }
    if (tokens_ > 2) {
      result[1] = -1;
      result.back() = static_cast<std::int32_t>(vocab_);
    }
    return result;
  }

  std::int64_t tokens_;
  std::int64_t hidden_;
  std::int64_t vocab_;
  InputSets<bf16> table_;
  OutputSets<bf16> y_;
  std::vector<cuda::DeviceBuffer<std::int32_t>> ids_;
};

KernelOp op(std::int64_t tokens, std::int64_t hidden, std::int64_t vocab) {
  return {.kernel = "embedding",
          .dims = {{"tokens", tokens}, {"hidden", hidden}, {"vocab", vocab}}};
}

// A table of one row; odd widths (the scalar path); several rows to a block; just over a block.
std::vector<KernelOp> check_ops() {
  return {op(1, 1, 1),       op(5, 7, 3),         op(3, 2731, 11),   op(17, 8, 1000),
          op(1001, 40, 257), op(129, 2056, 5003), op(301, 8200, 97), op(4097, 1024, 4096)};
}
std::vector<KernelOp> bench_ops() {
  constexpr std::int64_t kVocab = 128256;
  return {op(1, 8192, kVocab),    op(64, 8192, kVocab),    op(256, 8192, kVocab),
          op(4096, 8192, kVocab), op(16384, 4096, kVocab), op(16384, 8192, kVocab)};
}

std::vector<Grid> grids() {
  return {{.axes = {{.dim = "tokens", .values = {1, 16, 256, 4096, 32768}},
                    {.dim = "hidden", .values = {2048, 4096, 8192, 16384}},
                    {.dim = "vocab", .values = {32000, 128256}}}}};
}

std::unique_ptr<KernelCase> make_case(const KernelOp& op, const CaseOptions& options) {
  return std::make_unique<EmbeddingCase>(op, options);
}

}  // namespace

Launch bind_embedding(const BindContext& context);  // bind.cpp

GpuKernel embedding_gpu() {
  return {.name = "embedding",
          .make_case = make_case,
          .check_ops = check_ops,
          .bench_ops = bench_ops,
          .grids = grids,
          .bind = bind_embedding};
}

}  // namespace orrery
