// KV caches between instances that split them in other ways: every rank gets what it holds.

#include "sim/parallel/kv_flows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "tests/model/config_file.h"
#include "tests/parallel/parallel_testing.h"

namespace orrery {
namespace {

// 32 layers, 8 KV heads of 128: 2 * 2 * 128 bytes of each head in each layer.
ModelConfig grouped() { return testing::shipped_model("meta-llama--Meta-Llama-3.1-8B"); }
ModelConfig latent() { return testing::shipped_model("deepseek-ai--DeepSeek-V2-Lite"); }

// All of tp and pp up to 16 ways each that `model` allows.
std::vector<Mesh> meshes(const ModelConfig& model) {
  std::vector<Mesh> legal;
  for (const int tp : {1, 2, 4, 8, 16}) {
    for (const int pp : {1, 2, 3}) {
      const Mesh mesh{.tp = tp, .pp = pp};
      try {
        check_mesh(model, mesh);
        legal.push_back(mesh);
      } catch (const std::invalid_argument&) {
        continue;
      }
    }
  }
  return legal;
}

// Every head of every layer that a rank holds comes once, from its place on a rank that holds it.
TEST(KvParts, BringEachRankWhatItHolds) {
  for (const ModelConfig& model : {grouped(), latent()}) {
    const bool is_latent = model.layers.front().attention == AttentionKind::kMla;
    const std::int64_t heads = is_latent ? 1 : model.num_key_value_heads;
    const auto first_head = [&](std::size_t rank, const Mesh& mesh) {
      return static_cast<std::int64_t>(rank) % mesh.tp * heads / mesh.tp;
    };
    for (const Mesh& from : meshes(model)) {
      for (const Mesh& to : meshes(model)) {
        SCOPED_TRACE("tp " + std::to_string(from.tp) + " pp " + std::to_string(from.pp) +
                     " to tp " + std::to_string(to.tp) + " pp " + std::to_string(to.pp));
        std::set<std::tuple<std::size_t, std::int64_t, std::int64_t>> came;
        for (const KvPart& part : kv_parts(model, from, to)) {
          EXPECT_EQ(first_head(part.sender, from) + part.sender_head,
                    first_head(part.receiver, to) + part.receiver_head);
          for (std::int64_t i = 0; i < part.num_layers; ++i) {
            for (std::int64_t j = 0; j < part.num_heads; ++j) {
              EXPECT_TRUE(
                  came.emplace(part.receiver, part.receiver_layer + i, part.receiver_head + j)
                      .second);
            }
          }
        }
        const auto held = static_cast<std::size_t>(std::max<std::int64_t>(heads / to.tp, 1));
        EXPECT_EQ(came.size(), model.layers.size() * held * static_cast<std::size_t>(to.tp));
      }
    }
  }
}

TEST(KvParts, AreFewWhereLayersFollowEachOther) {
  EXPECT_EQ(kv_parts(grouped(), {.tp = 2}, {.tp = 1}),
            (std::vector<KvPart>{
                {.sender = 0, .receiver = 0, .num_layers = 32, .num_heads = 4},
                {.sender = 1, .receiver = 0, .num_layers = 32, .receiver_head = 4, .num_heads = 4},
            }));
  EXPECT_EQ(kv_parts(latent(), {.tp = 2}, {.tp = 1}).size(), 1U);
  EXPECT_EQ(kv_parts(grouped(), {.pp = 2}, {.pp = 3}).size(), 4U);
}

TEST(KvFlows, EqualSidesSendToTheRankOfTheSameNumber) {
  for (const ModelConfig& model : {grouped(), latent()}) {
    for (const Mesh& mesh : meshes(model)) {
      SCOPED_TRACE("tp " + std::to_string(mesh.tp) + " pp " + std::to_string(mesh.pp));
      const KvFlows flows = kv_flows(model, mesh, mesh, DType::kBf16);
      for (std::size_t i = 0; i < flows.num_senders; ++i) {
        for (std::size_t j = 0; j < flows.num_receivers; ++j) {
          EXPECT_EQ(flows.at(i, j) > Bytes(0), i == j);
        }
      }
      const Bytes most = kv_bytes_per_rank(model, mesh, DType::kBf16, 1);
      EXPECT_EQ(flows.most_sent(), most);
      EXPECT_EQ(flows.most_received(), most);
    }
  }
}

TEST(KvFlows, WhatIsSentIsTheKvOfATokenOnceForEachCopyThatTheReceiversHold) {
  for (const ModelConfig& model : {grouped(), latent()}) {
    const bool is_latent = model.layers.front().attention == AttentionKind::kMla;
    const std::int64_t heads = is_latent ? 1 : model.num_key_value_heads;
    for (const Mesh& from : meshes(model)) {
      for (const Mesh& to : meshes(model)) {
        SCOPED_TRACE("tp " + std::to_string(from.tp) + " pp " + std::to_string(from.pp) +
                     " to tp " + std::to_string(to.tp) + " pp " + std::to_string(to.pp));
        const KvFlows flows = kv_flows(model, from, to, DType::kBf16);
        const auto copies = static_cast<double>(std::max<std::int64_t>(to.tp / heads, 1));
        EXPECT_EQ(flows.total(), kv_bytes_per_token(model, DType::kBf16) * copies);
        EXPECT_EQ(flows.most_received(), kv_bytes_per_rank(model, to, DType::kBf16, 1));
        // Some rank sends the mean or more.
        EXPECT_GE(flows.most_sent() * static_cast<double>(flows.num_senders), flows.total());
      }
    }
  }
}

// KV heads that rank `rank` has in `plan`.
std::set<std::int64_t> heads_of(const Plan& plan, int rank, std::int64_t head_dim) {
  std::set<std::int64_t> heads;
  const Axis& width = testing::tensor_named(plan, "layers.0.kv_new").axes.at(1);
  const std::int64_t keys = plan.whole_size(width) / 2;  // then as many columns of values
  for (const AxisRange& range : plan.ranges_of(width, rank)) {
    for (std::int64_t i = 0; i < range.count; i += head_dim) {
      heads.insert((range.global + i) % keys / head_dim);
    }
  }
  return heads;
}

// 8 heads: below tp 16 nobody shares one, so each rank sends all that both have.
TEST(KvFlows, AreOfTheHeadsThatRanksHaveInThePlansOfBothSides) {
  const ModelConfig model = grouped();
  const Bytes head = kv_bytes_per_token(model, DType::kBf16) / 8.0;
  for (const int from : {1, 2, 4, 8, 16}) {
    const Plan sends = testing::placed(model, testing::kDecode, {.tp = from});
    for (const int to : {1, 2, 4, 8, 16}) {
      SCOPED_TRACE(std::to_string(from) + " to " + std::to_string(to));
      const Plan receives = testing::placed(model, testing::kDecode, {.tp = to});
      const KvFlows flows = kv_flows(model, {.tp = from}, {.tp = to}, DType::kBf16);
      for (int i = 0; i < from; ++i) {
        for (int j = 0; j < to; ++j) {
          const auto own = heads_of(sends, i, model.head_dim);
          const auto other = heads_of(receives, j, model.head_dim);
          const auto both = static_cast<double>(std::ranges::count_if(
              own, [&](std::int64_t found) { return other.contains(found); }));
          const Bytes sent = flows.at(static_cast<std::size_t>(i), static_cast<std::size_t>(j));
          EXPECT_LE(sent, head * both) << i << " " << j;
          EXPECT_TRUE(from == 16 || sent == head * both) << i << " " << j;
        }
      }
    }
  }
}

TEST(KvFlows, HeadsAreSplitAndJoined) {
  const Bytes head(32.0 * 2 * 128 * 2);
  const KvFlows split = kv_flows(grouped(), {.tp = 2}, {.tp = 4}, DType::kBf16);
  const KvFlows joined = kv_flows(grouped(), {.tp = 4}, {.tp = 2}, DType::kBf16);
  for (std::size_t two = 0; two < 2; ++two) {
    for (std::size_t four = 0; four < 4; ++four) {
      const Bytes expected = four / 2 == two ? head * 2 : Bytes(0);
      EXPECT_EQ(split.at(two, four), expected);
      EXPECT_EQ(joined.at(four, two), expected);
    }
  }
}

TEST(KvFlows, RanksThatShareAHeadSendItInTurn) {
  // 8 heads on 16 ranks: ranks 2 h and 2 h + 1 hold head h. Rank 0 of two gets heads 0 to 3, from
  // the even ranks below 8; rank 1 the others, from the odd ones above.
  const KvFlows flows = kv_flows(grouped(), {.tp = 16}, {.tp = 2}, DType::kBf16);
  const Bytes head(32.0 * 2 * 128 * 2);
  for (std::size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(flows.at(i, 0), i < 8 && i % 2 == 0 ? head : Bytes(0)) << i;
    EXPECT_EQ(flows.at(i, 1), i >= 8 && i % 2 == 1 ? head : Bytes(0)) << i;
  }
}

TEST(KvFlows, ALatentGoesWholeToEveryRankFromOneThatHasIt) {
  const Bytes whole = kv_bytes_per_token(latent(), DType::kBf16);
  const KvFlows flows = kv_flows(latent(), {.tp = 2}, {.tp = 4}, DType::kBf16);
  for (std::size_t i = 0; i < 2; ++i) {
    for (std::size_t j = 0; j < 4; ++j) {
      EXPECT_EQ(flows.at(i, j), j % 2 == i ? whole : Bytes(0));
    }
  }
}

// 32 layers on 3 stages: 11, 11 and 10; on 2: 16 each.
TEST(KvFlows, UnlikeStagesSendTheLayersThatBothHave) {
  const Bytes layer = kv_bytes_per_token(grouped(), DType::kBf16) / 32.0;
  const KvFlows joined = kv_flows(grouped(), {.pp = 3}, {.pp = 2}, DType::kBf16);
  const KvFlows split = kv_flows(grouped(), {.pp = 2}, {.pp = 3}, DType::kBf16);
  const std::vector<double> first = {11, 11, 10};
  double done = 0;
  for (std::size_t three = 0; three < 3; ++three) {
    for (std::size_t two = 0; two < 2; ++two) {
      const double begin = std::max(done, 16.0 * static_cast<double>(two));
      const double end = std::min(done + first[three], 16.0 * static_cast<double>(two + 1));
      EXPECT_EQ(joined.at(three, two), layer * std::max(end - begin, 0.0));
      EXPECT_EQ(split.at(two, three), layer * std::max(end - begin, 0.0));
    }
    done += first[three];
  }
}

TEST(KvFlows, AStageSendsItsLayersToTheStagesThatHoldThem) {
  // 16 layers a stage, all of them to the one stage; half the heads to each of its ranks.
  const KvFlows flows = kv_flows(grouped(), {.pp = 2}, {.tp = 2}, DType::kBf16);
  ASSERT_EQ(flows.bytes.size(), 4U);
  for (const Bytes bytes : flows.bytes) EXPECT_EQ(bytes, Bytes(16.0 * 4 * 2 * 128 * 2));
}

}  // namespace
}  // namespace orrery
