// How operands find their slots, and what is said of those that find none.

#include "kernels/slots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "kernels/kernel_spec.h"

namespace orrery {
namespace {

using Slots = std::vector<std::uint8_t>;

Tensor tensor(std::vector<std::int64_t> sizes, DType dtype = DType::kBf16,
              TensorRole role = TensorRole::kActivation) {
  Tensor result{.name = "t", .dtype = dtype, .axes = {}, .role = role};
  for (const std::int64_t size : sizes) result.axes.push_back({"axis", size});
  return result;
}
Tensor weight(std::vector<std::int64_t> sizes, DType dtype = DType::kBf16) {
  return tensor(std::move(sizes), dtype, TensorRole::kWeight);
}

const KernelOp kGemm{.kernel = "gemm", .dims = {{"m", 8, ""}, {"n", 16, ""}, {"k", 32, ""}}};

OperandSlots slots_of(const KernelOp& op, const std::vector<Tensor>& reads,
                      const std::vector<Tensor>& writes) {
  const auto pointers = [](const std::vector<Tensor>& tensors) {
    std::vector<const Tensor*> result;
    for (const Tensor& one : tensors) result.push_back(&one);
    return result;
  };
  return operand_slots(op, pointers(reads), pointers(writes));
}

std::string error_of(const KernelOp& op, const std::vector<Tensor>& reads,
                     const std::vector<Tensor>& writes) {
  try {
    slots_of(op, reads, writes);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(Slots, OptionalOperandsMayBeMissing) {
  const Tensor x = tensor({8, 32});
  const Tensor y = tensor({8, 16});
  const OperandSlots with_bias = slots_of(kGemm, {x, weight({16, 32}), weight({16})}, {y});
  EXPECT_EQ(with_bias.reads, (Slots{0, 1, 2}));
  EXPECT_EQ(with_bias.writes, Slots{3});
  const OperandSlots without = slots_of(kGemm, {x, weight({16, 32})}, {y});
  EXPECT_EQ(without.reads, (Slots{0, 1}));
  EXPECT_EQ(without.writes, Slots{3});
}

TEST(Slots, PartsOfAnOperandShareOne) {
  const OperandSlots slots =
      slots_of(kGemm, {tensor({5, 32}), tensor({3, 32}), weight({16, 32})}, {tensor({8, 16})});
  EXPECT_EQ(slots.reads, (Slots{0, 0, 1}));
}

TEST(Slots, ATensorThatFitsNoneIsNamedWithWhatIsExpected) {
  const Tensor x = tensor({8, 32});
  const Tensor y = tensor({8, 16});
  const std::string other_shape = error_of(kGemm, {x, weight({16, 31})}, {y});
  EXPECT_NE(other_shape.find("reads \"t\" (weight bf16 [16, 31]) as w, expected weight of its "
                             "dtype [n, k] with m=8 n=16 k=32"),
            std::string::npos)
      << other_shape;
  EXPECT_NE(error_of(kGemm, {x, weight({16, 32}, DType::kFp8)}, {y}), "");
  EXPECT_NE(error_of(kGemm, {x, tensor({16, 32})}, {y}), "");  // no weight
  EXPECT_NE(error_of(kGemm, {x, weight({16, 32})}, {tensor({7, 16})}), "");
  EXPECT_NE(error_of(kGemm, {x, weight({16, 32}), weight({16}), x}, {y}).find("no slot"),
            std::string::npos);
}

TEST(Slots, AMissingOperandIsNamed) {
  const std::string no_w = error_of(kGemm, {tensor({8, 32})}, {tensor({8, 16})});
  EXPECT_NE(no_w.find("reads no w, expected weight"), std::string::npos) << no_w;
  const std::string no_y = error_of(kGemm, {tensor({8, 32}), weight({16, 32})}, {});
  EXPECT_NE(no_y.find("writes no y"), std::string::npos) << no_y;
}

// "room" is no dim of the kernel: the rows that x has room for are those of y at least.
TEST(Slots, SizesOfTheCallAreTheSameWhereverTheyStand) {
  const KernelOp op{
      .kernel = "grouped_gemm",
      .dims = {
          {"rows", 6, ""}, {"n", 16, ""}, {"k", 32, ""}, {"groups", 4, ""}, {"active", 3, ""}}};
  const Tensor w = weight({4, 16, 32});
  const Tensor counts = tensor({4}, DType::kInt32);
  EXPECT_EQ(error_of(op, {tensor({10, 32}), w, counts}, {tensor({10, 16})}), "");
  EXPECT_EQ(error_of(op, {tensor({10, 32}), w, counts}, {tensor({11, 16})}), "");
  EXPECT_NE(error_of(op, {tensor({10, 32}), w, counts}, {tensor({9, 16})}), "");
}

// Sums in fp32 are rounded to bf16, those of fp16 operands to fp16.
TEST(Slots, ResultsOfFp16AreFp16AndOthersBf16) {
  for (const DType dtype : {DType::kBf16, DType::kFp16, DType::kFp8}) {
    const KernelOp op{
        .kernel = "grouped_gemm",
        .dtype = dtype,
        .dims = {
            {"rows", 6, ""}, {"n", 16, ""}, {"k", 32, ""}, {"groups", 4, ""}, {"active", 3, ""}}};
    const Tensor x = tensor({10, 32}, dtype);
    const Tensor w = weight({4, 16, 32}, dtype);
    const Tensor counts = tensor({4}, DType::kInt32);
    const bool is_fp16 = dtype == DType::kFp16;
    EXPECT_EQ(error_of(op, {x, w, counts}, {tensor({10, 16}, DType::kFp16)}).empty(), is_fp16);
    EXPECT_EQ(error_of(op, {x, w, counts}, {tensor({10, 16}, DType::kBf16)}).empty(), !is_fp16);
  }
}

TEST(Slots, AResultLiesInPlaceOfTheReadThatItMayAliasAlone) {
  const KernelOp op{.kernel = "residual_add", .dims = {{"tokens", 8, ""}, {"hidden", 32, ""}}};
  const Tensor residual = tensor({8, 32});
  const Tensor x = tensor({8, 32});
  const auto slots = [&](const Tensor& result) {
    return operand_slots(op, std::vector{&residual, &x}, std::vector{&result});
  };
  EXPECT_EQ(slots(residual).writes, Slots{2});
  EXPECT_THROW(slots(x), std::invalid_argument);
}

TEST(SlotAxes, OtherTextIsRefused) {
  for (const char* text : {"", "m,", "m k", "M", "m*", "min(m", "min(m)", "m | "}) {
    EXPECT_THROW(SlotAxes{text}, std::invalid_argument) << text;
  }
}

TEST(KernelSpecs, NameTheirSlotsOnceReadsBeforeResults) {
  for (const KernelSpec& spec : kernel_specs()) {
    EXPECT_TRUE(std::ranges::is_sorted(spec.slots, {}, &Slot::is_result)) << spec.name;
    std::set<std::pair<bool, std::string_view>> names;
    for (const Slot& slot : spec.slots) {
      EXPECT_TRUE(names.emplace(slot.is_result, slot.name).second) << spec.name << " " << slot.name;
      if (slot.may_alias.empty()) continue;
      EXPECT_TRUE(slot.is_result && names.contains({false, slot.may_alias})) << spec.name;
    }
  }
}

// A name that is no dim and stands once says nothing, and may be a dim written wrong.
TEST(KernelSpecs, SizesOfACallStandInTwoSlots) {
  for (const KernelSpec& spec : kernel_specs()) {
    std::multiset<std::string_view> sizes;
    for (const Slot& slot : spec.slots) {
      std::set<std::string_view> of_slot;
      for (const auto& form : slot.axes.forms) {
        for (const SlotAxes::Axis& axis : form) {
          for (const SlotAxes::Term& term : axis.sum) {
            for (const SlotAxes::Factor& factor : term.factors) of_slot.insert(factor.name);
          }
        }
      }
      sizes.insert(of_slot.begin(), of_slot.end());
    }
    for (const std::string_view size : sizes) {
      const bool is_dim = std::ranges::find(spec.dims, size, &DimSpec::name) != spec.dims.end();
      EXPECT_TRUE(is_dim || sizes.count(size) > 1) << spec.name << ": " << size;
    }
  }
}

}  // namespace
}  // namespace orrery
