// Timelines: columns for pandas, metrics, the Perfetto trace.

#include <pybind11/stl.h>

#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/bind.h"
#include "sim/scenario/run.h"
#include "sim/timeline/timeline.h"

namespace orrery::bindings {

namespace py = pybind11;

namespace {

py::dict span_columns(const Timeline& timeline) {
  const auto& spans = timeline.spans;
  std::vector<std::string> ops;
  std::vector<std::string> kinds;
  std::vector<std::string> bases;
  for (const Span& span : spans) {
    ops.push_back(timeline.op_names[static_cast<std::size_t>(span.op)]);
    kinds.emplace_back(to_text(span.kind));
    bases.emplace_back(to_text(span.basis));
  }
  py::dict columns;
  columns["op"] = ops;
  columns["copy"] = column<std::int32_t>(spans, [](const Span& s) { return s.copy; });
  columns["rank"] = column<std::int32_t>(spans, [](const Span& s) { return s.rank; });
  columns["stream"] = column<std::int32_t>(spans, [](const Span& s) { return s.stream; });
  columns["kind"] = kinds;
  columns["basis"] = bases;
  columns["start_s"] = column<double>(spans, [](const Span& s) { return s.start.value(); });
  columns["end_s"] = column<double>(spans, [](const Span& s) { return s.end.value(); });
  return columns;
}

py::dict link_columns(const Timeline& timeline) {
  const auto& spans = timeline.link_spans;
  std::vector<std::string> links;
  std::vector<std::string> ops;
  for (const LinkSpan& span : spans) {
    links.push_back(timeline.links[static_cast<std::size_t>(span.link)]);
    ops.push_back(timeline.op_names[static_cast<std::size_t>(span.op)]);
  }
  py::dict columns;
  columns["link"] = links;
  columns["op"] = ops;
  columns["bytes"] = column<double>(spans, [](const LinkSpan& s) { return s.bytes.value(); });
  columns["start_s"] = column<double>(spans, [](const LinkSpan& s) { return s.start.value(); });
  columns["end_s"] = column<double>(spans, [](const LinkSpan& s) { return s.end.value(); });
  return columns;
}

py::dict instruction_columns(const Timeline& timeline) {
  const auto& spans = timeline.instructions;
  std::vector<std::string> kinds;
  std::vector<std::string> names;
  for (const InstructionSpan& span : spans) {
    kinds.push_back(span.kind);
    names.push_back(span.name);
  }
  const auto seconds = [&](Seconds InstructionSpan::* field) {
    return column<double>(spans, [field](const InstructionSpan& s) { return (s.*field).value(); });
  };
  py::dict columns;
  columns["sm"] = column<std::int32_t>(spans, [](const InstructionSpan& s) { return s.sm; });
  columns["kind"] = kinds;
  columns["name"] = names;
  columns["start_s"] = seconds(&InstructionSpan::start);
  columns["ready_s"] = seconds(&InstructionSpan::ready);
  columns["end_s"] = seconds(&InstructionSpan::end);
  columns["weights_s"] = seconds(&InstructionSpan::weights);
  return columns;
}

// Throws std::invalid_argument for a rank that nothing was simulated on, naming those that are
// there.
void check_rank(const Timeline& timeline, int rank) {
  std::set<int> ranks;
  for (const Span& span : timeline.spans) ranks.insert(span.rank);
  if (ranks.contains(rank)) return;
  std::string there;
  for (const int known : ranks) there += (there.empty() ? "" : ", ") + std::to_string(known);
  throw std::invalid_argument("found no rank " + std::to_string(rank) +
                              " in the timeline; it has " + (there.empty() ? "none" : there));
}

}  // namespace

void bind_timeline(py::module_& module) {
  py::class_<Timeline>(module, "Timeline", "When every op of a plan ran, on ranks and streams.")
      .def_property_readonly("makespan_s",
                             [](const Timeline& timeline) { return makespan(timeline).value(); })
      .def(
          "exposed_communication_s",
          [](const Timeline& timeline, int rank) {
            check_rank(timeline, rank);
            return exposed_communication(timeline, rank).value();
          },
          py::arg("rank") = 0,
          "Time in seconds during which communication runs on `rank` and no kernel does.")
      .def(
          "busy_s",
          [](const Timeline& timeline, int rank) {
            check_rank(timeline, rank);
            py::dict times;
            for (const SpanKind kind : {SpanKind::kKernel, SpanKind::kComm, SpanKind::kHost}) {
              times[py::str(std::string(to_text(kind)))] = busy(timeline, rank, kind).value();
            }
            return times;
          },
          py::arg("rank") = 0, "Seconds during which each kind of span runs on `rank`.")
      .def("columns", &span_columns, "One array per column over the spans.")
      .def("link_columns", &link_columns, "One array per column over the transfers on links.")
      .def("instruction_columns", &instruction_columns,
           "One array per column over the instructions of a step that is one kernel, by SM.")
      .def(
          "to_perfetto", [](const Timeline& timeline) { return to_perfetto(timeline); },
          "Chrome trace event JSON; opens in Perfetto.")
      .def("__len__", [](const Timeline& timeline) { return timeline.spans.size(); })
      .def("__repr__", [](const Timeline& timeline) {
        return "Timeline(" + std::to_string(timeline.spans.size()) + " spans)";
      });
}

}  // namespace orrery::bindings
