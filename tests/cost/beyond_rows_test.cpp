// Attention beyond the rows of a table: as far off as where rows that are there are left out.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "sim/cost/interpolate.h"
#include "sim/cost/kernel_table.h"
#include "tests/cost/cost_testing.h"

namespace orrery {
namespace {

const std::filesystem::path kDevices =
    std::filesystem::path(ORRERY_SOURCE_DIR) / "topologies/devices";

// Same rates for the device of the rows and of the call.
Device any_device() {
  Device device = testing::node_spec().device;
  device.dense_flops = {{DType::kBf16, FlopsPerSecond(989e12)},
                        {DType::kFp8, FlopsPerSecond(1979e12)}};
  return device;
}

// Rows by how much lies on the first two axes (sequences and their length), families apart.
class Sizes {
 public:
  explicit Sizes(const KernelRows& rows) : rows_(rows), layout_(grid_layout(*rows.spec)) {
    for (std::int64_t row = 0; row < rows.num_rows(); ++row) {
      double& most = most_[family(row)];
      most = std::max(most, size(row));
    }
  }
  // Whether a row has at least 4 times less than the largest of its family.
  [[nodiscard]] bool is_small(std::int64_t row) const {
    return 4 * size(row) <= most_.at(family(row));
  }

 private:
  [[nodiscard]] double size(std::int64_t row) const {
    const auto dims = rows_.row_dims(row);
    return static_cast<double>(dims[layout_.axes[0]]) * static_cast<double>(dims[layout_.axes[1]]);
  }
  [[nodiscard]] std::vector<std::int64_t> family(std::int64_t row) const {
    const auto dims = rows_.row_dims(row);
    std::vector<std::int64_t> family(dims.begin(), dims.end());
    family[layout_.axes[0]] = family[layout_.axes[1]] = 0;
    family.push_back(static_cast<std::int64_t>(rows_.dtype[row]));
    return family;
  }

  const KernelRows& rows_;
  GridLayout layout_;
  std::map<std::vector<std::int64_t>, double> most_;
};

// Absolute errors (logarithm) of rows of up to four times the sizes that are kept, ascending.
std::vector<double> errors_beyond(const KernelRows& rows) {
  const Sizes sizes(rows);
  const KernelTable table(rows, [&](std::int64_t row) { return sizes.is_small(row); });
  const Device device = any_device();
  std::vector<double> errors;
  for (std::int64_t row = 0; row < rows.num_rows(); ++row) {
    if (sizes.is_small(row)) continue;
    const auto found =
        predict(table, device, device, rows.dtype[row], rows.distribution[row], rows.row_dims(row));
    if (!found) continue;
    const Seconds time = std::max(found->time, found->at_fastest_row);
    errors.push_back(std::abs(std::log(time.value() / rows.time_s[row])));
  }
  std::ranges::sort(errors);
  return errors;
}

struct Expected {
  const char* table = "";
  double median = 0;
  double most_of_nine_in_ten = 0;
};

class BeyondRows : public ::testing::TestWithParam<Expected> {};

// Found at this revision, and a tenth more. With all lines weighed alike, as before, the second
// figure was 0.117, 0.255, 0.157, 0.032, 0.208 and 0.210 on the H200.
TEST_P(BeyondRows, AreWithinWhatLeftOutRowsSay) {
  const std::vector<double> errors = errors_beyond(read_kernel_rows(kDevices / GetParam().table));
  ASSERT_GT(errors.size(), 100U);
  const auto at = [&](double share) {
    return errors[static_cast<std::size_t>(share * static_cast<double>(errors.size() - 1))];
  };
  RecordProperty("errors", std::to_string(errors.size()) + " rows: " + std::to_string(at(0.5)) +
                               ", " + std::to_string(at(0.9)));
  EXPECT_LE(at(0.5), 1.1 * GetParam().median);
  EXPECT_LE(at(0.9), 1.1 * GetParam().most_of_nine_in_ten);
}

INSTANTIATE_TEST_SUITE_P(
    Engines, BeyondRows,
    ::testing::Values(Expected{"h200-sxm/vllm-0.24.0/attention_decode.csv", 0.020, 0.090},
                      Expected{"h200-sxm/trtllm-1.3.0rc20/attention_decode.csv", 0.027, 0.229},
                      Expected{"h200-sxm/sglang-0.5.14/attention_decode.csv", 0.031, 0.130},
                      Expected{"h200-sxm/trtllm-1.3.0rc20/mla_decode.csv", 0.010, 0.019},
                      Expected{"h200-sxm/vllm-0.24.0/attention_prefill.csv", 0.017, 0.104},
                      Expected{"h200-sxm/trtllm-1.3.0rc20/attention_prefill.csv", 0.023, 0.095},
                      Expected{"h100-sxm/vllm-0.24.0/attention_decode.csv", 0.020, 0.085},
                      Expected{"h100-sxm/vllm-0.24.0/attention_prefill.csv", 0.019, 0.106}),
    [](const auto& of) {
      std::string name = of.param.table;
      std::ranges::replace_if(name, [](char c) { return std::isalnum(c) == 0; }, '_');
      return name;
    });

}  // namespace
}  // namespace orrery
