#include "sim/des/flows.h"

#include <gtest/gtest.h>

#include "tests/des/step_builder.h"

namespace orrery::test {
namespace {

Bytes bytes_of_kind(CollectiveKind kind, const Machine& machine, const std::vector<int>& ranks,
                    double bytes) {
  const des::FlowSet flows = des::flows_of(machine, kind, ranks, ranks);
  return des::bytes_per_flow(flows,
                             {.kind = kind, .dtype = DType::kBf16, .bytes_per_rank = Bytes(bytes)});
}

TEST(Flows, InsideADomainTheyFormARing) {
  const std::vector<int> ranks = {1, 3, 4};
  const des::FlowSet flows =
      des::flows_of(nvswitch_machine(8), CollectiveKind::kAllReduce, ranks, ranks);
  ASSERT_EQ(flows.flows.size(), 3U);
  EXPECT_EQ(flows.flows[0].to, 3);
  EXPECT_EQ(flows.flows[2].to, 1);
  EXPECT_DOUBLE_EQ(flows.flows[0].rate.value(), 400e9);
}

TEST(Flows, AcrossDomainsTheyStayOnTheirRail) {
  const std::vector<int> ranks = range(0, 16);
  const des::FlowSet flows =
      des::flows_of(rail_machine(16), CollectiveKind::kAllToAll, ranks, ranks);
  ASSERT_EQ(flows.flows.size(), 16U);
  EXPECT_EQ(flows.flows[3].to, 11);
  EXPECT_EQ(flows.flows[11].to, 3);
  EXPECT_DOUBLE_EQ(flows.flows[3].rate.value(), 50e9);
}

TEST(Flows, OnAnOversubscribedSpineTheyShareTheTrunk) {
  // Pods of 2 nodes, trunk 2 * 50 / 4 = 25 GB/s. Nodes 0 -> 1 and 2 -> 3 stay in their pod; nodes
  // 1 -> 2 and 3 -> 0 cross: one flow per trunk and rail, 25 GB/s. Flows in a pod keep 50 GB/s.
  const std::vector<int> ranks = range(0, 32);
  const des::FlowSet flows =
      des::flows_of(rail_machine(32, 4), CollectiveKind::kAllToAll, ranks, ranks);
  EXPECT_DOUBLE_EQ(flows.flows[0].rate.value(), 50e9);
  EXPECT_DOUBLE_EQ(flows.flows[8].rate.value(), 25e9);
  // 1 MB at the slowest: 1e6 / 25e9 = 40 us.
  EXPECT_DOUBLE_EQ(des::time_alone(flows, Bytes(1e6)).value(), 40e-6);
}

TEST(Flows, BytesInsideADomainAreThoseOfARing) {
  const Machine machine = nvswitch_machine(8);
  const std::vector<int> ranks = range(0, 4);
  EXPECT_DOUBLE_EQ(bytes_of_kind(CollectiveKind::kAllReduce, machine, ranks, 8).value(), 12);
  EXPECT_DOUBLE_EQ(bytes_of_kind(CollectiveKind::kAllGather, machine, ranks, 8).value(), 24);
  EXPECT_DOUBLE_EQ(bytes_of_kind(CollectiveKind::kReduceScatter, machine, ranks, 8).value(), 6);
  EXPECT_DOUBLE_EQ(bytes_of_kind(CollectiveKind::kAllToAll, machine, ranks, 8).value(), 6);
  EXPECT_DOUBLE_EQ(bytes_of_kind(CollectiveKind::kBroadcast, machine, ranks, 8).value(), 8);
  EXPECT_DOUBLE_EQ(bytes_of_kind(CollectiveKind::kSendRecv, machine, {0, 1}, 8).value(), 8);
}

TEST(Flows, BytesAcrossDomainsAreThoseThatLeaveADomainPerNic) {
  // 2 nodes of 8. All-to-all: half of what a rank sends leaves the node. All-reduce: reduce-scatter
  // in the node leaves 1/8 of the buffer per NIC, of which 2 (m - 1) / m crosses: 16 * 1 / 8.
  const Machine machine = rail_machine(16);
  const std::vector<int> ranks = range(0, 16);
  EXPECT_DOUBLE_EQ(bytes_of_kind(CollectiveKind::kAllToAll, machine, ranks, 16).value(), 8);
  EXPECT_DOUBLE_EQ(bytes_of_kind(CollectiveKind::kAllReduce, machine, ranks, 16).value(), 2);
  // Reduce-scatter and all-gather of the shards are each half of the all-reduce.
  EXPECT_DOUBLE_EQ(bytes_of_kind(CollectiveKind::kReduceScatter, machine, ranks, 16).value(), 1);
  EXPECT_DOUBLE_EQ(bytes_of_kind(CollectiveKind::kAllGather, machine, ranks, 1).value(), 1);
}

TEST(Flows, OnlySimulatedRanksSend) {
  const Machine machine = nvswitch_machine(8);
  const std::vector<int> ranks = range(0, 8);
  const std::vector<int> simulated = {2};
  EXPECT_EQ(des::flows_of(machine, CollectiveKind::kAllGather, ranks, simulated).flows.size(), 1U);
}

}  // namespace
}  // namespace orrery::test
