// Ops that no kernel takes are refused, with the reason, before anything touches a device; what is
// bound is executed by `orrery-gpu check execute`.

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/binding/bind_operands.h"
#include "kernels/kernel_spec.h"
#include "kernels/rows/embedding/input_rows.h"

namespace orrery {
namespace {

// An op in memory that nothing reads: a token's hidden state is 64 wide.
class Bound {
 public:
  KernelOp op;
  StepTables tables;
  ModelNumbers numbers;

  void read(Tensor tensor) { add(reads_, std::move(tensor)); }
  void write(Tensor tensor) { add(writes_, std::move(tensor)); }
  [[nodiscard]] BindContext context() {
    return {.op = op,
            .reads = reads_,
            .writes = writes_,
            .tables = tables,
            .numbers = numbers,
            .resources = resources_};
  }
  // What the binding says when it refuses the op; empty when it does not.
  std::string refusal() {
    try {
      static_cast<void>(gpu_kernel(op.kernel).bind(context()));
      return "";
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
  }

 private:
  void add(std::vector<Operand>& operands, Tensor tensor) {
    tensors_.push_back(std::make_unique<Tensor>(std::move(tensor)));
    memory_.push_back(std::make_unique<float>());
    float* const memory = memory_.back().get();
    operands.push_back({.data = memory,
                        .scales = tensors_.back()->dtype == DType::kFp8 ? memory : nullptr,
                        .tensor = tensors_.back().get()});
  }

  std::vector<std::unique_ptr<Tensor>> tensors_;
  std::vector<std::unique_ptr<float>> memory_;
  std::vector<Operand> reads_;
  std::vector<Operand> writes_;
  BindResources resources_;
};

Tensor matrix(const std::string& name, std::int64_t rows, std::int64_t columns,
              DType dtype = DType::kBf16) {
  return {.name = name, .dtype = dtype, .axes = {{"rows", rows}, {"columns", columns}}};
}
Tensor vector(const std::string& name, std::int64_t size) {
  return {.name = name, .axes = {{"columns", size}}};
}

constexpr std::int64_t kTokens = 5;
constexpr std::int64_t kHidden = 64;

KernelOp gemm(DType dtype = DType::kBf16) {
  return {.kernel = "gemm", .dtype = dtype, .dims = {{"m", kTokens}, {"n", 48}, {"k", kHidden}}};
}

void expect_refusal(Bound& bound, const std::string& reason) {
  const std::string said = bound.refusal();
  EXPECT_NE(said.find(bound.op.kernel + " takes " + reason), std::string::npos) << "said: " << said;
}

TEST(KernelBindings, AreOfTheKernelsThatAreExecuted) {
  for (const KernelSpec& spec : kernel_specs()) {
    const GpuKernel* const kernel = find_gpu_kernel(spec.name);
    EXPECT_EQ(kernel != nullptr, !spec.executed.empty()) << spec.name;
    EXPECT_TRUE(kernel == nullptr || kernel->bind != nullptr) << spec.name;
  }
}

TEST(KernelBindings, RefuseDtypesThatTheirKernelsLack) {
  Bound bound;
  bound.op = gemm(DType::kInt4);
  expect_refusal(bound, "bf16 and fp8, not int4");
  bound.op = {.kernel = "quantize",
              .dtype = DType::kFp8Block,
              .dims = {{"tokens", kTokens}, {"hidden", kHidden}}};
  expect_refusal(bound, "fp8, not fp8_block");
}

TEST(KernelBindings, RefuseABiasByItsName) {
  Bound bound;
  bound.op = gemm();
  bound.read(matrix("x", kTokens, kHidden));
  bound.read(matrix("w", 48, kHidden));
  bound.read(vector("qkv_proj.bias", 48));
  bound.write(matrix("y", kTokens, 48));
  expect_refusal(bound, "no bias (qkv_proj.bias)");
}

TEST(KernelBindings, RefuseFp8WeightsForBf16Activations) {
  Bound bound;
  bound.op = gemm(DType::kFp8);
  bound.read(matrix("norm", kTokens, kHidden));
  bound.read(matrix("w", 48, kHidden, DType::kFp8));
  bound.write(matrix("y", kTokens, 48));
  expect_refusal(bound, "fp8 as x (norm), not bf16");
}

TEST(KernelBindings, RefuseShapesOtherThanTheOps) {
  Bound bound;
  bound.op = gemm();
  bound.read(matrix("x", kTokens, kHidden));
  bound.read(matrix("w", 47, kHidden));
  bound.write(matrix("y", kTokens, 48));
  expect_refusal(bound, "[48, 64] as w (w), not [47, 64]");
}

TEST(KernelBindings, RefuseNormsThatDoNotAddInPlace) {
  Bound bound;
  bound.op = {.kernel = "add_rms_norm", .dims = {{"tokens", kTokens}, {"hidden", kHidden}}};
  bound.read(matrix("x", kTokens, kHidden));
  bound.read(matrix("residual", kTokens, kHidden));
  bound.read(vector("gain", kHidden));
  bound.write(matrix("y", kTokens, kHidden));
  bound.write(matrix("another", kTokens, kHidden));
  expect_refusal(bound, "one residual, to add in place");
}

TEST(KernelBindings, RefuseHeadsWithoutACacheThatTellsThem) {
  Bound bound;
  bound.op = {.kernel = "rope", .dims = {{"tokens", kTokens}, {"heads", 5}, {"head_dim", 128}}};
  bound.read(matrix("qkv", kTokens, 6 * 128));
  bound.write(matrix("qkv", kTokens, 6 * 128));
  expect_refusal(bound, "a KV cache");
}

TEST(InputRows, ArePartsInPlaceOfOneX) {
  Bound bound;
  bound.op = gemm();
  bound.read(matrix("attn_prefill", 3, kHidden));
  bound.read(matrix("attn_decode", 2, kHidden));
  const BindContext context = bound.context();
  const InputRows rows(context, context.reads, DType::kBf16, {kTokens, kHidden});
  EXPECT_EQ(rows.data(), context.reads[0].data);
}

TEST(InputRows, AreTheFirstWhereEachRowIsSampled) {
  Bound bound;
  bound.op = gemm();
  bound.tables.samples_all_rows = true;
  bound.read(matrix("final_norm", 3 * kTokens, kHidden));
  const BindContext context = bound.context();
  const InputRows rows(context, context.reads, DType::kBf16, {kTokens, kHidden});
  EXPECT_EQ(rows.data(), context.reads[0].data);
}

TEST(InputRows, AreNotMoreThanThereAre) {
  Bound bound;
  bound.op = gemm();
  bound.read(matrix("x", kTokens - 1, kHidden));
  const BindContext context = bound.context();
  EXPECT_THROW(InputRows(context, context.reads, DType::kBf16, {kTokens, kHidden}),
               std::invalid_argument);
}

TEST(InputRows, CannotBePickedFromFp8) {
  Bound bound;
  bound.op = gemm(DType::kFp8);
  bound.read(matrix("x", 2 * kTokens, kHidden));
  const BindContext context = bound.context();
  EXPECT_THROW(InputRows(context, context.reads, DType::kFp8, {kTokens, kHidden}),
               std::invalid_argument);
}

TEST(MatrixSize, TakesTheLastAxisAsColumns) {
  EXPECT_EQ(matrix_size(vector("gain", 7)), (MatrixSize{.rows = 1, .columns = 7}));
  EXPECT_EQ(matrix_size(matrix("x", 3, 7)), (MatrixSize{.rows = 3, .columns = 7}));
  const Tensor experts{.name = "w", .axes = {{"experts", 2}, {"ffn", 3}, {"hidden", 7}}};
  EXPECT_EQ(matrix_size(experts), (MatrixSize{.rows = 6, .columns = 7}));
}

}  // namespace
}  // namespace orrery
