#pragma once

// One function per room adds its part to the module; columns of numbers leave as NumPy arrays.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace orrery::bindings {

void bind_bench(pybind11::module_& module);
void bind_explain(pybind11::module_& module);
void bind_explore(pybind11::module_& module);
void bind_machine(pybind11::module_& module);
void bind_model(pybind11::module_& module);
void bind_moe(pybind11::module_& module);
void bind_plan(pybind11::module_& module);
void bind_scenario(pybind11::module_& module);
void bind_serve(pybind11::module_& module);
void bind_timeline(pybind11::module_& module);
void bind_traces(pybind11::module_& module);
void bind_validation(pybind11::module_& module);
void bind_yaml(pybind11::module_& module);

// Called now and then with what is done and the total; Ctrl-C is let through there. Refers to
// `callback`.
using Callback = std::optional<std::function<void(std::int64_t, std::int64_t)>>;
std::function<void(std::int64_t, std::int64_t)> throttled(const Callback& callback);

// One array over `rows` of `get(row)`, converted to T.
template <typename T, typename Rows, typename Get>
pybind11::array_t<T> column(const Rows& rows, Get get) {
  pybind11::array_t<T> array(static_cast<pybind11::ssize_t>(rows.size()));
  T* out = array.mutable_data();
  for (const auto& row : rows) {
    *out++ = static_cast<T>(get(row));
  }
  return array;
}

}  // namespace orrery::bindings
