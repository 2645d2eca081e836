#pragma once

// A directory for scenarios of a test, and the least that one says.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "sim/scenario/scenario.h"

namespace orrery::testing {

inline const ProjectPaths kPaths{ORRERY_SOURCE_DIR};

// A fresh directory, removed with its content at the end of the test.
class ScenarioDirectory : public ::testing::Test {
 protected:
  void SetUp() override {
    const ::testing::TestInfo* info = ::testing::UnitTest::GetInstance()->current_test_info();
    directory_ = std::filesystem::temp_directory_path() /
                 (std::string("orrery_") + info->test_suite_name() + "_" + info->name());
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::filesystem::path write(const std::string& name, const std::string& text) const {
    std::ofstream(directory_ / name) << text;
    return directory_ / name;
  }

  std::filesystem::path directory_;
};

inline constexpr const char* kMinimal =
    "model: {config: llama-3.1-8b}\n"
    "machine: hgx-h200\n"
    "provider: vllm-0.24.0\n"
    "workload: {closed_loop: {concurrency: 2, num_requests: 4, prompt_tokens: 10, "
    "output_tokens: 5}}\n";

}  // namespace orrery::testing
