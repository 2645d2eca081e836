#pragma once

// Collective times: measured curves inside one NVLink domain, formulas elsewhere.

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "sim/cost/cost.h"
#include "sim/machine/joined_machines.h"

namespace orrery {

// Time against bytes for one way of doing one collective. Bytes are the whole buffer, as nccl-tests
// counts it (docs/data.md).
struct CollectiveCurve {
  std::vector<double> bytes;   // ascending
  std::vector<double> time_s;  // median of the repeats of a point

  // Interpolated in log-log. Below the first point its time, above the last one in proportion to
  // bytes, both as kRoofline.
  [[nodiscard]] Estimate at(double size) const;
};

struct CurveKey {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::string implementation;  // "nccl", "custom_vllm", ...
  std::string mode;            // "graph", "eager", "unspecified"
  int element_bytes = 2;       // 1 or 2
  int num_gpus = 0;
  auto operator<=>(const CurveKey&) const = default;
};

struct CollectiveTables::Tables {
  std::string name;
  std::map<CurveKey, CollectiveCurve> curves;
};

// The buffer of a call in the terms of the tables: all_gather counts its output, the rest their
// input.
double table_bytes(const CommOp& op, int num_ranks);

// Tables in the order in which they are asked, for a machine of `nvlink_rate`.
struct CollectiveCurves {
  std::span<const CollectiveSource> sources;
  BytesPerSecond nvlink_rate;
};

// Measured time among `num_gpus` of one NVLink domain; empty when no table has such a collective or
// all stop below num_gpus. Between measured numbers of GPUs the time is interpolated in their
// logarithm. The time that a curve needs beyond its smallest size is scaled to this NVLink rate;
// such answers are kRoofline, or kInterpolated at equal rates. all_reduce takes the faster of NCCL
// and the engine's own, or options.all_reduce_implementation; eager custom rows hold the host's
// time per call, so an eager NCCL call is not let below their floor.
std::optional<Estimate> measured_collective(const CollectiveCurves& curves, const CommOp& op,
                                            int num_gpus, const CostOptions& options);

// Rows that go between GPUs of one NVLink domain by the copy engines, one way between two sides or
// from each to all others, as the engine's own exchange does (rows "<custom_all_reduce>_copies" of
// send_recv, measured between two GPUs): from their writer to who waits for them, `bytes` the most
// that a GPU sends or gets. A copy for each of several receivers is not told from one of as many
// bytes. Empty where no table has such rows in the launch mode.
std::optional<Estimate> measured_copies(const CollectiveCurves& curves, Bytes bytes,
                                        const CostOptions& options);

// Time by formula: ring or direct inside a domain, and over several domains reduce-scatter inside,
// ring across over each GPU's NIC, all-gather inside. Curves, where there are any, supply the parts
// inside a domain and the fitted efficiency of NVLink.
Estimate modelled_collective(const Machine& machine, const CollectiveCurves& curves,
                             const CommOp& op, std::span<const int> ranks,
                             const CostOptions& options);

// An exchange between two machines in which a GPU of each sends or gets so many bytes, all at once.
Estimate exchange_between(const JoinedMachines& machines, Bytes of_front, Bytes of_behind);

}  // namespace orrery
