// orrery._core: the simulator for Python. The interface for people is the package around it.

#include <pybind11/pybind11.h>

#include "bindings/bind.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "The simulator behind the package `orrery`.";
  module.attr("__version__") = ORRERY_VERSION;
  orrery::bindings::bind_machine(module);
  orrery::bindings::bind_model(module);
  orrery::bindings::bind_timeline(module);
  orrery::bindings::bind_serve(module);
  orrery::bindings::bind_yaml(module);
  orrery::bindings::bind_traces(module);
  orrery::bindings::bind_scenario(module);
  orrery::bindings::bind_moe(module);
  orrery::bindings::bind_validation(module);
  orrery::bindings::bind_plan(module);
  orrery::bindings::bind_explain(module);
  orrery::bindings::bind_explore(module);
  orrery::bindings::bind_bench(module);
}
