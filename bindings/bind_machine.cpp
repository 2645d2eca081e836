// Machines, their providers, and the kernels that plans are made of.

#include <pybind11/stl.h>

#include <filesystem>
#include <string>
#include <vector>

#include "bindings/bind.h"
#include "kernels/kernel_spec.h"
#include "sim/cost/collectives.h"
#include "sim/cost/cost.h"
#include "sim/machine/machine.h"
#include "sim/scenario/costs.h"
#include "sim/scenario/machine_file.h"
#include "sim/scenario/measured_tables.h"

namespace orrery::bindings {

namespace py = pybind11;

namespace {

py::dict machine_summary(const std::string& file, const std::string& topologies) {
  const MachineFile machine = read_machine(file, topologies);
  const MachineSpec& spec = machine.spec;
  py::dict summary;
  summary["name"] = spec.name;
  summary["kind"] = spec.kind;
  summary["device"] = spec.device.name;
  summary["num_gpus"] = spec.num_gpus;
  summary["gpus_per_node"] = spec.gpus_per_node;
  summary["hbm_capacity_bytes"] = spec.device.hbm_capacity.value();
  summary["hbm_bandwidth_bytes_per_s"] = spec.device.hbm_bandwidth.value();
  summary["nvlink_rate_bytes_per_s"] = spec.nvlink_rate.value();
  summary["nic_rate_bytes_per_s"] = spec.nic_rate.value();
  summary["device_directory"] = machine.device_directory.string();
  summary["providers"] = provider_names(machine.device_directory);
  summary["usable_providers"] = usable_providers(topologies, spec.device);
  summary["usd_per_hour"] = spec.device.usd_per_hour;
  summary["tdp_w"] = spec.device.tdp.value();
  if (spec.device.power) {
    const BoardPower& power = *spec.device.power;
    py::dict shown;
    shown["waiting_w"] = power.waiting.value();
    shown["hbm_w"] = power.hbm.value();
    shown["arithmetic_w"] = power.arithmetic.value();
    shown["error"] = power.error;
    shown["basis"] = energy_basis(spec.device);
    summary["power"] = shown;
  } else {
    summary["power"] = py::none();
  }
  return summary;
}

py::dict device_summary(const std::string& directory) {
  const Device device = read_device(std::filesystem::path(directory) / "device.yaml");
  py::dict summary;
  summary["name"] = device.name;
  summary["vendor"] = device.vendor;
  summary["architecture"] = device.architecture;
  summary["hbm_capacity_bytes"] = device.hbm_capacity.value();
  summary["hbm_bandwidth_bytes_per_s"] = device.hbm_bandwidth.value();
  py::dict flops;
  for (const auto& [dtype, rate] : device.dense_flops) {
    flops[py::str(std::string(to_text(dtype)))] = rate.value();
  }
  summary["dense_flops"] = flops;
  summary["num_sms"] = device.num_sms;
  summary["tdp_w"] = device.tdp.value();
  summary["usd_per_hour"] = device.usd_per_hour;
  summary["providers"] = provider_names(directory);
  return summary;
}

py::list kernels() {
  py::list list;
  for (const KernelSpec& spec : kernel_specs()) {
    std::vector<std::string> dims;
    std::vector<std::string> may_be_zero;
    dims.reserve(spec.dims.size());
    for (const DimSpec& dim : spec.dims) {
      dims.emplace_back(dim.name);
      if (dim.may_be_zero) may_be_zero.emplace_back(dim.name);
    }
    py::dict kernel;
    kernel["name"] = std::string(spec.name);
    kernel["summary"] = std::string(spec.summary);
    kernel["dims"] = dims;
    kernel["may_be_zero"] = may_be_zero;
    list.append(kernel);
  }
  return list;
}

}  // namespace

void bind_machine(py::module_& module) {
  module.def(
      "machine_names", [](const std::string& topologies) { return machine_names(topologies); },
      py::arg("topologies"), "Names of the machine files in a directory, ascending.");
  module.def("machine_summary", &machine_summary, py::arg("file"), py::arg("topologies"),
             "What a machine file says, with the providers measured on its device.");
  module.def("device_summary", &device_summary, py::arg("directory"),
             "What a device's file says, with the providers measured on it.");
  module.def("kernel_specs", &kernels, "Name, summary and dims of every kernel.");
  module.def(
      "provider_rows",
      [](const std::string& directory) {
        const Provider provider = Provider::load(directory);
        py::dict rows;
        for (const std::string& kernel : provider.kernels()) {
          rows[py::str(kernel)] = provider.num_rows(kernel);
        }
        return rows;
      },
      py::arg("directory"), "Number of measured rows by kernel of a provider's directory.");
  module.def(
      "collective_curves",
      [](const std::string& directory) {
        return CollectiveTables::load(directory).tables().curves.size();
      },
      py::arg("directory"), "Number of measured curves of collectives in a machine's directory.");
}

}  // namespace orrery::bindings
