#include <stdexcept>

#include "kernels/harness/operand_sets.h"
#include "kernels/rows/sample/random.h"
#include "kernels/rows/sample/reference.h"
#include "kernels/rows/sample/sample.h"

namespace orrery {
namespace {

// The largest logit; with the variant "top_k" a draw from that many, at "temperature_percent".
// Logits are rounded to few values with "ties", so that many are equal.
template <typename T>
class SampleCase final : public KernelCase {
 public:
  SampleCase(const KernelOp& op, const CaseOptions& options)
      : seqs_(dim(op.dims, "seqs")),
        vocab_(dim(op.dims, "vocab")),
        top_k_(variant(op.dims, "top_k")),
        temperature_(static_cast<float>(variant(op.dims, "temperature_percent", 100)) / 100),
        logits_(static_cast<std::size_t>(seqs_ * vocab_), options.seed, options.sets,
                variant(op.dims, "ties") != 0 ? kTies : kSpread),
        ids_(static_cast<std::size_t>(seqs_), options.sets),
        counters_(device_copy<std::uint64_t>(counters())) {}

  void launch(const cuda::Stream& stream, int set) override {
    if (top_k_ == 0) return sample_argmax(stream, logits_[set], ids_[set], seqs_, vocab_);
    sample_top_k(stream, logits_[set], counters_.get(), ids_[set], seqs_, vocab_,
                 {.k = static_cast<int>(top_k_), .temperature = temperature_, .seed = kSeed});
  }
  void reset(const cuda::Stream& stream) override {
    logits_.reset(stream);
    ids_.reset(stream);
    stream.synchronize();
  }
  std::vector<Difference> differences(const cuda::Stream& stream) override {
    const std::vector<double> ids = ids_.host(stream);
    const std::vector<double> ref = chosen(logits_.made());
    double wrong = 0;
    for (std::size_t seq = 0; seq < ids.size(); ++seq) wrong += ids[seq] == ref[seq] ? 0 : 1;
    return {{.what = "wrong ids", .error = wrong, .bound = 0}};
  }
  // Where it changes the choice: the logits of the first row, to zero.
  std::vector<Tile> tiles() override {
    std::vector<Tile> all{ids_.tile("an id", ids_.count() / 2, 1)};
    std::vector<double> logits = logits_.made();
    const auto row = static_cast<std::size_t>(vocab_);
    const double before = chosen(std::span(logits).first(row))[0];
    std::fill_n(logits.begin(), row, 0.0);
    if (chosen(std::span(logits).first(row))[0] != before) {
      all.push_back(logits_.tile("logits of a row", 0, row));
    }
    return all;
  }
  [[nodiscard]] int num_sets() const override { return logits_.num_sets(); }

 private:
  static constexpr float kSpread = 3;
  // Rounds to few values of either format, subnormal ones.
  static constexpr float kTies = sizeof(T) == sizeof(bf16) ? 2e-40f : 1e-43f;
  static constexpr std::uint64_t kSeed = 17;

  [[nodiscard]] std::vector<std::uint64_t> counters() const {
    std::vector<std::uint64_t> result(static_cast<std::size_t>(seqs_));
    for (std::size_t seq = 0; seq < result.size(); ++seq) result[seq] = 1000 + 3 * seq;
    return result;
  }
  [[nodiscard]] std::vector<double> chosen(std::span<const double> logits) const {
    const auto row = static_cast<std::size_t>(vocab_);
    std::vector<double> ids;
    for (std::size_t seq = 0; seq < logits.size() / row; ++seq) {
      const auto of_row = logits.subspan(seq * row, row);
      if (top_k_ == 0) {
        ids.push_back(reference::argmax(of_row));
      } else {
        ids.push_back(reference::choose(
            reference::top_k(of_row, static_cast<std::size_t>(top_k_), temperature_),
            uniform(kSeed, counters()[seq])));
      }
    }
    return ids;
  }

  std::int64_t seqs_;
  std::int64_t vocab_;
  std::int64_t top_k_;
  float temperature_;
  InputSets<T> logits_;
  OutputSets<std::int32_t> ids_;
  cuda::DeviceBuffer<std::uint64_t> counters_;
};

KernelOp op(DType dtype, std::int64_t seqs, std::int64_t vocab) {
  return {.kernel = "sample", .dtype = dtype, .dims = {{"seqs", seqs}, {"vocab", vocab}}};
}
KernelOp with(KernelOp of, std::string_view name, std::int64_t size) {
  of.dims.push_back({std::string(name), size});
  return of;
}

// One logit; odd vocabularies (the scalar path); fewer vectors than threads, and than k; clusters
// of each size; equal logits by the hundred; k from 1 to its most.
std::vector<KernelOp> check_ops() {
  std::vector<KernelOp> ops;
  for (const DType dtype : {DType::kBf16, DType::kFp32}) {
    for (const KernelOp& one :
         {op(dtype, 1, 1), op(dtype, 3, 7), op(dtype, 5, 2731), op(dtype, 2, 64),
          op(dtype, 301, 4104), op(dtype, 17, 32000), op(dtype, 2, 128256), op(dtype, 1, 151936),
          with(op(dtype, 9, 32000), "ties", 1)}) {
      ops.push_back(one);
      ops.push_back(with(one, "top_k", 50));
    }
    ops.push_back(with(op(dtype, 7, 128256), "top_k", 1));
    ops.push_back(with(with(op(dtype, 64, 32000), "top_k", 256), "temperature_percent", 700));
    ops.push_back(with(with(op(dtype, 7, 32003), "top_k", 256), "temperature_percent", 30));
  }
  return ops;
}
std::vector<KernelOp> bench_ops() {
  constexpr std::int64_t kVocab = 128256;
  std::vector<KernelOp> ops;
  for (const DType dtype : {DType::kBf16, DType::kFp32}) {
    for (const std::int64_t seqs : {1, 8, 64, 256, 1024}) {
      ops.push_back(op(dtype, seqs, kVocab));
      ops.push_back(with(op(dtype, seqs, kVocab), "top_k", 50));
    }
  }
  return ops;
}

std::vector<Grid> grids() {
  std::vector<Grid> all;
  for (const DType dtype : {DType::kBf16, DType::kFp32}) {
    all.push_back({.dtype = dtype,
                   .axes = {{.dim = "seqs", .values = {1, 4, 16, 64, 256, 1024}},
                            {.dim = "vocab", .values = {32000, 65536, 128256, 202048}}}});
  }
  return all;
}

std::unique_ptr<KernelCase> make_case(const KernelOp& op, const CaseOptions& options) {
  if (op.dtype == DType::kBf16) return std::make_unique<SampleCase<bf16>>(op, options);
  if (op.dtype == DType::kFp32) return std::make_unique<SampleCase<float>>(op, options);
  throw std::invalid_argument("sample takes bf16 and fp32, not " + std::string(to_text(op.dtype)));
}

}  // namespace

Launch bind_sample(const BindContext& context);  // bind.cpp

GpuKernel sample_gpu() {
  return {.name = "sample",
          .make_case = make_case,
          .check_ops = check_ops,
          .bench_ops = bench_ops,
          .grids = grids,
          .bind = bind_sample};
}

}  // namespace orrery
