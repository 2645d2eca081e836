// Requests of a workload that is in memory, and foreign traces, which orrery/traces.py reads.

#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/traces.h"
#include "sim/scenario/foreign_trace.h"
#include "sim/scenario/reader.h"
#include "sim/serve/sessions.h"
#include "sim/serve/workload.h"

namespace orrery::bindings {

namespace py = pybind11;

namespace {

using Seconds64 = py::array_t<double, py::array::c_style | py::array::forcecast>;
using Counts64 = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;

template <typename Array>
auto span_of(const Array& array) {
  return std::span(array.data(), static_cast<std::size_t>(array.size()));
}

Requests requests_of(const Seconds64& arrival_s, const Counts64& prompt_tokens,
                     const Counts64& output_tokens, std::vector<std::string> notes,
                     const std::vector<std::string>& session,
                     const std::optional<Seconds64>& wait_s) {
  try {
    Workload workload = column_trace("workload.requests", span_of(arrival_s),
                                     span_of(prompt_tokens), span_of(output_tokens));
    if (!session.empty()) {
      group_sessions(workload, session, wait_s ? span_of(*wait_s) : std::span<const double>());
    }
    workload.notes = std::move(notes);
    return {.workload = std::make_shared<const Workload>(std::move(workload))};
  } catch (const std::invalid_argument& error) {
    throw ScenarioError("", 0, 0, error.what());
  }
}

py::dict columns(const Requests& requests) {
  const std::vector<Request>& rows = requests.workload->requests;
  py::dict columns;
  columns["arrival_s"] = column<double>(rows, [](const Request& r) { return r.arrival.value(); });
  columns["prompt_tokens"] =
      column<std::int64_t>(rows, [](const Request& r) { return r.prompt_tokens; });
  columns["output_tokens"] =
      column<std::int64_t>(rows, [](const Request& r) { return r.output_tokens; });
  return columns;
}

// What the simulator reads itself; none of another format.
std::optional<Requests> own_requests(const std::filesystem::path& file) {
  switch (trace_format(file)) {
    case TraceFormat::kCsv:
      return Requests{std::make_shared<const Workload>(read_csv_trace(file))};
    case TraceFormat::kMooncakeJsonl:
      return Requests{std::make_shared<const Workload>(read_mooncake_trace(file))};
    case TraceFormat::kForeign:
      return std::nullopt;
  }
  return std::nullopt;
}

std::vector<double> poisson_arrivals_s(double requests_per_s, std::int64_t count,
                                       std::uint64_t seed) {
  const LengthDistribution one{.mean = 1, .min = 1, .max = 1};
  std::vector<double> arrivals;
  arrivals.reserve(static_cast<std::size_t>(count));
  for (const Request& request : open_loop(requests_per_s, 1, count, one, one, seed).requests) {
    arrivals.push_back(request.arrival.value());
  }
  return arrivals;
}

// Python's ValueError and ModuleNotFoundError say what is wrong with a file.
Workload read_in_python(const std::filesystem::path& file, const TraceOptions& options,
                        std::uint64_t seed) {
  const py::gil_scoped_acquire acquire;
  try {
    const py::object read = py::module_::import("orrery.traces").attr("read");
    return *read(file, options, seed).cast<Requests>().workload;
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_ValueError) && !error.matches(PyExc_ModuleNotFoundError)) throw;
    throw std::invalid_argument(py::str(error.value()).cast<std::string>());
  }
}

}  // namespace

ProjectPaths project_paths(const std::string& root) {
  return {.root = root, .traces = std::make_shared<const TraceReader>(read_in_python)};
}

void bind_traces(py::module_& module) {
  py::class_<Requests>(module, "Requests", "The requests of a workload that is in memory.")
      .def(py::init(&requests_of), py::kw_only(), py::arg("arrival_s"), py::arg("prompt_tokens"),
           py::arg("output_tokens"), py::arg("notes") = std::vector<std::string>(),
           py::arg("session") = std::vector<std::string>(), py::arg("wait_s") = py::none(),
           "`notes` become warnings of what is simulated with them. `session` names the session "
           "that "
           "each is a turn of, `wait_s` what passes between the answer before and a turn.")
      .def("columns", &columns, "One array per column over the requests; the first arrives at 0.")
      .def_property_readonly("notes",
                             [](const Requests& requests) { return requests.workload->notes; })
      .def("__len__", [](const Requests& requests) { return requests.workload->requests.size(); });
  py::class_<TraceOptions>(module, "TraceOptions", "How a scenario says that a trace is read.")
      .def_property_readonly("arrival",
                             [](const TraceOptions& trace) { return trace.columns.arrival; })
      .def_property_readonly("prompt",
                             [](const TraceOptions& trace) { return trace.columns.prompt; })
      .def_property_readonly("output",
                             [](const TraceOptions& trace) { return trace.columns.output; })
      .def_property_readonly("session",
                             [](const TraceOptions& trace) { return trace.columns.session; })
      .def_property_readonly("wait", [](const TraceOptions& trace) { return trace.columns.wait; })
      .def_readonly("time_unit", &TraceOptions::time_unit)
      .def_readonly("sort", &TraceOptions::sort)
      .def_readonly("drop_invalid", &TraceOptions::drop_invalid)
      .def_readonly("requests_per_s", &TraceOptions::requests_per_s)
      .def_readonly("chars_per_token", &TraceOptions::chars_per_token);
  module.def("own_requests", &own_requests, py::arg("file"),
             "Requests of a trace that the simulator reads itself; None of another format.");
  module.def("poisson_arrivals_s", &poisson_arrivals_s, py::arg("requests_per_s"), py::kw_only(),
             py::arg("count"), py::arg("seed"), "Arrivals as a scenario's `poisson` draws them.");
}

}  // namespace orrery::bindings
