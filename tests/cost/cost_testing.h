#pragma once

// A small machine and tables in a temporary directory, for the tests of sim/cost.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "sim/cost/cost.h"

namespace orrery::testing {

// Round numbers of an H200, so that expected times can be worked out by hand.
inline MachineSpec node_spec(int num_gpus = 8) {
  MachineSpec spec;
  spec.name = "node";
  spec.kind = "nvswitch_node";
  spec.num_gpus = num_gpus;
  spec.gpus_per_node = 8;
  spec.nvlink_rate = BytesPerSecond(450e9);
  spec.nvlink_latency = Seconds(1e-6);
  spec.device.name = "device";
  spec.device.hbm_capacity = Bytes(141e9);
  spec.device.hbm_bandwidth = BytesPerSecond(4.8e12);
  spec.device.num_sms = 132;
  spec.device.dense_flops = {{DType::kBf16, FlopsPerSecond(1e15)},
                             {DType::kFp8, FlopsPerSecond(2e15)}};
  return spec;
}

// The same with the rates of an H200, in the formats that shipped tables have.
inline Device h200() {
  Device device = node_spec().device;
  device.dense_flops = {{DType::kBf16, FlopsPerSecond(989e12)},
                        {DType::kFp8, FlopsPerSecond(1979e12)},
                        {DType::kMxfp4, FlopsPerSecond(989e12)},
                        {DType::kInt4, FlopsPerSecond(989e12)}};
  return device;
}

// A machine of that kind.
inline const Machine& node() {
  static const Machine machine = make_machine(node_spec());
  return machine;
}

// Work-model time: what a model without measurements says.
inline Seconds work_time(const KernelOp& op) {
  return CostModel(node(), nullptr, nullptr, {}).kernel(op).time;
}

// A directory that goes away with the test.
class TableDirectory {
 public:
  TableDirectory() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ =
        std::filesystem::temp_directory_path() / ("orrery_cost_" + std::to_string(getpid()) + "_" +
                                                  test->test_suite_name() + "_" + test->name());
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TableDirectory() { std::filesystem::remove_all(path_); }
  TableDirectory(const TableDirectory&) = delete;
  TableDirectory& operator=(const TableDirectory&) = delete;

  void write(const std::string& name, const std::string& content) const {
    std::ofstream(path_ / name) << content;
  }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline KernelOp gemm(std::int64_t m, std::int64_t n, std::int64_t k, DType dtype = DType::kBf16) {
  return {.kernel = "gemm",
          .dtype = dtype,
          .dims = {{.name = "m", .size = m, .axis = "tokens"},
                   {.name = "n", .size = n, .axis = "ffn"},
                   {.name = "k", .size = k, .axis = "hidden"}}};
}

inline KernelOp prefill(std::int64_t batch, std::int64_t query, std::int64_t context,
                        std::int64_t heads, std::int64_t kv_heads, std::int64_t window = 1 << 30) {
  return {.kernel = "attention_prefill",
          .dtype = DType::kBf16,
          .dims = {{.name = "batch", .size = batch, .axis = {}},
                   {.name = "query", .size = query, .axis = {}},
                   {.name = "context", .size = context, .axis = {}},
                   {.name = "heads", .size = heads, .axis = {}},
                   {.name = "kv_heads", .size = kv_heads, .axis = {}},
                   {.name = "head_dim", .size = 128, .axis = {}},
                   {.name = "window", .size = window, .axis = {}}}};
}

// What `call` throws as std::invalid_argument; fails the test when it throws nothing.
template <typename Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  ADD_FAILURE() << "expected std::invalid_argument";
  return {};
}

inline void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "found: " << text << "\nexpected: " << part;
}

// A gemm table of m, n, k in powers of four whose every time is twice the work model's.
inline std::string twice_the_work_model(std::int64_t skipped_m = 0) {
  std::string csv = "dtype,m,n,k,time_us\n";
  for (const std::int64_t m : {16, 64, 256, 1024}) {
    for (const std::int64_t n : {256, 1024, 4096}) {
      for (const std::int64_t k : {256, 1024, 4096}) {
        if (m == skipped_m && n == 1024 && k == 1024) {
          continue;
        }
        char line[80];
        std::snprintf(line, sizeof line, "bf16,%ld,%ld,%ld,%.15g\n", static_cast<long>(m),
                      static_cast<long>(n), static_cast<long>(k),
                      2e6 * work_time(gemm(m, n, k)).value());
        csv += line;
      }
    }
  }
  return csv;
}

}  // namespace orrery::testing
