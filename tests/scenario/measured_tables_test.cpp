#include "sim/scenario/measured_tables.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "sim/scenario/machine_file.h"
#include "sim/scenario/run.h"

namespace orrery {
namespace {

const ProjectPaths kSourcePaths{ORRERY_SOURCE_DIR};
const std::filesystem::path kTopologies = kSourcePaths.root / "topologies";

MachineSpec machine(const std::string& name) {
  return read_machine(kTopologies / (name + ".yaml"), kTopologies).spec;
}

std::vector<KernelDirectory> tables_of(const std::string& provider, const std::string& device) {
  return kernel_directories(kTopologies, provider,
                            read_device(kTopologies / "devices" / device / "device.yaml"));
}

TEST(KernelDirectories, NearerKinComeFirst) {
  for (const std::string device :
       {"h100-sxm", "h200-sxm", "h800-sxm", "a100-sxm-80gb", "b200-sxm"}) {
    const auto tables = tables_of("vllm-0.24.0", device);
    ASSERT_FALSE(tables.empty()) << device;
    EXPECT_TRUE(std::ranges::is_sorted(tables, {}, &KernelDirectory::origin)) << device;
  }
}

TEST(KernelDirectories, ADeviceWithoutTablesTakesTheNearestOfItsArchitecture) {
  // The H800 is an H100 with a narrower NVLink: equal peak and bandwidth.
  const auto tables = tables_of("vllm-0.24.0", "h800-sxm");
  ASSERT_FALSE(tables.empty());
  EXPECT_EQ(tables.front().device.name, "h100-sxm");
  EXPECT_EQ(tables.front().origin, Origin::kSibling);
}

TEST(KernelDirectories, AnotherVendorsTablesAreOfNoUse) {
  EXPECT_TRUE(tables_of("vllm-0.24.0", "mi300x").empty());
  EXPECT_TRUE(usable_providers(kTopologies, read_device(kTopologies / "devices/mi300x/device.yaml"))
                  .empty());
}

TEST(CollectiveDirectories, OwnTablesComeFirstAndThenTheNearestNvlink) {
  const auto own =
      collective_directories(kTopologies, machine("hgx-h200"), kTopologies / "hgx-h200");
  ASSERT_GE(own.size(), 2U);
  EXPECT_TRUE(own[0].is_own);
  EXPECT_FALSE(own[1].is_own);
  EXPECT_NE(own[1].machine, "hgx-h200");
  const auto others = collective_directories(kTopologies, machine("hgx-a100"), {});
  ASSERT_FALSE(others.empty());
  EXPECT_FALSE(others[0].is_own);
  EXPECT_EQ(others[0].nvlink_rate, BytesPerSecond(450e9));
  EXPECT_TRUE(collective_directories(kTopologies, machine("mi300x-node"), {}).empty());
  EXPECT_TRUE(collective_directories(kTopologies, machine("single-h200"), {}).empty());
}

// A scenario of two requests on `machine`, as a file that goes away with the test.
class StandIns : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(directory_); }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  Scenario load(const std::string& machine, const std::string& provider,
                const std::string& model = "{config: llama-3.1-8b}") const {
    std::ofstream(directory_ / "a.yaml")
        << "model: " << model << "\nmachine: " << machine << "\nprovider: " << provider
        << "\nplacement: {tp: 2}\nworkload: {closed_loop: {concurrency: 2, num_requests: 2, "
           "prompt_tokens: 10, output_tokens: 5}}\n";
    return load_scenario(directory_ / "a.yaml", kSourcePaths);
  }

  std::filesystem::path directory_ =
      std::filesystem::temp_directory_path() /
      (std::string("orrery_stand_ins_") +
       ::testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(StandIns, AProviderOfAnotherDeviceIsAcceptedAndNamedInTheWarnings) {
  const RunResult result = run_scenario(load("hgx-a100", "vllm-0.24.0"));
  ASSERT_FALSE(result.tables_used.empty());
  EXPECT_EQ(result.tables_used.front().origin, Origin::kOtherArchitecture);
  const auto mentions = [&](const std::string& text) {
    return std::ranges::any_of(result.warnings, [&](const std::string& warning) {
      return warning.find(text) != std::string::npos;
    });
  };
  EXPECT_TRUE(mentions("vllm-0.24.0 has no rows on a100-sxm-80gb for some calls: "));
  EXPECT_TRUE(mentions("gemm from vllm-0.24.0 on h"));
  EXPECT_TRUE(mentions("no collectives are measured on hgx-a100"));
  EXPECT_EQ(result.service.metrics.basis.measured, 0);
}

TEST_F(StandIns, AnUnknownProviderIsAnErrorThatListsWhatExists) {
  try {
    (void)load("hgx-a100", "vllm-0.25.0");
    FAIL() << "expected ScenarioError";
  } catch (const ScenarioError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("unknown provider of a100-sxm-80gb 'vllm-0.25.0'"), std::string::npos);
    EXPECT_NE(text.find("vllm-0.24.0"), std::string::npos);
    EXPECT_NE(text.find("trtllm-1.3.0rc20"), std::string::npos);
  }
}

TEST_F(StandIns, OwnTablesAnswerWithoutWarnings) {
  const RunResult result = run_scenario(load("hgx-h200", "vllm-0.24.0"));
  EXPECT_TRUE(result.warnings.empty());
  ASSERT_EQ(result.tables_used.size(), 1U);
  EXPECT_EQ(result.tables_used[0].origin, Origin::kOwn);
}

TEST_F(StandIns, ExpertLoadChoosesTheRoutingSkewAndComesBack) {
  const std::string model = "{config: qwen3-30b-a3b, expert_load: power_law_1.2}";
  const Scenario skewed = load("hgx-h200", "vllm-0.24.0", model);
  EXPECT_EQ(skewed.expert_load.skew, ExpertSkew::kPowerLaw12);
  EXPECT_NE(to_yaml(skewed).find("expert_load: power_law_1.2"), std::string::npos);
  const Scenario shipped = load("hgx-h200", "vllm-0.24.0", "{config: qwen3-30b-a3b}");
  EXPECT_NE(run_scenario(skewed).service.metrics.duration,
            run_scenario(shipped).service.metrics.duration);
}

}  // namespace
}  // namespace orrery
