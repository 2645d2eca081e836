#include "sim/scenario/disaggregated_run.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include "sim/cost/csv_reader.h"
#include "sim/machine/machine_link.h"
#include "sim/parallel/kv_flows.h"
#include "sim/units/text.h"

namespace orrery {

namespace {

Scenario side_of(const Scenario& scenario, const SidePlacement& side, std::string_view name) {
  Scenario own = scenario;
  own.side = name;
  own.replicas = side.placement.replicas;
  own.mesh = side.placement.mesh;
  own.precision = precision_of(side, own.precision);
  own.engine = engine_of(side, scenario.engine);
  return own;
}

// Of the machine's own tables; empty without any.
TransferTime measured_time(const Scenario& scenario, Bytes piece) {
  TransferTime time;
  if (const auto file = links_table(scenario.collective_tables, "kv_transfer.csv"); !file.empty()) {
    time.points = read_transfer_points(file, piece);
  }
  if (const auto file = links_table(scenario.collective_tables, "kv_transfer_served.csv");
      !file.empty()) {
    const ServedTransfers served = read_served_transfers(file);
    time.start = served.start;
    time.beside_steps = served.time_ratio;
  }
  return time;
}

// Between two GPUs, by the narrowest link of their route.
TransferTime route_time(const Machine& machine, int from, int to) {
  const Route route = machine.route(from, to);
  TransferTime time{.latency = route.latency};
  for (const int link : route.links) {
    const BytesPerSecond rate = machine.links[static_cast<std::size_t>(link)].rate;
    time.rate = time.rate == BytesPerSecond(0) ? rate : std::min(time.rate, rate);
  }
  return time;
}

// KV caches travel in the narrower of both sides' formats: who sends casts before, or who receives
// casts behind it.
DType dtype_on_the_way(const Scenario& scenario) {
  const DType from = prefill_side(scenario).precision.kv_cache;
  const DType to = decode_side(scenario).precision.kv_cache;
  return bytes_per_element(from) < bytes_per_element(to) ? from : to;
}

KvFlows flows_of(const Scenario& scenario) {
  const Disaggregation& placed = *scenario.disaggregation;
  return kv_flows(scenario.model_config, placed.prefill.placement.mesh,
                  placed.decode.placement.mesh, dtype_on_the_way(scenario));
}

// Bytes of a block of keys or values of one layer that lie in one piece on both sides: `kv_block`
// over the pools of a decode GPU, or the heads of them that one prefill GPU has.
Bytes piece_of(const Scenario& scenario, Bytes kv_block) {
  const Disaggregation& placed = *scenario.disaggregation;
  const ModelConfig& model = scenario.model_config;
  const int pp = placed.decode.placement.mesh.pp;
  double layers = 0;
  double all_pools = 0;
  for (const LayerConfig& layer : model.layers) {
    if (!layer.caches_tokens()) continue;
    layers += 1;
    all_pools +=
        layer.attention == AttentionKind::kMla ? 1 : 2;  // a latent is key and value in one
  }
  const double pools = layers > 0 ? all_pools / layers * std::ceil(layers / pp) : 1.0;
  const bool is_latent = model.layers.front().attention == AttentionKind::kMla;
  const std::int64_t heads = is_latent ? 1 : model.num_key_value_heads;
  const auto held = [&](const SidePlacement& side) {
    return static_cast<double>(std::max<std::int64_t>(heads / side.placement.mesh.tp, 1));
  };
  return kv_block / pools * std::min(1.0, held(placed.prefill) / held(placed.decode));
}

// Bytes of one KV block over all GPUs of a data-parallel rank.
Bytes kv_block_of_rank(const Scenario& side) {
  Mesh mesh = side.mesh;
  mesh.pp = 1;
  return kv_bytes_per_rank(side.model_config, mesh, side.precision.kv_cache, 1) *
         static_cast<double>(side.engine.block_size * mesh.tp);
}

// Data-parallel rank `rank` of all of a side's, from GPU `first` on: its first GPU.
int gpu_of_rank(const Placement& side, int first, int rank) {
  const int dp = side.mesh.dp;
  return first + rank / dp * num_ranks(side.mesh) + rank % dp * side.mesh.tp;
}

// Of all replicas.
int num_dp_ranks(const SidePlacement& side) {
  return side.placement.replicas * side.placement.mesh.dp;
}

}  // namespace

Scenario prefill_side(const Scenario& scenario) {
  Scenario side = side_of(scenario, scenario.disaggregation->prefill, kPrefillSide);
  if (const auto& setting = scenario.disaggregation->prefill_setting) {
    static_cast<MachineSetting&>(side) = *setting;
  }
  return side;
}

Scenario decode_side(const Scenario& scenario) {
  return side_of(scenario, scenario.disaggregation->decode, kDecodeSide);
}

Scenario side_alone(const Scenario& scenario, std::string_view side) {
  const bool is_side = side == kPrefillSide || side == kDecodeSide;
  if (!is_side || !scenario.disaggregation) {
    throw std::invalid_argument("found side '" + std::string(side) + "' of " + scenario.name +
                                "; expected prefill or decode, of a scenario with disaggregation");
  }
  Scenario alone = side == kPrefillSide ? prefill_side(scenario) : decode_side(scenario);
  alone.disaggregation.reset();
  return alone;
}

std::vector<TransferPoint> read_transfer_points(const std::filesystem::path& file, Bytes piece) {
  try {
    CsvReader csv(file);
    const int block_bytes = csv.require("block_bytes");
    const int layout = csv.require("layout");
    const int blocks = csv.require("blocks");
    const int bytes = csv.require("bytes");
    const int time = csv.require("time_us");
    std::map<double, std::map<double, double>> times;  // block size, bytes, seconds
    while (csv.next()) {
      if (csv.integer(blocks) > 1 && csv.text(layout) != "scattered") {
        continue;
      }
      auto& of_size = times[csv.positive_number(block_bytes)];
      const double seconds = csv.positive_number(time) * 1e-6;
      const auto [known, is_new] = of_size.emplace(csv.positive_number(bytes), seconds);
      if (!is_new) {
        known->second = std::min(known->second, seconds);
      }
    }
    if (times.empty()) {
      csv.fail("found no row; expected transfers of scattered blocks");
    }
    const auto nearest = std::ranges::min_element(times, {}, [&](const auto& item) {
      return std::abs(std::log(item.first / piece.value()));
    });
    std::vector<TransferPoint> points;
    for (const auto& [size, seconds] : nearest->second) {
      points.push_back({.bytes = Bytes(size), .time = Seconds(seconds)});
    }
    return points;
  } catch (const ScenarioError&) {
    throw;
  } catch (const std::invalid_argument& error) {
    throw ScenarioError(file.string(), 0, 0, error.what());
  }
}

ServedTransfers read_served_transfers(const std::filesystem::path& file) {
  try {
    CsvReader csv(file);
    const int start = csv.require("start_us");
    const int ratio = csv.require("time_ratio");
    if (!csv.next()) csv.fail("found no row; expected one, of a service");
    const ServedTransfers served{.start = Seconds(csv.positive_number(start) * 1e-6),
                                 .time_ratio = csv.positive_number(ratio)};
    if (csv.next()) csv.fail("found a second row; expected one, of a service");
    return served;
  } catch (const ScenarioError&) {
    throw;
  } catch (const std::invalid_argument& error) {
    throw ScenarioError(file.string(), 0, 0, error.what());
  }
}

namespace {

// Between two machines: what the scenario says, and the networks of both.
TransferLinks links_of_two_machines(const Scenario& scenario, const TransferLink& port) {
  const Disaggregation& placed = *scenario.disaggregation;
  const MachineSpec& from = prefill_setting(scenario).machine_spec;
  const MachineSpec& to = scenario.machine_spec;
  const auto network = link_between(from, to);
  TransferLink link = port;
  link.fabric = 1;
  link.time = {.latency = placed.transfer.latency.value_or(network_latency(from, to)),
               .rate = placed.transfer.rate ? *placed.transfer.rate : network.value().rate};
  const std::size_t num_links = static_cast<std::size_t>(num_dp_ranks(placed.prefill)) *
                                static_cast<std::size_t>(num_dp_ranks(placed.decode));
  return {.links = std::vector<TransferLink>(num_links, link),
          .source = placed.transfer.rate ? "as the scenario says"
                                         : "slower network of " + from.name + " and " + to.name};
}

}  // namespace

TransferLinks transfer_links(const Scenario& scenario, const Machine& machine, Bytes kv_block) {
  const Disaggregation& placed = *scenario.disaggregation;
  const Placement& prefill = placed.prefill.placement;
  const Placement& decode = placed.decode.placement;
  double leaving = 1;
  double entering = 1;
  if (!held_alike(placed)) {
    const KvFlows flows = flows_of(scenario);
    const Bytes most = std::max(flows.most_sent(), flows.most_received());
    leaving = flows.most_sent() / most;
    entering = flows.most_received() / most;
  }
  if (placed.has_two_machines) {
    return links_of_two_machines(scenario, {.leaving = leaving, .entering = entering});
  }
  const TransferTime measured = measured_time(scenario, piece_of(scenario, kv_block));
  TransferLinks found;
  std::set<std::string> sources;
  for (int p = 0; p < num_dp_ranks(placed.prefill); ++p) {
    for (int d = 0; d < num_dp_ranks(placed.decode); ++d) {
      const int from = gpu_of_rank(prefill, 0, p);
      const int to = gpu_of_rank(decode, num_gpus(prefill), d);
      const bool is_nvlink = machine.nvlink_domain_of(from) == machine.nvlink_domain_of(to);
      const bool is_measured = is_nvlink && !measured.points.empty() && !placed.transfer.rate;
      TransferLink link{.fabric = is_nvlink ? 0 : 1,
                        .time = is_measured ? measured : route_time(machine, from, to),
                        .leaving = leaving,
                        .entering = entering};
      link.time.rate = placed.transfer.rate.value_or(link.time.rate);
      link.time.latency = placed.transfer.latency.value_or(link.time.latency);
      sources.insert(placed.transfer.rate ? "as the scenario says"
                     : is_measured        ? "measured on " + scenario.machine_spec.name
                                          : "rate of the " +
                                         std::string(is_nvlink ? "NVLink" : "network") + " link");
      found.links.push_back(std::move(link));
    }
  }
  for (const std::string& source : sources) {
    found.source += (found.source.empty() ? "" : ", ") + source;
  }
  return found;
}

MovedBlock moved_block(const Scenario& scenario, Bytes kv_block) {
  if (held_alike(*scenario.disaggregation)) {
    return {.of_gpu = kv_block, .of_all = kv_block_of_rank(decode_side(scenario))};
  }
  const KvFlows flows = flows_of(scenario);
  const auto tokens = static_cast<double>(scenario.engine.block_size);
  return {.of_gpu = std::max(flows.most_sent(), flows.most_received()) * tokens,
          .of_all = flows.total() * tokens};
}

std::int64_t num_moved_layers(const Scenario& scenario) {
  const Disaggregation& placed = *scenario.disaggregation;
  if (!placed.transfer.layerwise) return 0;
  const std::int64_t pp = placed.prefill.placement.mesh.pp;
  return std::max<std::int64_t>(std::ssize(scenario.model_config.layers) / pp, 1);
}

}  // namespace orrery
