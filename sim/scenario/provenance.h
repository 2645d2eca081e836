#pragma once

// What a run's numbers rest on, for its summary and report: the revision of the simulator and the
// origin and licence of the measured tables.

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sim/scenario/run.h"
#include "sim/scenario/scenario.h"

namespace orrery {

// (name, text) pairs in a fixed order; entries that are not known are left out. The revision is
// read from the checkout's .git, the tables' origin from the meta.yaml of the nearest tables.
std::vector<std::pair<std::string, std::string>> provenance(const Scenario& scenario,
                                                            std::span<const TableUse> tables);

// One kernel's table as its meta.yaml says it was measured.
struct TableMeasurement {
  std::string kernel;
  std::string provider;
  std::string device;
  // Of the timed code; "" where the tables do not say; "a+b": some rows were measured again with b.
  std::string revision;
  std::string date;
  std::string driver;
};
// Of the tables that answered, by kernel. Throws ScenarioError for a malformed meta.yaml.
std::vector<TableMeasurement> table_measurements(const Scenario& scenario,
                                                 std::span<const TableUse> tables);

}  // namespace orrery
