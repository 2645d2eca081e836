#include "sim/scenario/expert_site.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "sim/cost/csv_reader.h"
#include "sim/cost/roofline.h"
#include "sim/machine/machine.h"
#include "sim/scenario/measured_tables.h"
#include "sim/serve/expert_links.h"

namespace orrery {

namespace {

using PairLinks = std::map<std::pair<int, int>, PairLink>;

PairLink link_of_route(const Machine& machine, int from, int to) {
  const Route route = machine.route(from, to);
  PairLink link{.latency = route.latency};
  for (const int i : route.links) {
    const BytesPerSecond rate = machine.links[static_cast<std::size_t>(i)].rate;
    link.rate = link.rate == BytesPerSecond(0) ? rate : std::min(link.rate, rate);
  }
  return link;
}

// Whether the table has every pair of GPUs that `ranks` have on their hosts.
bool has_all_pairs(const PairLinks& links, const Machine& machine, const std::vector<int>& ranks) {
  const int gpus = machine.spec.gpus_per_node;
  for (const int from : ranks) {
    for (const int to : ranks) {
      if (from == to || machine.node_of(from) != machine.node_of(to)) continue;
      if (!links.contains({from % gpus, to % gpus})) return false;
    }
  }
  return true;
}

// Of each two blocks those between the ranks that hold their first slices.
BlockLinks block_links(const Scenario& scenario, const MachineSetting& setting, const Mesh& mesh) {
  const Machine machine = make_machine(machine_part(setting.machine_spec, num_ranks(mesh)));
  std::vector<int> ranks;
  for (const std::vector<int>& block : ranks_of_blocks(scenario.model_config, mesh)) {
    ranks.push_back(block.front());
  }
  PairLinks measured;
  if (const auto file = links_table(setting.collective_tables, "nvlink.csv"); !file.empty()) {
    measured = read_pair_links(file);
  }
  const bool is_measured = has_all_pairs(measured, machine, ranks);
  const int gpus = machine.spec.gpus_per_node;
  BlockLinks links;
  for (const int from : ranks) {
    auto& latency = links.latency.emplace_back();
    auto& rate = links.rate.emplace_back();
    for (const int to : ranks) {
      PairLink link;
      if (from != to) {
        link = is_measured && machine.node_of(from) == machine.node_of(to)
                   ? measured.at({from % gpus, to % gpus})
                   : link_of_route(machine, from, to);
      }
      latency.push_back(link.latency);
      rate.push_back(link.rate);
    }
  }
  return links;
}

ExpertWork expert_work(const Scenario& scenario, const Device& device, const Mesh& mesh,
                       const Precision& precision) {
  const ModelConfig& model = scenario.model_config;
  const DType format = precision.expert_weights.value_or(precision.weights);
  constexpr double kRowBytes = 2;  // bf16, but for rows that the one kernel sends as fp8
  const bool sends_fp8 = scenario.moe.design == MoeDesign::kPersistent && format == DType::kFp8;
  const auto hidden = static_cast<double>(model.hidden_size);
  // Gate, up and down.
  const double weights = 3 * hidden * static_cast<double>(model.moe_intermediate_size);
  return {.tokens = scenario.engine.max_num_batched_tokens * mesh.dp / mesh.ep,
          .sent_row = Bytes(hidden * (sends_fp8 ? 1 : kRowBytes)),
          .returned_row = Bytes(hidden * kRowBytes),
          .row = Flops(2 * weights) / peak_flops(device, format),
          .expert = Bytes(weights * bytes_per_element(format)) / device.hbm_bandwidth,
          .overlaps = scenario.moe.design == MoeDesign::kPersistent};
}

}  // namespace

ExpertSite expert_site(const Scenario& scenario, const MachineSetting& setting, const Mesh& mesh,
                       const Precision& precision) {
  ExpertSite site{.gpus_per_node = setting.machine_spec.gpus_per_node};
  if (scenario.moe.experts != ExpertOrder::kByLinks || mesh.ep == 1) return site;
  if (mesh.ffn_instances > 0) {
    throw std::invalid_argument(
        "experts by_links beside ffn_instances, whose experts are on ranks without tokens; "
        "expected experts balanced");
  }
  site.links = block_links(scenario, setting, mesh);
  site.work = expert_work(scenario, setting.machine_spec.device, mesh, precision);
  return site;
}

std::map<std::pair<int, int>, PairLink> read_pair_links(const std::filesystem::path& file) {
  CsvReader csv(file);
  const int probe = csv.require("probe");
  const int method = csv.require("method");
  const int traffic = csv.require("traffic");
  const int from = csv.require("from");
  const int to = csv.require("to");
  const int time = csv.require("time_us");
  const int rate = csv.require("gbytes_per_s");
  PairLinks links;
  while (csv.next()) {
    if (csv.text(method) != "sm_store" || csv.text(traffic) != "one_way") continue;
    const std::pair pair(static_cast<int>(csv.integer(from)), static_cast<int>(csv.integer(to)));
    if (csv.text(probe) == "latency_store") {
      const Seconds latency(csv.positive_number(time) * 1e-6);
      links[pair].latency = latency;
      PairLink& back = links[{pair.second, pair.first}];
      if (back.latency == Seconds(0)) back.latency = latency;
    } else if (csv.text(probe) == "bandwidth") {
      links[pair].rate = BytesPerSecond(csv.positive_number(rate) * 1e9);
    }
  }
  for (const auto& [pair, link] : links) {
    if (link.latency > Seconds(0) && link.rate > BytesPerSecond(0)) continue;
    csv.fail("found GPUs " + std::to_string(pair.first) + " and " + std::to_string(pair.second) +
             " without a latency_store, or without a bandwidth one_way by sm_store; expected both "
             "of each pair, as orrery-gpu time links writes them");
  }
  return links;
}

}  // namespace orrery
