// What `orrery-gpu serve` reads and writes.

#include "kernels/serve/serve_directory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

namespace orrery {
namespace {

namespace fs = std::filesystem;

class ServeDirectory : public ::testing::Test {
 protected:
  ServeDirectory()
      : directory_(fs::temp_directory_path() /
                   ("orrery_serve_" +
                    std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()))) {
    fs::create_directories(directory_);
    Deployment deployment;
    deployment.name = "small";
    deployment.config = {{"hidden_size", std::int64_t{64}}};
    deployment.engine.block_size = 32;
    deployment.num_kv_blocks = 77;
    write("deployment.txt", to_text(deployment));
    write("workload.csv", "arrival_s,prompt_tokens,output_tokens\n0,10,3\n0.5,20,1\n");
    write("serve.txt", "open\nwarmup 1\n");
  }
  ~ServeDirectory() override { fs::remove_all(directory_); }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(directory_ / name) << text;
  }
  [[nodiscard]] std::string text_of(const fs::path& name) const {
    std::ifstream file(directory_ / name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  [[nodiscard]] std::string refusal() const {
    try {
      static_cast<void>(read_serve_case(directory_));
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "(read)";
  }

  fs::path directory_;
};

TEST_F(ServeDirectory, HoldsDeploymentAndWorkload) {
  const ServeCase serve = read_serve_case(directory_);
  EXPECT_EQ(serve.deployment.name, "small");
  ASSERT_EQ(serve.workload.requests.size(), 2U);
  EXPECT_EQ(serve.workload.requests[1].arrival, Seconds(0.5));
  EXPECT_EQ(serve.workload.closed_loop_concurrency, 0);
  EXPECT_EQ(serve.workload.warmup_requests, 1);
  const ServiceConfig config = service_config(serve);
  EXPECT_EQ(config.engine.block_size, 32);
  EXPECT_EQ(config.num_kv_blocks, 77);
  EXPECT_EQ(config.num_replicas, 1);
}

// Blocks are of a rank in the deployment, over all ranks in the service.
TEST_F(ServeDirectory, DataParallelRanksAreThoseOfTheMesh) {
  ServeCase serve = read_serve_case(directory_);
  serve.deployment.mesh.dp = 2;
  EXPECT_EQ(service_config(serve).num_dp_ranks, 2);
  EXPECT_EQ(service_config(serve).num_kv_blocks, 2 * 77);
}

TEST_F(ServeDirectory, MayBeAClosedLoopBeforeSeveralReplicas) {
  write("serve.txt", "closed_loop 8\nwarmup 0\nreplicas 2\nrouter least_loaded\n");
  const ServeCase serve = read_serve_case(directory_);
  EXPECT_EQ(serve.workload.closed_loop_concurrency, 8);
  EXPECT_EQ(service_config(serve).num_replicas, 2);
  EXPECT_EQ(service_config(serve).router, RouterKind::kLeastLoaded);
}

TEST_F(ServeDirectory, ErrorsNameFileAndLine) {
  const std::string file = (directory_ / "serve.txt").string();
  write("serve.txt", "open\nwarm 3\n");
  EXPECT_EQ(refusal(), file +
                           ":2: unknown word \"warm\", expected open, closed_loop, warmup, "
                           "replicas, router or prefill_...");
  write("serve.txt", "closed_loop none\n");
  EXPECT_EQ(refusal(), file + ":1: closed_loop is \"none\", expected a whole number from 1");
  write("serve.txt", "open\nclosed_loop 3\n");
  EXPECT_EQ(refusal(), file + ":2: found a second closed_loop");
  write("serve.txt", "warmup 3\n");
  EXPECT_EQ(refusal(), file + ":1: found neither open nor closed_loop");
  write("deployment.txt", "nothing\n");
  EXPECT_TRUE(refusal().starts_with((directory_ / "deployment.txt").string() + ": ")) << refusal();
}

TEST_F(ServeDirectory, MissingFilesAreNamed) {
  for (const char* name : {"serve.txt", "workload.csv", "deployment.txt"}) {
    fs::remove(directory_ / name);
    EXPECT_EQ(refusal(), (directory_ / name).string() + ": no such file");
  }
}

TEST_F(ServeDirectory, ResultsHaveTheColumnsOfRunDirectories) {
  ServiceResult result;
  result.requests.push_back({.id = 0, .prompt_tokens = 4, .output_tokens = 2});
  result.steps.push_back({.num_decodes = 1});
  write_served(directory_, result);
  EXPECT_TRUE(text_of("requests.csv").starts_with("id,replica,prompt_tokens,")) << "header";
  EXPECT_TRUE(text_of("serve_steps.csv").starts_with("replica,start_s,duration_s,")) << "header";
  EXPECT_THROW(write_served(directory_ / "missing", result), std::runtime_error);
}

TEST(ServeCaseNumbers, AreThoseOfTheWorkload) {
  // Decodes: one at context 11; three at 21, 22, 23. Mean 77 / 4.
  const Workload workload = {.requests = {{.prompt_tokens = 10, .output_tokens = 2},
                                          {.prompt_tokens = 20, .output_tokens = 4}}};
  EXPECT_EQ(longest_request(workload), 24);
  EXPECT_EQ(mean_decode_context(workload), 19);
  EXPECT_EQ(mean_decode_context({.requests = {{.prompt_tokens = 10, .output_tokens = 1}}}), 1);
}

TEST_F(ServeDirectory, PrefillReplicasAreACaseOfTheirOwn) {
  const std::string sides =
      "open\nreplicas 2\nprefill_replicas 3\nprefill_num_kv_blocks 55\nprefill_max_num_seqs 4\n";
  write("serve.txt", sides + "prefill_max_num_batched_tokens 512\n");
  const ServeCase serve = read_serve_case(directory_);
  EXPECT_EQ(service_config(serve).num_replicas, 2);
  EXPECT_EQ(service_config(serve).num_kv_blocks, 77);
  const ServiceConfig prefill = service_config(prefill_side(serve));
  EXPECT_EQ(prefill.num_replicas, 3);
  EXPECT_EQ(prefill.num_kv_blocks, 55);
  EXPECT_EQ(prefill.engine.max_num_seqs, 4);
  EXPECT_EQ(prefill.engine.max_num_batched_tokens, 512);
  EXPECT_EQ(prefill.engine.block_size, 32);
  EXPECT_TRUE(prefill_side(serve).deployment.graph_batch_sizes.empty());
  write("serve.txt", sides);
  EXPECT_NE(refusal().find("found no prefill_max_num_batched_tokens"), std::string::npos);
}

}  // namespace
}  // namespace orrery
