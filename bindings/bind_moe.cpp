// One layer of routed experts in a design.

#include <pybind11/stl.h>

#include <string>

#include "bindings/bind.h"
#include "sim/scenario/moe_layer.h"

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
}

}  // namespace orrery::bindings
