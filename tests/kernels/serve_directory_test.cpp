// What `orrery-gpu serve` reads and writes.

#include "kernels/serve/serve_directory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "sim/serve/executed_tiers.h"

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

  [[nodiscard]] Deployment read_without_prefill() const {
    return parse_deployment(text_of(directory_ / "deployment.txt"));
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
                           "hash_block_tokens, replicas, router, prefill_replicas or layerwise");
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

TEST_F(ServeDirectory, PromptsThatBeginAlikeHaveTheirHashes) {
  write("serve.txt", "open\nwarmup 1\nhash_block_tokens 5\n");
  const std::string file = (directory_ / "block_hashes.txt").string();
  EXPECT_EQ(refusal(), file + ": no such file");
  write("block_hashes.txt", "7 18446744073709551615\n\n");
  const ServeCase serve = read_serve_case(directory_);
  EXPECT_EQ(serve.workload.hash_block_tokens, 5);
  EXPECT_EQ(serve.workload.requests[0].block_hashes,
            (std::vector<std::uint64_t>{7, 18446744073709551615U}));
  EXPECT_TRUE(serve.workload.requests[1].block_hashes.empty());
  write("block_hashes.txt", "7\n");
  EXPECT_EQ(refusal(), file + ":1: expected a line for each of 2 requests");
  write("block_hashes.txt", "7\n8\n9\n");
  EXPECT_EQ(refusal(), file + ":3: expected a line for each of 2 requests");
  write("block_hashes.txt", "7\n8 x\n");
  EXPECT_EQ(refusal(), file + ":2: expected whole numbers with a space between");
}

constexpr const char* kHost =
    "block_of_gpu 1000\nblock 2000\nlayers 4 4\nload always\noverlap none\nprefill 0.5 0\n"
    "tier host 1e+06 5e+10 4e+10 1e-05 through\n";

TEST_F(ServeDirectory, ATierBehindItsBlocks) {
  write("kv_tiers.txt", kHost);
  const KvTiersConfig tiers = service_config(read_serve_case(directory_)).kv_tiers;
  EXPECT_EQ(to_text(tiers), kHost);
  ASSERT_EQ(tiers.tiers.size(), 1U);
  EXPECT_EQ(tiers.tiers[0], (KvTier{.name = "host",
                                    .capacity = Bytes(1e6),
                                    .bandwidth = BytesPerSecond(5e10),
                                    .write_bandwidth = BytesPerSecond(4e10),
                                    .latency = Seconds(1e-5),
                                    .write = TierWrite::kThrough}));
  EXPECT_EQ(tiers.block_of_gpu, Bytes(1000));
  EXPECT_EQ(tiers.block, Bytes(2000));
  EXPECT_EQ(tiers.layers.of_stage, 4);
  EXPECT_EQ(tiers.overlap, TierOverlap::kNone);
  EXPECT_EQ(tiers.prefill.per_token, Seconds(0.5));
}

TEST_F(ServeDirectory, ATierThatIsNoneIsRefused) {
  const std::string file = (directory_ / "kv_tiers.txt").string();
  const std::string host(kHost);
  const auto refused = [&](const std::string& from, const std::string& to) {
    std::string text = host;
    write("kv_tiers.txt", text.replace(text.find(from), from.size(), to));
    return refusal();
  };
  EXPECT_EQ(refused("load always", "load never"),
            file + ": line 4: found \"never\", expected always or when_faster");
  EXPECT_EQ(refused("layers 4 4", "layers 0 4"),
            file + ": line 3: found \"0\", expected a number of at least 1");
  EXPECT_EQ(refused("overlap", "overlaps"),
            file + ": line 5: unknown field \"overlaps\"; did you mean overlap?");
  EXPECT_EQ(refused("block 2000\n", ""), file + ": found no line \"block ...\"");
  EXPECT_EQ(refused("block 2000", "block_of_gpu 2000"), file + ": line 2: a second block_of_gpu");
  EXPECT_NE(refused("tier host", "tier disk").find("executed is one tier named host"),
            std::string::npos);
  EXPECT_NE(refused(" through", "").find("found 5 words, expected name, capacity"),
            std::string::npos);
}

TEST_F(ServeDirectory, WhatMovedIsWritten) {
  ServiceResult result;
  result.metrics.kv_tiers = KvTierMetrics{
      .tiers = {{.name = "host", .hit_tokens = 512, .loaded = Bytes(64), .capacity = Bytes(256)}},
      .exposed = Seconds(0.5),
      .exposed_share = 0.25};
  write_served(directory_, result);
  EXPECT_EQ(text_of("kv_tiers.csv"),
            "tier,hit_tokens,loaded_bytes,written_bytes,evicted_bytes,held_bytes,capacity_bytes,"
            "exposed_s,exposed_share,recomputed_tokens\nhost,512,64,0,0,0,256,0.5,0.25,0\n");
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
  Deployment own = read_serve_case(directory_).deployment;
  own.num_kv_blocks = 55;
  own.engine.max_num_seqs = 4;
  own.mesh.tp = 2;
  write("prefill_deployment.txt", to_text(own));
  write("serve.txt", "open\nreplicas 2\nprefill_replicas 3\nlayerwise\n");
  const ServeCase serve = read_serve_case(directory_);
  EXPECT_EQ(service_config(serve).num_replicas, 2);
  EXPECT_EQ(service_config(serve).num_kv_blocks, 77);
  const ServiceConfig prefill = service_config(prefill_side(serve));
  EXPECT_EQ(prefill.num_replicas, 3);
  EXPECT_EQ(prefill.num_kv_blocks, 55);
  EXPECT_EQ(prefill.engine.max_num_seqs, 4);
  EXPECT_EQ(prefill.engine.block_size, 32);
  EXPECT_EQ(prefill_side(serve).deployment.mesh.tp, 2);
  EXPECT_TRUE(serve.prefill->is_layerwise);
  write("serve.txt", "open\nlayerwise\n");
  EXPECT_NE(refusal().find("found no prefill_replicas"), std::string::npos);
  write("serve.txt", "open\nprefill_replicas 3\nlayerwise 2\n");
  EXPECT_NE(refusal().find("expected layerwise"), std::string::npos);
}

TEST_F(ServeDirectory, SidesBetweenWhichBlocksCannotMoveAreRefused) {
  write("serve.txt", "open\nprefill_replicas 1\n");
  EXPECT_NE(refusal().find("prefill_deployment.txt"), std::string::npos);
  const Deployment decode = read_without_prefill();
  const auto refused = [&](const auto& change) {
    Deployment prefill = decode;
    change(prefill);
    write("prefill_deployment.txt", to_text(prefill));
    return refusal();
  };
  EXPECT_EQ(refused([](Deployment& side) { side.mesh.pp = 2; }), "(read)");
  EXPECT_NE(refused([](Deployment& side) {
              side.lowering.precision.kv_cache = DType::kFp8;
            }).find("blocks are not cast"),
            std::string::npos);
  EXPECT_NE(refused([](Deployment& side) { side.config.clear(); }).find("another model"),
            std::string::npos);
  EXPECT_NE(refused([](Deployment& side) { ++side.seed; }).find("another seed"), std::string::npos);
  EXPECT_NE(refused([](Deployment& side) { side.mesh.cp = 2; }).find("expected cp 1"),
            std::string::npos);
}

}  // namespace
}  // namespace orrery
