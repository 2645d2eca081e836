// Timing of the simulator itself, for `orrery bench`.

#include <pybind11/pybind11.h>

#include "bindings/bind.h"
#include "sim/scenario/step_timing.h"

namespace py = pybind11;

namespace orrery::bindings {
namespace {

py::dict time(const Scenario& scenario, const Batch& batch, const std::string& level, int repeats) {
  const StepLevel parsed = parse_step_level(level);
  StepTiming timing;
  {
    const py::gil_scoped_release release;
    timing = time_step(scenario, batch, parsed, repeats);
  }
  py::dict result;
  result["wall_s"] = timing.wall.value();
  result["lower_s"] = timing.lower.value();
  result["makespan_s"] = timing.makespan.value();
  result["num_ops"] = timing.num_ops;
  result["num_ranks"] = timing.num_ranks;
  return result;
}

}  // namespace

void bind_bench(py::module_& module) {
  module.def("time_step", &time, py::arg("scenario"), py::arg("batch"), py::arg("level"),
             py::arg("repeats"), "Times the simulation of one engine step of one replica.");
}

}  // namespace orrery::bindings
