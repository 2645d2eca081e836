// Ops that no kernel takes are refused, with the reason, before anything touches a device; what is
// bound is executed by `orrery-gpu check execute`.

#include <gtest/gtest.h>

#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
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

  void read(Tensor tensor) { reads_.push_back(add(std::move(tensor))); }
  void write(Tensor tensor) { writes_.push_back(add(std::move(tensor))); }
  [[nodiscard]] BindContext context() {
    const Op of_plan{.name = op.kernel, .body = op, .reads = reads_, .writes = writes_};
    slots_ = executed_slots(plan_, of_plan);
    return {.op = op,
            .spec = kernel_spec(op.kernel),
            .reads = operands(reads_, operands_read_),
            .writes = operands(writes_, operands_written_),
            .slots = slots_,
            .tables = tables,
            .numbers = numbers,
            .resources = resources_};
  }
  // What is said of the op when it is refused; empty when it is not.
  std::string refusal() {
    try {
      static_cast<void>(gpu_kernel(op.kernel).bind(context()));
      return "";
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
  }

 private:
  TensorId add(Tensor tensor) {
    tensor.ranks = plan_.add_group({0});
    return plan_.add_tensor(std::move(tensor));
  }
  std::span<const Operand> operands(const TensorViews& views, std::vector<Operand>& found) {
    found.clear();
    for (const TensorId id : views) {
      const Tensor& tensor = plan_.tensors()[static_cast<std::size_t>(id)];
      float* const memory = &memory_[id];
      found.push_back({.data = memory,
                       .scales = tensor.dtype == DType::kFp8 ? memory : nullptr,
                       .tensor = &tensor});
    }
    return found;
  }

  Plan plan_;
  TensorViews reads_;
  TensorViews writes_;
  std::map<TensorId, float> memory_;
  std::vector<Operand> operands_read_;
  std::vector<Operand> operands_written_;
  OperandSlots slots_;
  BindResources resources_;
};

Tensor matrix(const std::string& name, std::int64_t rows, std::int64_t columns,
              DType dtype = DType::kBf16, TensorRole role = TensorRole::kActivation) {
  return {
      .name = name, .dtype = dtype, .axes = {{"rows", rows}, {"columns", columns}}, .role = role};
}
Tensor weight(const std::string& name, std::int64_t rows, std::int64_t columns,
              DType dtype = DType::kBf16) {
  return matrix(name, rows, columns, dtype, TensorRole::kWeight);
}
Tensor vector(const std::string& name, std::int64_t size) {
  return {.name = name, .axes = {{"columns", size}}, .role = TensorRole::kWeight};
}

constexpr std::int64_t kTokens = 5;
constexpr std::int64_t kHidden = 64;

KernelOp gemm(DType dtype = DType::kBf16) {
  return {.kernel = "gemm", .dtype = dtype, .dims = {{"m", kTokens}, {"n", 48}, {"k", kHidden}}};
}

void add_weight_and_result(Bound& bound, DType dtype = DType::kBf16) {
  bound.read(weight("w", 48, kHidden, dtype));
  bound.write(matrix("y", kTokens, 48));
}

void expect_refusal(Bound& bound, const std::string& reason) {
  const std::string said = bound.refusal();
  EXPECT_NE(said.find(reason), std::string::npos) << "said: " << said;
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
  expect_refusal(bound, "gemm takes bf16 and fp8, not int4");
  bound.op = {.kernel = "quantize",
              .dtype = DType::kFp8Block,
              .dims = {{"tokens", kTokens}, {"hidden", kHidden}}};
  expect_refusal(bound, "quantize takes fp8, not fp8_block");
}

TEST(KernelBindings, RefuseABiasOfAnotherSize) {
  Bound bound;
  bound.op = gemm();
  bound.read(matrix("x", kTokens, kHidden));
  bound.read(weight("w", 48, kHidden));
  bound.read(vector("qkv_proj.bias", 47));
  bound.write(matrix("y", kTokens, 48));
  expect_refusal(bound, "\"qkv_proj.bias\" (weight bf16 [47]), for which it has no slot");
}

TEST(KernelBindings, RefuseFp8WeightsForBf16Activations) {
  Bound bound;
  bound.op = gemm(DType::kFp8);
  bound.read(matrix("norm", kTokens, kHidden));
  bound.read(weight("w", 48, kHidden, DType::kFp8));
  bound.write(matrix("y", kTokens, 48));
  expect_refusal(bound, "gemm takes fp8 as x, not bf16");
}

TEST(KernelBindings, RefuseShapesOtherThanTheOps) {
  Bound bound;
  bound.op = gemm();
  bound.read(matrix("x", kTokens, kHidden));
  bound.read(weight("w", 47, kHidden));
  bound.write(matrix("y", kTokens, 48));
  expect_refusal(bound, "\"w\" (weight bf16 [47, 64]) as w, expected weight of its dtype [n, k]");
}

TEST(KernelBindings, RefuseNormsThatDoNotAddInPlace) {
  Bound bound;
  bound.op = {.kernel = "add_rms_norm", .dims = {{"tokens", kTokens}, {"hidden", kHidden}}};
  bound.read(matrix("x", kTokens, kHidden));
  bound.read(matrix("residual", kTokens, kHidden));
  bound.read(vector("gain", kHidden));
  bound.write(matrix("y", kTokens, kHidden));
  bound.write(matrix("another", kTokens, kHidden));
  expect_refusal(bound, "add_rms_norm takes one residual, to add in place");
}

TEST(KernelBindings, RefuseHeadsWithoutACacheThatTellsThem) {
  Bound bound;
  bound.op = {.kernel = "rope", .dims = {{"tokens", kTokens}, {"heads", 5}, {"head_dim", 128}}};
  bound.read(matrix("qkv", kTokens, 6 * 128));
  bound.write(matrix("qkv", kTokens, 6 * 128));
  expect_refusal(bound, "rope takes a KV cache");
}

TEST(InputRows, ArePartsInPlaceOfOneX) {
  Bound bound;
  bound.op = gemm();
  bound.read(matrix("attn_prefill", 3, kHidden));
  bound.read(matrix("attn_decode", 2, kHidden));
  add_weight_and_result(bound);
  const BindContext context = bound.context();
  const InputRows rows(context, "x", {kTokens, kHidden});
  EXPECT_EQ(rows.data(), context.reads[0].data);
}

TEST(InputRows, AreTheFirstWhereEachRowIsSampled) {
  Bound bound;
  bound.op = gemm();
  bound.tables.samples_all_rows = true;
  bound.read(matrix("final_norm", 3 * kTokens, kHidden));
  add_weight_and_result(bound);
  const BindContext context = bound.context();
  const InputRows rows(context, "x", {kTokens, kHidden});
  EXPECT_EQ(rows.data(), context.reads[0].data);
}

TEST(InputRows, AreNotMoreThanThereAre) {
  Bound bound;
  bound.op = gemm();
  bound.read(matrix("x", kTokens - 1, kHidden));
  add_weight_and_result(bound);
  const BindContext context = bound.context();
  EXPECT_THROW(InputRows(context, "x", {kTokens, kHidden}), std::invalid_argument);
}

TEST(InputRows, CannotBePickedFromFp8) {
  Bound bound;
  bound.op = gemm(DType::kFp8);
  bound.read(matrix("x", 2 * kTokens, kHidden, DType::kFp8));
  add_weight_and_result(bound, DType::kFp8);
  const BindContext context = bound.context();
  EXPECT_THROW(InputRows(context, "x", {kTokens, kHidden}), std::invalid_argument);
}

TEST(MatrixSize, TakesTheLastAxisAsColumns) {
  EXPECT_EQ(matrix_size(vector("gain", 7)), (MatrixSize{.rows = 1, .columns = 7}));
  EXPECT_EQ(matrix_size(matrix("x", 3, 7)), (MatrixSize{.rows = 3, .columns = 7}));
  const Tensor experts{.name = "w", .axes = {{"experts", 2}, {"ffn", 3}, {"hidden", 7}}};
  EXPECT_EQ(matrix_size(experts), (MatrixSize{.rows = 6, .columns = 7}));
}

}  // namespace
}  // namespace orrery
