// One layer of routed experts in a design.

#include <pybind11/stl.h>

#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "kernels/experts/fused_moe/buffers.h"
#include "sim/cost/moe_stragglers.h"
#include "sim/cost/moe_tiles.h"
#include "sim/cost/symmetric_layout.h"
#include "sim/parallel/link_placement.h"
#include "sim/scenario/moe_layer.h"
#include "sim/units/parse.h"

namespace orrery::bindings {

namespace py = pybind11;

namespace {

MoeLayerResult layer(const Scenario& scenario, std::int64_t tokens, const std::string& mode,
                     const std::string& level, bool imposes_scores) {
  const MoeLayerRequest request{.tokens = tokens,
                                .mode = parse_launch_mode(mode),
                                .level = parse_step_level(level),
                                .imposes_scores = imposes_scores};
  const py::gil_scoped_release release;
  return simulate_moe_layer(scenario, request);
}

// A number of seconds or bytes.
template <typename Get>
auto plain(Get get) {
  return [get](const MoeLayerResult& result) { return get(result).value(); };
}

// Of each of the times its name and itself.
template <typename Use>
void for_each_time(MoeTileTimes& times, const Use& use) {
  use("launch", times.launch);
  use("per_expert", times.per_expert);
  use("per_token", times.per_token);
  use("per_choice", times.per_choice);
  use("per_round", times.per_round);
  use("per_rank", times.per_rank);
  use("send", times.send);
  use("links", times.links);
  use("begin", times.begin);
  use("step", times.step);
  use("step_row", times.step_row);
  use("write_row", times.write_row);
  use("gated", times.gated);
  use("quantize_row", times.quantize_row);
  use("hop", times.hop);
  use("hbm", times.hbm);
  use("sm", times.sm);
  use("x_bytes", times.x_bytes);
  use("l2_bytes", times.l2_bytes);
  use("returned", times.returned);
  use("sums", times.sums);
  use("end", times.end);
  use("end_of_ranks", times.end_of_ranks);
}
// Seconds, bytes a second and ratios by name.
std::map<std::string, double> by_name(MoeTileTimes times) {
  std::map<std::string, double> found;
  for_each_time(times, [&]<typename T>(const char* name, const T& value) {
    if constexpr (std::is_same_v<T, double>) {
      found[name] = value;
    } else {
      found[name] = value.value();
    }
  });
  return found;
}
std::map<std::string, double> tile_times(bool is_fp8) {
  return by_name(h200_moe_tile_times(is_fp8));
}
MoeTileTimes times_of(std::map<std::string, double> given) {
  MoeTileTimes times;
  for_each_time(times, [&]<typename T>(const char* name, T& value) {
    const auto found = given.extract(name);
    if (found.empty())
      throw std::invalid_argument(std::string("times: \"") + name + "\" is missing");
    value = T(found.mapped());
  });
  if (!given.empty()) {
    throw std::invalid_argument("times: \"" + given.begin()->first + "\" is unknown");
  }
  return times;
}
std::map<std::string, double> by_name(const FusedMoeMemory& memory) {
  return {{"rows", memory.rows.value()},
          {"results", memory.results.value()},
          {"between_layers", memory.between.value()},
          {"tables", memory.tables.value()},
          {"counters", memory.counters.value()}};
}
std::map<std::string, double> fused_moe_memory(std::int64_t tokens, std::int64_t hidden,
                                               std::int64_t ffn, std::int64_t experts,
                                               std::int64_t topk, std::int64_t ranks, int num_sms,
                                               bool is_fp8) {
  const FusedMoeShape shape{.tokens = tokens,
                            .hidden = hidden,
                            .ffn = ffn,
                            .experts = experts,
                            .topk = topk,
                            .is_fp8 = is_fp8,
                            .ranks = ranks};
  require_fused_moe_shape(shape);
  if (num_sms < 1) {
    throw std::invalid_argument("num_sms is " + std::to_string(num_sms) + ", expected at least 1");
  }
  return by_name(memory_of(fused_moe_buffers(shape, num_sms)));
}
std::map<std::string, double> symmetric_layout(std::int64_t tokens, std::int64_t hidden,
                                               std::int64_t experts, double element_bytes,
                                               std::int64_t tile_rows) {
  const SymmetricLayout layout{.tokens = tokens,
                               .hidden = hidden,
                               .experts = experts,
                               .element = Bytes(element_bytes),
                               .tile_rows = tile_rows};
  return {{"estimate_bytes", symmetric_layout_estimate(layout).value()},
          {"bytes", symmetric_layout_size(layout).value()}};
}

FusedMoeShape shape_of(std::int64_t tokens, std::int64_t hidden, std::int64_t ffn,
                       std::int64_t experts, std::int64_t topk, int activation, std::int64_t ranks,
                       bool is_fp8 = false, std::int64_t shared = 0) {
  if (activation < 0 || activation > static_cast<int>(ExpertActivation::kRelu)) {
    throw std::invalid_argument("activation is " + std::to_string(activation) +
                                ", expected 0 (SwiGLU), 1 (GELU) or 2 (ReLU)");
  }
  return {.tokens = tokens,
          .hidden = hidden,
          .ffn = ffn,
          .experts = experts,
          .topk = topk,
          .activation = static_cast<ExpertActivation>(activation),
          .is_fp8 = is_fp8,
          .ranks = ranks,
          .shared = shared};
}
std::map<std::int64_t, Seconds> by_rank(const std::map<std::int64_t, double>& seconds) {
  std::map<std::int64_t, Seconds> found;
  for (const auto& [rank, delay] : seconds) found.emplace(rank, Seconds(delay));
  return found;
}
std::map<std::string, double> moe_tiles(
    std::int64_t tokens, std::int64_t hidden, std::int64_t ffn, std::int64_t experts,
    std::int64_t topk, int activation, std::int64_t ranks,
    const std::map<std::string, double>& times, const std::string& order, int num_sms,
    const std::map<std::int64_t, double>& begin_delays,
    const std::map<std::int64_t, double>& stalls, bool is_bulk_synchronous, std::int64_t hosts,
    double nic_rate, double nic_latency, std::int64_t nic_queue, bool is_fp8, std::int64_t shared,
    const std::vector<double>& choices) {
  const FusedMoeShape shape =
      shape_of(tokens, hidden, ffn, experts, topk, activation, ranks, is_fp8, shared);
  FusedMoeShape of_a_host = shape;
  if (hosts > 0 && ranks % hosts == 0) of_a_host.ranks = ranks / hosts;
  require_fused_moe_shape(of_a_host);
  const MoeTileTimes given = times_of(times.empty() ? tile_times(is_fp8) : times);
  const MoeTileOptions options{.order = parse_moe_tile_order(order),
                               .num_sms = num_sms,
                               .delays = {.begin = by_rank(begin_delays), .stall = by_rank(stalls)},
                               .is_bulk_synchronous = is_bulk_synchronous,
                               .network = {.hosts = hosts,
                                           .rate = BytesPerSecond(nic_rate),
                                           .latency = Seconds(nic_latency),
                                           .queue = nic_queue},
                               .choices = choices};
  const py::gil_scoped_release release;
  const MoeLayerTime found = simulate_moe_tiles(shape, given, options);
  return {{"duration_s", found.duration.value()},
          {"routed_s", found.routed.value()},
          {"tiles_s", found.tiles.value()},
          {"busy", found.busy},
          {"most_outstanding", static_cast<double>(found.most_outstanding)}};
}
py::dict moe_tile_tasks(std::int64_t tokens, std::int64_t hidden, std::int64_t ffn,
                        std::int64_t experts, std::int64_t topk, int activation, std::int64_t ranks,
                        const std::map<std::string, double>& times, const std::string& order,
                        int num_sms, bool is_fp8, std::int64_t shared) {
  const FusedMoeShape shape =
      shape_of(tokens, hidden, ffn, experts, topk, activation, ranks, is_fp8, shared);
  require_fused_moe_shape(shape);
  const MoeTileTimes given = times_of(times.empty() ? tile_times(is_fp8) : times);
  const MoeTileOptions options{
      .order = parse_moe_tile_order(order), .num_sms = num_sms, .keeps_tasks = true};
  const std::vector<MoeTaskSpan> tasks = simulate_moe_tiles(shape, given, options).tasks;
  const auto whole = [&](std::int32_t MoeTaskSpan::* field) {
    return column<std::int32_t>(tasks, [field](const MoeTaskSpan& task) { return task.*field; });
  };
  const auto seconds = [&](Seconds MoeTaskSpan::* field) {
    return column<double>(tasks, [field](const MoeTaskSpan& t) { return (t.*field).value(); });
  };
  py::dict columns;
  columns["sm"] = whole(&MoeTaskSpan::sm);
  columns["layer"] = whole(&MoeTaskSpan::layer);
  columns["expert"] = whole(&MoeTaskSpan::expert);
  columns["tile"] = whole(&MoeTaskSpan::tile);
  columns["column"] = whole(&MoeTaskSpan::column);
  columns["taken_s"] = seconds(&MoeTaskSpan::taken);
  columns["ready_s"] = seconds(&MoeTaskSpan::ready);
  columns["end_s"] = seconds(&MoeTaskSpan::end);
  columns["counted_s"] = seconds(&MoeTaskSpan::counted);
  return columns;
}
std::map<std::string, double> by_name(const MoeStragglers::Time& time) {
  return {{"on_time_s", time.on_time.value()},
          {"median_s", time.median.value()},
          {"p95_s", time.p95.value()}};
}
std::map<std::string, std::map<std::string, double>> moe_stragglers(
    std::int64_t tokens, std::int64_t hidden, std::int64_t ffn, std::int64_t experts,
    std::int64_t topk, int activation, std::int64_t ranks,
    const std::map<std::string, double>& times, const std::string& jitter, int num_sms,
    const std::vector<double>& choices) {
  const FusedMoeShape shape = shape_of(tokens, hidden, ffn, experts, topk, activation, ranks);
  const MoeTileTimes given = times_of(times.empty() ? tile_times(false) : times);
  const MoeJitter published = published_jitter(jitter);
  const py::gil_scoped_release release;
  const MoeStragglers found =
      simulate_moe_stragglers(shape, given, published, {.num_sms = num_sms, .choices = choices});
  return {{"kernel", by_name(found.kernel)},
          {"stalled", by_name(found.stalled)},
          {"bulk_synchronous", by_name(found.bulk)}};
}
std::map<std::string, double> network_of(const MoeLayerResult& result) {
  if (!result.kernel || !result.kernel->network) return {};
  const NetworkLink& network = *result.kernel->network;
  return {{"nic_bytes_per_s", network.rate.value()}, {"nic_latency_s", network.latency.value()}};
}
py::dict tiles_of(const MoeLayerResult& result) {
  py::dict found;
  if (!result.kernel) return found;
  const FusedMoeShape& shape = result.kernel->shape;
  found["tokens"] = shape.tokens;
  found["hidden"] = shape.hidden;
  found["ffn"] = shape.ffn;
  found["experts"] = shape.experts;
  found["topk"] = shape.topk;
  found["activation"] = static_cast<int>(shape.activation);
  found["ranks"] = shape.ranks;
  found["is_fp8"] = shape.is_fp8;
  found["times"] = by_name(result.kernel->times);
  found["num_sms"] = result.kernel->num_sms;
  if (!result.kernel->choices.empty()) found["choices"] = result.kernel->choices;
  return found;
}

template <typename Quantity>
std::vector<std::vector<Quantity>> matrix_of(const std::vector<std::vector<double>>& values) {
  std::vector<std::vector<Quantity>> matrix;
  matrix.reserve(values.size());
  for (const std::vector<double>& row : values) matrix.emplace_back(row.begin(), row.end());
  return matrix;
}
py::dict experts_by_links(const std::vector<double>& choices,
                          const std::vector<std::vector<double>>& latency,
                          const std::vector<std::vector<double>>& rate, std::int64_t tokens,
                          double sent_row, double returned_row, double row, double expert,
                          bool overlaps, std::int64_t num_redundant, const std::string& order) {
  const BlockLinks links{.latency = matrix_of<Seconds>(latency),
                         .rate = matrix_of<BytesPerSecond>(rate)};
  const ExpertWork work{.tokens = tokens,
                        .sent_row = Bytes(sent_row),
                        .returned_row = Bytes(returned_row),
                        .row = Seconds(row),
                        .expert = Seconds(expert),
                        .overlaps = overlaps};
  const std::int64_t blocks = std::ssize(rate);
  if (order != "in_order" && order != "balanced" && order != "by_links") {
    throw std::invalid_argument("order is \"" + order +
                                "\", expected in_order, balanced or by_links");
  }
  ExpertPlacement placed = order == "in_order"
                               ? placement_in_order(std::ssize(choices), num_redundant, blocks)
                               : balance_experts(choices, num_redundant, blocks);
  if (order == "by_links") placed = place_by_links(std::move(placed), choices, links, work);
  std::vector<double> times;
  for (const Seconds time : block_times(placed, choices, links, work)) {
    times.push_back(time.value());
  }
  py::dict found;
  found["expert_of_slot"] = placed.expert_of_slot;
  found["choices"] = block_choices(placed, choices);
  found["times_s"] = times;
  return found;
}

// The kernel that is a layer: its memory and its tiles.
void bind_tiles(py::module_& module) {
  module.def(
      "fused_moe_memory", &fused_moe_memory, py::kw_only(), py::arg("tokens"), py::arg("hidden"),
      py::arg("ffn"), py::arg("experts"), py::arg("topk"), py::arg("ranks") = 1,
      py::arg("num_sms") = 132, py::arg("is_fp8") = false,
      "Bytes that fused_moe allocates on each GPU for a layer of `tokens` on each of `ranks`, "
      "by name: rows of x that may come, results, what is between_layers, tables, counters "
      "(kernels/experts/fused_moe/buffers.h). Raises ValueError on a shape that it does not "
      "take.");
  module.def("symmetric_layout", &symmetric_layout, py::kw_only(), py::arg("tokens"),
             py::arg("hidden"), py::arg("experts"), py::arg("element_bytes") = 4.0,
             py::arg("tile_rows") = 128,
             "Bytes of FlashDMoE's symmetric layout on each GPU, of `tokens` of a rank and the "
             "experts of all: estimate_bytes by the paper's Size(L) and bytes of the layout itself "
             "(sim/cost/symmetric_layout.h). Raises ValueError unless all are positive.");
  module.def("moe_tile_times", &tile_times, py::arg("is_fp8") = false,
             "What fused_moe's tiles, of bf16 or fp8, take on an H200: seconds, bytes a second and "
             "ratios by name "
             "(sim/cost/moe_tiles.h).");
  module.def(
      "moe_tiles", &moe_tiles, py::kw_only(), py::arg("tokens"), py::arg("hidden"), py::arg("ffn"),
      py::arg("experts"), py::arg("topk"), py::arg("activation") = 0, py::arg("ranks") = 1,
      py::arg("times") = std::map<std::string, double>(), py::arg("order") = "behind",
      py::arg("num_sms") = 132, py::arg("begin_delays_s") = std::map<std::int64_t, double>(),
      py::arg("stalls_s") = std::map<std::int64_t, double>(), py::arg("bulk_synchronous") = false,
      py::arg("hosts") = 1, py::arg("nic_bytes_per_s") = 0.0, py::arg("nic_latency_s") = 0.0,
      py::arg("nic_queue") = 0, py::arg("is_fp8") = false, py::arg("shared") = 0,
      py::arg("choices") = std::vector<double>(),
      "Simulates a launch of fused_moe tile by tile: duration_s, routed_s, tiles_s (when "
      "the first tasks begin and the last results are written) and busy, the part of the "
      "SMs' time between these in which they work. Seconds by rank: how much later it "
      "begins, and how long its SMs stand still in the middle. bulk_synchronous: the same "
      "tiles between two exchanges that wait for all ranks. hosts: as many ranks on each, and rows "
      "between them by each rank's NIC, which has nic_queue messages that are not acknowledged at "
      "most (0: any number); most_outstanding is how many there were. choices: that a token "
      "chooses "
      "each routed expert, rank after rank (none: all alike). Raises ValueError on shapes, "
      "times, delays, ranks, networks and choices that cannot be (sim/cost/moe_tiles.h).");
  module.def(
      "moe_tile_tasks", &moe_tile_tasks, py::kw_only(), py::arg("tokens"), py::arg("hidden"),
      py::arg("ffn"), py::arg("experts"), py::arg("topk"), py::arg("activation") = 0,
      py::arg("ranks") = 1, py::arg("times") = std::map<std::string, double>(),
      py::arg("order") = "behind", py::arg("num_sms") = 132, py::arg("is_fp8") = false,
      py::arg("shared") = 0,
      "The tasks of a rank in the launch that moe_tiles simulates, in the order in which they "
      "end, a column each: sm, layer (1 or 2), expert, tile of rows, first column, and taken_s, "
      "ready_s (the SM knows that what it needs is there), end_s and counted_s (others may know "
      "that it has ended). Raises ValueError as moe_tiles does.");
  module.def("moe_stragglers", &moe_stragglers, py::kw_only(), py::arg("tokens"), py::arg("hidden"),
             py::arg("ffn"), py::arg("experts"), py::arg("topk"), py::arg("activation") = 0,
             py::arg("ranks") = 2, py::arg("times") = std::map<std::string, double>(),
             py::arg("jitter") = "supercomputer", py::arg("num_sms") = 132,
             py::arg("choices") = std::vector<double>(),
             "on_time_s, median_s and p95_s of a layer whose ranks are late as published (jitter: "
             "supercomputer or vm): as one `kernel`, `stalled` in its middle as well, and "
             "`bulk_synchronous` (sim/cost/moe_stragglers.h). Raises ValueError as moe_tiles does, "
             "and for fewer than two ranks.");
  module.def(
      "experts_by_links", &experts_by_links, py::kw_only(), py::arg("choices"),
      py::arg("latency_s"), py::arg("rate_bytes_per_s"), py::arg("tokens"),
      py::arg("sent_row_bytes"), py::arg("returned_row_bytes"), py::arg("row_s"),
      py::arg("expert_s"), py::arg("overlaps") = true, py::arg("num_redundant") = 0,
      py::arg("order") = "by_links",
      "Experts placed by the links between ranks (sim/parallel/link_placement.h), or by `order` "
      "in_order or balanced: expert_of_slot, and of each rank `choices` of a token that fall on it "
      "and times_s. `choices`: that a token chooses each expert; latency_s and rate_bytes_per_s "
      "[from][to] of each two ranks; `tokens` of each rank; a row to an expert and its result in "
      "bytes; row_s of products of a row, expert_s of reading an expert's weights; overlaps: rows "
      "go back while others still come. Raises ValueError on links, loads and orders that cannot "
      "be.");
  module.def(
      "parse_seconds", [](const std::string& text) { return parse_seconds(text).value(); },
      py::arg("text"), "Seconds of a text with a unit, \"50 us\". Raises ValueError.");
}

}  // namespace

void bind_moe(py::module_& module) {
  using Result = MoeLayerResult;
  py::class_<Result>(module, "MoeLayerResult", "One simulated layer of routed experts.")
      .def_property_readonly("tokens", [](const Result& result) { return result.request.tokens; })
      .def_property_readonly(
          "mode", [](const Result& result) { return std::string(to_text(result.request.mode)); })
      .def_property_readonly("duration_s", plain([](const Result& r) { return r.duration; }))
      .def_property_readonly("measured_s", plain([](const Result& r) { return r.basis.measured; }))
      .def_property_readonly("interpolated_s",
                             plain([](const Result& r) { return r.basis.interpolated; }))
      .def_property_readonly("borrowed_s", plain([](const Result& r) { return r.basis.borrowed; }))
      .def_property_readonly("roofline_s", plain([](const Result& r) { return r.basis.roofline; }))
      .def_property_readonly("weights_bytes", plain([](const Result& r) { return r.weights; }))
      .def_property_readonly("activations_bytes",
                             plain([](const Result& r) { return r.activations; }))
      .def_property_readonly("read_bytes", plain([](const Result& r) { return r.bytes_read; }))
      .def_property_readonly("written_bytes",
                             plain([](const Result& r) { return r.bytes_written; }))
      .def_property_readonly(
          "buffers_bytes",
          [](const Result& result) {
            return result.kernel ? by_name(result.kernel->buffers)
                                 : std::map<std::string, double>();
          },
          "What one kernel that is the layer allocates on a GPU, by name; empty of other designs.")
      .def_property_readonly("symmetric_layout_bytes", plain([](const Result& r) {
                               return r.kernel ? r.kernel->symmetric_layout : Bytes();
                             }))
      .def_property_readonly("network", &network_of,
                             "Of one kernel that is the layer, nic_bytes_per_s and nic_latency_s "
                             "(one way) between hosts of its machine; else, or of one host, empty.")
      .def_property_readonly("tiles", &tiles_of,
                             "Of one kernel that is the layer, what moe_tiles takes; else empty.")
      .def_property_readonly("num_kernels",
                             [](const Result& result) { return result.counts.kernels; })
      .def_property_readonly("num_collectives",
                             [](const Result& result) { return result.counts.collectives; })
      .def_property_readonly("num_syncs", [](const Result& result) { return result.counts.syncs; })
      .def_readonly("timeline", &Result::timeline)
      .def_property_readonly(
          "plan_text", [](const Result& result) { return to_text(result.plan); },
          "The plan of all ranks in its text form.")
      .def_property_readonly(
          "whole_plan_text", [](const Result& result) { return to_text(result.whole); },
          "The plan of one rank, before it was split.");
  module.def("moe_layer", &layer, py::arg("scenario"), py::arg("tokens"), py::arg("mode"),
             py::arg("level"), py::arg("imposes_scores") = false,
             "Simulates one layer of routed experts of the scenario's design and placement.");
  bind_tiles(module);
}

}  // namespace orrery::bindings
