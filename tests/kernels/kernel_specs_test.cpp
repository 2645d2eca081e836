#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>
#include <string>

#include "kernels/kernel_spec.h"
#include "tests/kernels/kernel_op.h"

namespace orrery {
namespace {

// Sizes that every kernel accepts, doubled too: experts_total and what divides it stand apart, and
// active groups are fewer than groups, and heads of values (of Mamba-2) are several for each of
// keys (each group).
KernelOp typical(const KernelSpec& spec) {
  KernelOp op{std::string(spec.name), DType::kBf16, {}};
  for (const DimSpec& dim : spec.dims) {
    const std::int64_t size = dim.name == "experts_total" ? 64
                              : dim.name == "value_heads" ? 8
                              : dim.name == "ssm_heads"   ? 8
                              : dim.name == "active"      ? 2
                                                          : 4;
    op.dims.push_back({std::string(dim.name), size, {}});
  }
  return op;
}

TEST(KernelSpecs, NamesAreDistinctAndFindTheirSpec) {
  std::set<std::string_view> names;
  for (const KernelSpec& spec : kernel_specs()) {
    EXPECT_TRUE(names.insert(spec.name).second) << spec.name;
    EXPECT_EQ(find_kernel_spec(spec.name), &spec);
    EXPECT_EQ(&kernel_spec(spec.name), &spec);
  }
}

TEST(KernelSpecs, EveryKernelAndDimSaysWhatItIs) {
  for (const KernelSpec& spec : kernel_specs()) {
    EXPECT_FALSE(spec.summary.empty()) << spec.name;
    std::set<std::string_view> names;
    for (const DimSpec& dim : spec.dims) {
      EXPECT_FALSE(dim.meaning.empty()) << spec.name << " " << dim.name;
      EXPECT_TRUE(names.insert(dim.name).second) << spec.name << " " << dim.name;
    }
  }
}

TEST(KernelSpecs, EveryWorkIsFiniteAndMovesBytes) {
  for (const KernelSpec& spec : kernel_specs()) {
    const Work work = work_of(typical(spec));
    for (const double amount :
         {work.flops.value(), work.bytes_read.value(), work.bytes_written.value()}) {
      EXPECT_TRUE(std::isfinite(amount) && amount >= 0) << spec.name;
    }
    EXPECT_GT(work.bytes_read.value(), 0) << spec.name;
    EXPECT_GT(work.bytes_written.value(), 0) << spec.name;
  }
}

TEST(KernelSpecs, AMissingDimIsAnErrorUnlessNoFlopsFollowFromIt) {
  // Some dims only move bytes or only bound others, so their absence may go unnoticed.
  for (const KernelSpec& spec : kernel_specs()) {
    const KernelOp whole = typical(spec);
    for (std::size_t i = 0; i < spec.dims.size(); ++i) {
      KernelOp op = whole;
      op.dims.erase(op.dims.begin() + static_cast<std::ptrdiff_t>(i));
      try {
        EXPECT_EQ(work_of(op).flops, work_of(whole).flops) << spec.name;
      } catch (const std::invalid_argument& error) {
        const std::string expected = "no dim \"" + std::string(spec.dims[i].name) + "\"";
        EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
      }
    }
  }
}

TEST(KernelSpecs, WorkNeverShrinksAsADimGrows) {
  for (const KernelSpec& spec : kernel_specs()) {
    for (std::size_t i = 0; i < spec.dims.size(); ++i) {
      // More experts elsewhere are less work here.
      const bool counts_others = spec.name == "moe" || spec.name == "index_shuffling";
      if (counts_others && spec.dims[i].name == "experts_total") continue;
      KernelOp op = typical(spec);
      const Work before = work_of(op);
      op.dims[i].size *= 2;
      const Work after = work_of(op);
      EXPECT_GE(after.flops, before.flops) << spec.name << " " << spec.dims[i].name;
      EXPECT_GE(after.bytes_read, before.bytes_read) << spec.name << " " << spec.dims[i].name;
      EXPECT_GE(after.bytes_written, before.bytes_written) << spec.name << " " << spec.dims[i].name;
    }
  }
}

TEST(KernelSpecs, WhatIsContractedOrKeptWholeIsMarked) {
  const auto flags = [](std::string_view kernel, std::string_view name) {
    const auto& dims = kernel_spec(kernel).dims;
    return *std::ranges::find(dims, name, &DimSpec::name);
  };
  EXPECT_TRUE(flags("gemm", "k").is_contraction);
  EXPECT_FALSE(flags("gemm", "n").is_contraction);
  EXPECT_TRUE(flags("batched_gemm", "k").is_contraction);
  EXPECT_TRUE(flags("embedding", "vocab").is_contraction);
  EXPECT_TRUE(flags("moe", "inter").is_contraction);
  EXPECT_TRUE(flags("moe", "experts").is_contraction);
  EXPECT_TRUE(flags("sample", "vocab").must_be_whole);
  EXPECT_TRUE(flags("moe_route", "experts_total").must_be_whole);
  EXPECT_TRUE(flags("attention_prefill", "context").may_be_zero);
}

TEST(KernelSpecs, OptionalDimsStandBehindTheOthersOrNotAtAll) {
  const KernelSpec& spec = kernel_spec("fused_moe");
  KernelOp op = typical(spec);
  EXPECT_NO_THROW(check_call(op));
  op.dims.push_back({"capacity_percent", 100, {}});
  EXPECT_NO_THROW(check_call(op));
  op.dims.back().size = 0;
  EXPECT_THROW(check_call(op), std::invalid_argument);
  op.dims.back().size = 100;
  std::swap(op.dims.back(), op.dims.front());
  try {
    check_call(op);
    FAIL() << "no error";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("shared [capacity_percent]"), std::string::npos)
        << error.what();
  }
}

TEST(KernelSpecs, AnUnknownKernelIsAnErrorWithTheNearest) {
  EXPECT_EQ(find_kernel_spec("attention"), nullptr);
  try {
    kernel_spec("attention_decod");
    FAIL() << "no error";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(),
                 "unknown kernel \"attention_decod\", nearest is \"attention_decode\"");
  }
}

TEST(KernelSpecs, AMissingDimNamesKernelAndDim) {
  try {
    work_of({"gemm", DType::kBf16, {{"m", 1, ""}, {"n", 1, ""}}});
    FAIL() << "no error";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "kernel gemm: no dim \"k\", found m n");
  }
}

TEST(KernelSpecs, DimsThatContradictEachOtherAreErrors) {
  EXPECT_THROW(work("moe", DType::kBf16, {1, 8, 8, 9, 8, 8}), std::invalid_argument);  // topk
  EXPECT_THROW(work("moe", DType::kBf16, {1, 8, 8, 2, 9, 8}), std::invalid_argument);  // experts
  EXPECT_THROW(work("moe_route", DType::kBf16, {1, 8, 9, 1}), std::invalid_argument);  // topk
  EXPECT_THROW(work("moe_route", DType::kBf16, {1, 8, 2, 3}), std::invalid_argument);  // groups
}

TEST(KernelSpecs, SayWhatTimesTheyAreExpectedToTake) {
  for (const KernelSpec& spec : kernel_specs()) {
    const Prior& prior = spec.prior;
    EXPECT_TRUE(prior.flops > 0 && prior.flops <= 1) << spec.name;
    EXPECT_TRUE(prior.hbm > 0 && prior.hbm <= 1) << spec.name;
    EXPECT_GT(prior.floor, Seconds(0)) << spec.name;
    EXPECT_GT(prior.spread, 0) << spec.name;
  }
}

TEST(KernelSpecs, InterpolateOverDimsThatTheyHave) {
  for (const KernelSpec& spec : kernel_specs()) {
    const auto has = [&](std::string_view name) {
      return std::ranges::find(spec.dims, name, &DimSpec::name) != spec.dims.end();
    };
    const TableGrid& grid = spec.prior.grid;
    EXPECT_LE(grid.axes.size(), 3U) << spec.name;
    for (const std::string_view axis : grid.axes) EXPECT_TRUE(has(axis)) << spec.name << axis;
    for (const std::string_view name : {grid.tied, grid.ignored}) {
      EXPECT_TRUE(name.empty() || has(name)) << spec.name << name;
    }
    EXPECT_TRUE(!grid.is_by_way || spec.way != nullptr) << spec.name;
  }
}

TEST(KernelSpecs, PassCallsOnOnlyToKernelsThatDoTheSameWork) {
  for (const KernelSpec& spec : kernel_specs()) {
    if (spec.prior.same_work == nullptr) continue;
    KernelOp op{.kernel = std::string(spec.name), .dtype = DType::kBf16, .dims = {}};
    for (const DimSpec& dim : spec.dims) op.dims.push_back({std::string(dim.name), 48, ""});
    const KernelOp other = spec.prior.same_work(op);
    EXPECT_EQ(work_of(other).flops, work_of(op).flops) << spec.name;
  }
}

}  // namespace
}  // namespace orrery
