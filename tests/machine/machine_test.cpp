#include "sim/machine/machine.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include "sim/machine/joined_machines.h"

namespace orrery {
namespace {

MachineSpec spec_of(const std::string& kind, int num_gpus) {
  MachineSpec spec;
  spec.name = "test";
  spec.kind = kind;
  spec.device.name = "gpu";
  spec.device.hbm_capacity = Bytes(80e9);
  spec.device.hbm_bandwidth = BytesPerSecond(3e12);
  spec.device.num_sms = 132;
  spec.num_gpus = num_gpus;
  spec.gpus_per_node = 8;
  spec.nvlink_rate = BytesPerSecond(450e9);
  spec.nvlink_latency = Seconds(0.6e-6);
  spec.nic_rate = BytesPerSecond(50e9);
  spec.nic_latency = Seconds(2.5e-6);
  spec.switch_latency = Seconds(0.2e-6);
  spec.nodes_per_leaf = 4;
  return spec;
}

std::vector<std::string> link_names(const Machine& machine, int from, int to) {
  std::vector<std::string> names;
  for (const int link : machine.route(from, to).links) {
    names.push_back(machine.links[static_cast<std::size_t>(link)].name);
  }
  return names;
}

std::string message_of(const MachineSpec& spec) {
  try {
    make_machine(spec);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

using Names = std::vector<std::string>;

TEST(Machine, SingleGpuHasNoLinks) {
  const Machine machine = make_machine(spec_of("single_gpu", 1));
  EXPECT_TRUE(machine.links.empty());
  EXPECT_TRUE(machine.route(0, 0).links.empty());
}

TEST(Machine, NvswitchRouteIsUpOfTheSourceAndDownOfTheDestination) {
  const Machine machine = make_machine(spec_of("nvswitch_node", 8));
  EXPECT_EQ(link_names(machine, 3, 5), (Names{"gpu3.nvlink.up", "gpu5.nvlink.down"}));
  EXPECT_DOUBLE_EQ(machine.route(3, 5).latency.value(), 0.6e-6);
  const std::vector<int> gpus = {0, 7};
  EXPECT_TRUE(machine.in_one_nvlink_domain(gpus));
}

TEST(Machine, SameRailGoesThroughTheLeafOnly) {
  // GPU 3 of node 0 -> GPU 3 of node 2: NIC latency and one switch, 2.5 + 0.2 us.
  const Machine machine = make_machine(spec_of("rail_fat_tree", 64));
  EXPECT_EQ(link_names(machine, 3, 19), (Names{"gpu3.nic.up", "gpu19.nic.down"}));
  EXPECT_NEAR(machine.route(3, 19).latency.value(), 2.7e-6, 1e-18);
}

TEST(Machine, CrossRailGoesThroughTheSpine) {
  // GPU 3 of node 0 (leaf 3) -> GPU 4 of node 2 (leaf 4): three switches, 2.5 + 3 * 0.2 us.
  const Machine machine = make_machine(spec_of("rail_fat_tree", 64));
  EXPECT_EQ(link_names(machine, 3, 20),
            (Names{"gpu3.nic.up", "leaf3.spine.up", "leaf4.spine.down", "gpu20.nic.down"}));
  EXPECT_NEAR(machine.route(3, 20).latency.value(), 3.1e-6, 1e-18);
}

TEST(Machine, SameRailOfAnotherPodGoesThroughTheSpine) {
  // Four nodes a pod: node 4 has leaf 8 + rail.
  const Machine machine = make_machine(spec_of("rail_fat_tree", 64));
  EXPECT_EQ(link_names(machine, 3, 35),
            (Names{"gpu3.nic.up", "leaf3.spine.up", "leaf11.spine.down", "gpu35.nic.down"}));
}

TEST(Machine, TrunkOfALeafIsItsNicsOverTheOversubscription) {
  // 4 nodes * 50 GB/s / 2 = 100 GB/s.
  MachineSpec spec = spec_of("rail_fat_tree", 64);
  spec.spine_oversubscription = 2;
  const Machine machine = make_machine(spec);
  for (const Link& link : machine.links) {
    if (link.name.find("spine") != std::string::npos) {
      EXPECT_DOUBLE_EQ(link.rate.value(), 100e9) << link.name;
    }
  }
}

TEST(Machine, RackOf72IsOneNvlinkDomain) {
  MachineSpec spec = spec_of("nvl72", 144);
  spec.gpus_per_node = 4;
  const Machine machine = make_machine(spec);
  EXPECT_EQ(link_names(machine, 0, 71), (Names{"gpu0.nvlink.up", "gpu71.nvlink.down"}));
  // GPU 72 is rail 0 of tray 18, pod 18 / 4 = 4.
  EXPECT_EQ(link_names(machine, 0, 72),
            (Names{"gpu0.nic.up", "leaf0.spine.up", "leaf16.spine.down", "gpu72.nic.down"}));
  EXPECT_EQ(machine.nvlink_domain_of(71), 0);
  EXPECT_EQ(machine.nvlink_domain_of(72), 1);
  EXPECT_EQ(machine.node_of(71), 17);
  const std::vector<int> across = {71, 72};
  EXPECT_FALSE(machine.in_one_nvlink_domain(across));
}

TEST(Machine, RoutesAreMirrorImages) {
  const Machine machine = make_machine(spec_of("rail_fat_tree", 80));
  for (const auto& [a, b] : {std::pair{0, 1}, {0, 8}, {0, 9}, {5, 77}}) {
    const Route there = machine.route(a, b);
    const Route back = machine.route(b, a);
    EXPECT_EQ(there.links.size(), back.links.size());
    EXPECT_DOUBLE_EQ(there.latency.value(), back.latency.value());
    std::set<int> both(there.links.begin(), there.links.end());
    both.insert(back.links.begin(), back.links.end());
    EXPECT_EQ(both.size(), there.links.size() + back.links.size());  // one direction each
  }
}

TEST(Machine, LinkNamesAreDistinct) {
  const Machine machine = make_machine(spec_of("rail_fat_tree", 104));
  std::set<std::string> names;
  for (const Link& link : machine.links) names.insert(link.name);
  EXPECT_EQ(names.size(), machine.links.size());
}

TEST(Machine, AHundredThousandGpusHaveFourLinksEachAndTwoPerLeaf) {
  // 12,500 nodes, 3,125 pods of 4, 8 leaves each: 4 * 100,000 + 2 * 8 * 3,125.
  const Machine machine = make_machine(spec_of("rail_fat_tree", 100'000));
  EXPECT_EQ(machine.links.size(), 450'000U);
  EXPECT_EQ(link_names(machine, 99'999, 99'998),
            (Names{"gpu99999.nvlink.up", "gpu99998.nvlink.down"}));
  // GPU 99999: node 12499, pod 3124, rail 7: leaf 3124 * 8 + 7.
  EXPECT_EQ(link_names(machine, 99'999, 0)[1], "leaf24999.spine.up");
}

// Two slots and what is between them, which carries all of them at once.
TEST(Machine, PcieRouteIsUpOfTheSourceAndDownOfTheDestination) {
  const Machine machine = make_machine(spec_of("pcie_node", 8));
  EXPECT_EQ(machine.links.size(), 16U);
  EXPECT_EQ(link_names(machine, 3, 5), (Names{"gpu3.pcie.up", "gpu5.pcie.down"}));
  EXPECT_DOUBLE_EQ(machine.route(3, 5).latency.value(), 0.6e-6);
  EXPECT_TRUE(make_machine(spec_of("pcie_node", 1)).links.empty());
  MachineSpec spec = spec_of("pcie_node", 8);
  spec.nvlink_rate = BytesPerSecond(0);
  EXPECT_NE(message_of(spec).find("pcie_rate is missing"), std::string::npos);
  EXPECT_NE(message_of(spec_of("pcie_node", 9)).find("at most 16"), std::string::npos);
}

TEST(Machine, UnknownKindNamesTheNearestOne) {
  EXPECT_EQ(message_of(spec_of("nvswitch_nod", 8)),
            "unknown machine kind 'nvswitch_nod'; did you mean 'nvswitch_node'? Known: single_gpu, "
            "nvswitch_node, pcie_node, rail_fat_tree, nvl72");
}

TEST(Machine, SizesOutsideTheKindsRangeAreErrors) {
  EXPECT_NE(message_of(spec_of("single_gpu", 2)).find("exactly 1"), std::string::npos);
  EXPECT_NE(message_of(spec_of("nvswitch_node", 9)).find("use kind rail_fat_tree"),
            std::string::npos);
  EXPECT_NE(message_of(spec_of("rail_fat_tree", 0)).find("expected 1 to 100000"),
            std::string::npos);
  EXPECT_NE(message_of(spec_of("rail_fat_tree", kMaxGpus + 1)).find("expected 1 to 100000"),
            std::string::npos);
  MachineSpec spec = spec_of("rail_fat_tree", 16);
  spec.gpus_per_node = 0;
  EXPECT_NE(message_of(spec).find("gpus_per_node is 0"), std::string::npos);
  spec = spec_of("rail_fat_tree", 16);
  spec.nodes_per_leaf = 0;
  EXPECT_NE(message_of(spec).find("nodes_per_leaf is 0"), std::string::npos);
}

TEST(Machine, NodesThatAreNotWholeWereAccepted) {
  EXPECT_NE(message_of(spec_of("rail_fat_tree", 13)).find("expected whole nodes of 8 GPUs"),
            std::string::npos);
  EXPECT_EQ(message_of(spec_of("rail_fat_tree", 7)), "no error");  // part of one node
}

TEST(Machine, MissingRatesAreErrorsOnlyWhereTheKindNeedsThem) {
  MachineSpec spec = spec_of("nvswitch_node", 8);
  spec.nic_rate = BytesPerSecond(0);
  EXPECT_EQ(message_of(spec), "no error");
  spec.nvlink_rate = BytesPerSecond(0);
  EXPECT_NE(message_of(spec).find("nvlink_rate is missing"), std::string::npos);
  spec = spec_of("rail_fat_tree", 8);
  spec.nic_rate = BytesPerSecond(0);
  EXPECT_EQ(message_of(spec), "no error");  // one node
  spec.num_gpus = 16;
  EXPECT_NE(message_of(spec).find("nic_rate is missing"), std::string::npos);
  spec = spec_of("rail_fat_tree", 16);
  spec.spine_oversubscription = 0.5;
  EXPECT_NE(message_of(spec).find("expected at least 1"), std::string::npos);
  spec = spec_of("rail_fat_tree", 16);
  spec.nic_latency = Seconds(-1e-6);
  EXPECT_NE(message_of(spec).find("nic_latency"), std::string::npos);
  spec = spec_of("rail_fat_tree", 16);
  spec.nvlink_rate = BytesPerSecond(std::numeric_limits<double>::quiet_NaN());
  EXPECT_NE(message_of(spec).find("nvlink_rate"), std::string::npos);
}

TEST(Machine, ADeviceWithoutMemoryIsAnError) {
  MachineSpec spec = spec_of("single_gpu", 1);
  spec.device.hbm_capacity = Bytes(0);
  EXPECT_NE(message_of(spec).find("no hbm_capacity"), std::string::npos);
  spec = spec_of("single_gpu", 1);
  spec.device.hbm_bandwidth = BytesPerSecond(0);
  EXPECT_NE(message_of(spec).find("no hbm_bandwidth"), std::string::npos);
}

TEST(Machine, AGpuThatDoesNotExistIsAnError) {
  const Machine machine = make_machine(spec_of("nvswitch_node", 4));
  EXPECT_THROW((void)machine.route(0, 4), std::invalid_argument);
  EXPECT_THROW((void)machine.route(-1, 0), std::invalid_argument);
  const std::vector<int> gpus = {0, 4};
  EXPECT_THROW((void)machine.in_one_nvlink_domain(gpus), std::invalid_argument);
}

// Three GPUs of a node and behind them two nodes of a cluster.
TEST(JoinedMachines, KeepTheirRoutesAndHaveWaysBetweenThem) {
  MachineSpec node{.name = "node", .kind = "nvswitch_node"};
  node.device.hbm_capacity = Bytes(1e9);
  node.device.hbm_bandwidth = BytesPerSecond(1e9);
  node.num_gpus = 8;
  node.nvlink_rate = BytesPerSecond(450e9);
  node.nvlink_latency = Seconds(1e-6);
  MachineSpec cluster = node;
  cluster.name = "cluster";
  cluster.kind = "rail_fat_tree";
  cluster.device.name = "other";
  cluster.num_gpus = 16;
  cluster.nic_rate = BytesPerSecond(50e9);
  cluster.nic_latency = Seconds(3e-6);
  const Machine front = make_machine(node);
  const Machine behind = make_machine(cluster);
  EXPECT_THROW(join_machines(front, 3, behind, {}, {}), std::invalid_argument);
  const Machine both = join_machines(front, 3, behind, BytesPerSecond(25e9), Seconds(7e-6));
  EXPECT_EQ(both.num_gpus(), 19);
  EXPECT_EQ(both.device_of(2).name, "");
  EXPECT_EQ(both.device_of(3).name, "other");
  std::set<std::string> names;
  for (const Link& link : both.links) names.insert(link.name);
  EXPECT_EQ(names.size(), both.links.size());
  const auto expect_as = [&](int from, int to, const Machine& own, int own_from, int own_to) {
    const Route found = both.route(from, to);
    const Route expected = own.route(own_from, own_to);
    EXPECT_EQ(found.latency, expected.latency);
    ASSERT_EQ(found.links.size(), expected.links.size());
    for (std::size_t i = 0; i < found.links.size(); ++i) {
      EXPECT_EQ(both.links[static_cast<std::size_t>(found.links[i])].rate,
                own.links[static_cast<std::size_t>(expected.links[i])].rate);
    }
  };
  expect_as(0, 2, front, 0, 2);
  expect_as(3, 4, behind, 0, 1);
  expect_as(3, 11, behind, 0, 8);  // the same rail
  expect_as(3, 12, behind, 0, 9);  // through the spine
  EXPECT_TRUE(both.in_one_nvlink_domain(std::vector<int>{0, 2}));
  EXPECT_FALSE(both.in_one_nvlink_domain(std::vector<int>{2, 3}));
  EXPECT_TRUE(both.in_one_nvlink_domain(std::vector<int>{3, 10}));
  EXPECT_FALSE(both.in_one_nvlink_domain(std::vector<int>{10, 11}));
  const Route between = both.route(1, 5);
  EXPECT_EQ(between.latency, Seconds(7e-6));
  ASSERT_EQ(between.links.size(), 2U);
  for (const int link : between.links) {
    EXPECT_EQ(both.links[static_cast<std::size_t>(link)].rate, BytesPerSecond(25e9));
  }
  EXPECT_THROW((void)both.route(0, 19), std::invalid_argument);
}

}  // namespace
}  // namespace orrery
