#pragma once

// The journal as tables in the form of docs/data.md, and how far their interpolation is from
// measurements that they do not hold. No CUDA.

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "kernels/calibrate/journal.h"
#include "kernels/calibrate/row.h"
#include "sim/machine/machine.h"

namespace orrery::calibrate {

// Writes <kernel>.csv for each kernel with rows and meta.yaml, each replaced as a whole. `device`
// is the name under topologies/devices. Throws std::system_error.
void write_tables(const std::filesystem::path& directory, std::string_view device,
                  const Journal& journal);

struct Judged {
  KernelOp op;
  Seconds measured;
  Seconds predicted;
  bool is_inside = false;  // the prediction is interpolated, not extrapolated
  [[nodiscard]] double error() const { return predicted / measured - 1; }
};
// The simulator's answer for each measurement from <directory>/<kernel>.csv; rows of kernels
// without a table and refused ones are left out. Throws std::invalid_argument for a malformed
// table.
std::vector<Judged> judge(const std::filesystem::path& directory, const Device& device,
                          std::span<const Row> measured);

// Of shapes between measured ones; those beyond (a grid's corner may be refused for its size) are
// called roofline by the simulator and stand apart.
struct ErrorSummary {
  std::string kernel;
  std::string dtype;
  int points = 0;
  double median = 0;  // of |predicted / measured - 1|
  double p95 = 0;
  double bias = 0;  // mean of predicted / measured - 1
  int outside = 0;
  double outside_median = 0;
};
// By kernel and dtype, in the order of first appearance.
std::vector<ErrorSummary> summarise(std::span<const Judged> judged);
// The summaries and every shape, for people: held_out.txt beside the tables.
std::string held_out_text(std::span<const Fact> facts, std::span<const Judged> judged);

}  // namespace orrery::calibrate
