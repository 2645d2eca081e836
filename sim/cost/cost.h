#pragma once

// How long one op takes. A CostModel answers for a kernel, in this order: a measured point;
// interpolation in log-dims inside the measured hull; roofline times an efficiency fitted on the
// nearest measurements. Tables of other devices and providers stand in where a table is missing.
// The basis travels with the number; nothing is extrapolated silently.

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernel_spec.h"
#include "sim/cost/power_limit.h"
#include "sim/machine/machine.h"
#include "sim/plan/launch_mode.h"
#include "sim/plan/plan.h"
#include "sim/timeline/timeline.h"
#include "sim/units/energy.h"
#include "sim/units/units.h"

namespace orrery {

struct Estimate {
  Seconds time;  // at the full clock
  Basis basis = Basis::kRoofline;
  double spread = 0;   // relative standard deviation expected of time
  Seconds limited;     // at the clock that the power limit leaves; as `time` where there is none
  Seconds arithmetic;  // of `time`, what draws as much power as large GEMMs do
  Joules energy;  // of its work on one rank (sim/cost/energy.h); 0 where a device's is not known
  // Of a kernel whose geometry is known: KernelSpec::rounds, what sim/des lets wait where others
  // hold SMs. 0: nothing is dealt to its blocks.
  int rounds = 0;
  int free_sms = 0;  // that its launch leaves to others
  Seconds latency;   // of a collective, what does not grow with bytes over NVLink

  bool operator==(const Estimate&) const = default;
  [[nodiscard]] Seconds at(Clock clock) const { return clock == Clock::kFull ? time : limited; }
};

// Host-side times, parameters of an engine profile with a source each.
struct HostCosts {
  Seconds eager_launch;    // host time to enqueue one kernel
  double gemm_launch = 1;  // of a GEMM or attention, whose launch takes longer, over that
  // Likewise of latent attention and of products by head, which take several launches or a call
  // into cuBLASLt; none: gemm_launch.
  std::optional<double> latent_launch;
  Seconds graph_node;  // gap between dependent nodes of a replayed graph
  Seconds d2h_sync;    // device-to-host copy of a flag and wake-up of the host
  // From the end of a GPU op to the start of one on another stream that waits for it, beyond what
  // op times contain; in replayed graphs and launched eagerly.
  Seconds graph_hop;
  Seconds eager_hop;
  // Standard deviation of when ranks come to a collective (all_gather, reduce_scatter, all_to_all)
  // of a step, which waits for the last of them; in replayed graphs and launched eagerly.
  Seconds graph_arrivals;
  Seconds eager_arrivals;
  // Host time to enqueue a collective other than an all_reduce; none: eager_launch.
  std::optional<Seconds> eager_collective;
  Seconds scheduler;  // choosing a batch, building its inputs
  Seconds sampling;   // reading tokens back, detokenising, streaming out
};

// Which kernels an engine may run for routed experts.
inline constexpr std::array<std::string_view, 4> kMoeBackends{"cutlass", "deepgemm", "marlin",
                                                              "triton"};

// Measured tables of one provider (an engine version, or our own kernels) on one device.
class Provider {
 public:
  Provider();
  ~Provider();
  Provider(Provider&&) noexcept;
  Provider& operator=(Provider&&) noexcept;

  // Finds every <kernel>.csv under `directory` (see docs/data.md for the columns); a file is parsed
  // when its kernel is first asked for. Throws std::invalid_argument when the directory has no
  // table or one of an unknown kernel. Whatever parses a file throws std::invalid_argument with
  // file and line on a malformed row. Thread safe.
  static Provider load(const std::filesystem::path& directory);

  [[nodiscard]] const std::string& name() const;
  [[nodiscard]] bool has_kernel(std::string_view kernel) const;
  [[nodiscard]] std::vector<std::string> kernels() const;
  [[nodiscard]] std::int64_t num_rows(std::string_view kernel) const;
  // Whose rows of a kernel in a format its tables have (kMoeBackends); none where nothing says so.
  [[nodiscard]] std::set<std::string> backends(std::string_view kernel, DType dtype) const;

  struct Tables;
  [[nodiscard]] const Tables& tables() const { return *tables_; }

 private:
  std::unique_ptr<Tables> tables_;
};

// Measured collective tables of a machine.
class CollectiveTables {
 public:
  CollectiveTables();
  ~CollectiveTables();
  CollectiveTables(CollectiveTables&&) noexcept;
  CollectiveTables& operator=(CollectiveTables&&) noexcept;
  // Reads every <collective>.csv and <collective>.<source>.csv in `directory` (docs/data.md).
  // Throws std::invalid_argument with file and line on a malformed row.
  static CollectiveTables load(const std::filesystem::path& directory);

  struct Tables;
  [[nodiscard]] const Tables& tables() const { return *tables_; }

 private:
  std::unique_ptr<Tables> tables_;
};

// Tables that every run of this process shares: each is parsed once, and again when one of its
// files has changed. Shared pointers, since neither the runs nor the cache is the last to need
// them. Thread safe. Throw as `load` does.
std::shared_ptr<const Provider> shared_provider(const std::filesystem::path& directory);
std::shared_ptr<const CollectiveTables> shared_collectives(const std::filesystem::path& directory);

// Where measured tables come from, seen from the provider and device asked for, in the order in
// which they are asked. Time against the work model carries over between devices, peaks do not.
enum class Origin : std::uint8_t {
  kOwn,                           // that provider on that device
  kSibling,                       // that provider on a device of the same architecture, or on
                                  // this one at other rates
  kOtherProvider,                 // another provider on that device
  kOtherProviderOnSibling,        // another provider on a device of the same architecture
  kOtherArchitecture,             // that provider on another device of the same vendor
  kOtherProviderAndArchitecture,  // another provider on another device of the same vendor
  kNone                           // of no use
};
std::string_view to_text(Origin origin);  // "own", "sibling", "other provider", ...
Origin origin(std::string_view provider, const Device& device, std::string_view measured_provider,
              const Device& measured_on);
// Distance of two devices in peak and HBM bandwidth, in e-folds; orders tables of equal origin.
double device_distance(const Device& a, const Device& b);

// Tables of kernels and the device that they were measured on. Both must outlive the model.
struct KernelSource {
  const Provider* provider = nullptr;
  const Device* device = nullptr;
  Origin origin = Origin::kOwn;
};
// Tables of collectives and the NVLink rate of the machine that they were measured on.
struct CollectiveSource {
  const CollectiveTables* tables = nullptr;
  BytesPerSecond nvlink_rate;
  bool is_own = true;  // measured on the machine asked for, or on nodes of its kind
};
// Which of its sources a model took for (some calls of) a kernel.
struct SourceUse {
  std::string kernel;
  std::size_t source_idx = 0;
  auto operator<=>(const SourceUse&) const = default;
};

struct CostOptions {
  LaunchMode launch_mode = LaunchMode::kGraph;
  HostCosts host;
  // Time of a kernel in a step of the engine against its time alone, as tables have it: other
  // clocks under power, caches that others used, gaps.
  double kernel_time = 1;
  double moe_kernel_time = 1;  // the same of `moe` kernels
  // What the power limit of the board does to arithmetic (sim/cost/clock.h).
  PowerLimit power;
  // The same of single kernels by name, besides: caches larger than those of the tables, ...
  std::map<std::string, double> kernel_times;
  // By format of routed experts: whose rows answer a call of theirs that lies outside all rows
  // which the tables in order have, since the engine runs the kernels of that provider's backend
  // (Triton, CUTLASS, DeepGEMM).
  std::map<DType, std::string> moe_tables;
  // Of kMoeBackends: rows of that one alone answer calls of routed experts; "": what the engine of
  // each table ran.
  std::string moe_backend;
  // "" best of NCCL and the engine's own, "nccl", "custom": the engine's own.
  std::string all_reduce_implementation;
  std::string custom_all_reduce = "custom_vllm";  // the engine's own, as the tables name it
  // Routing skew of an MoE. A table without rows of it answers from the nearest that it has, in the
  // order balanced, uniform, power_law_1.01, power_law_1.2.
  std::string moe_distribution = "power_law_1.01";
  // How often a token chooses each expert, the most chosen first; empty: all alike. Of grouped
  // gemms, whose tables have groups of about as many rows each.
  std::vector<double> expert_choices;
  // That a token chooses the expert of each slot, rank after rank; empty: all alike. Of layers of
  // experts in one launch, whose tables are of tokens that choose them so.
  std::vector<double> slot_choices;
};

// What one correction of the list (sim/cost/corrections.h, sim/serve/step_corrections.h) did.
struct AppliedCorrection {
  std::string_view name;
  std::string_view source;
  Estimate before;
  Estimate after;
};

// How a price came about.
struct PriceExplanation {
  Estimate price;
  // Whose rows answered, and which of them, in words; empty: the work model alone, a curve or
  // formula of collectives, or a parameter of the engine profile.
  std::string provider;
  std::string device;
  std::filesystem::path file;
  std::string kernel;  // another one's of the same work, or the op's own
  std::string rows;    // "a row of the table", "between rows of its family", ...
  int way = 0;         // of our own kernel (KernelSpec::way); 0: one, or none that rows tell apart
  Seconds row_time;    // by those rows, on the device that they were measured on
  std::vector<AppliedCorrection> corrections;  // that changed something, in the order of the list
};

// Thread safe for concurrent calls. Tables and machine must outlive it.
class CostModel {
 public:
  // Tables measured on this machine; either may be null.
  CostModel(const Machine& machine, const Provider* provider, const CollectiveTables* collectives,
            CostOptions options);
  // Tables in the order in which they are asked. A kernel call is answered by the first that holds
  // its family (its dtype and the dims that are not interpolated); if none does, by the nearest
  // family of the first that has the kernel. Other architectures are asked only when no table of
  // this one has the kernel. One expert's gemm and gather are answered by the rows of gemm and
  // gather_mul where nothing has rows of theirs. Answers of a sibling device or another provider
  // are kInterpolated at best, those of another architecture kRoofline. Collectives: the first that
  // has the curve, its bandwidth part scaled by the NVLink rates.
  CostModel(const Machine& machine, std::vector<KernelSource> kernels,
            std::vector<CollectiveSource> collectives, CostOptions options);
  ~CostModel();
  CostModel(CostModel&&) noexcept;

  // Of two machines together (Machine::joined): ops of GPUs of the second are priced by `behind`, a
  // model of that machine alone, which must outlive this one.
  void join(const CostModel& behind);

  // Throws std::invalid_argument for an unknown kernel, a missing or non-positive dim, a dtype that
  // the device does not support, or an unknown routing distribution.
  [[nodiscard]] Estimate kernel(const KernelOp& op) const;
  // Collective among the GPUs `ranks` (global ids on the machine); alone on the network.
  [[nodiscard]] Estimate collective(const CommOp& op, std::span<const int> ranks) const;
  [[nodiscard]] Estimate host(const HostOp& op) const;
  [[nodiscard]] Estimate price(const Plan& plan, const Op& op) const;
  // The same price and where it is from. Not cached.
  [[nodiscard]] PriceExplanation explain(const Plan& plan, const Op& op) const;

  // What answered the kernels asked for so far, ascending; kernels that no table has are left out.
  [[nodiscard]] std::vector<SourceUse> sources_used() const;
  // Collectives asked for within an NVLink domain that the first of the tables lacks, ascending.
  [[nodiscard]] std::vector<CollectiveKind> unmeasured_collectives() const;
  [[nodiscard]] const Machine& machine() const;
  [[nodiscard]] const CostOptions& options() const;

 private:
  // Of a CommOp of the plan; where it is from goes to `explanation`, where there is one.
  Estimate transfer(const Plan& plan, const Op& op, PriceExplanation* explanation) const;
  // Collective among `ranks`, as an engine runs it.
  [[nodiscard]] Estimate engine_collective(const CommOp& op, std::span<const int> ranks,
                                           PriceExplanation* explanation) const;
  [[nodiscard]] Estimate of_behind(const Plan& plan, const Op& op,
                                   PriceExplanation* explanation) const;
  [[nodiscard]] Estimate between_machines(const Plan& plan, const Op& op) const;

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Closed-form collective times on links of one rate and latency, n >= 2 ranks, exact when nothing
// else runs; throw std::invalid_argument on fewer ranks or a rate of 0. Source: Thakur,
// Rabenseifner, Gropp, IJHPCA 19(1), 2005.
//   ring all_reduce       2 (n-1) (latency + buffer / (n rate))
//   ring all_gather       (n-1) (latency + contribution / rate)
//   ring reduce_scatter   (n-1) (latency + input / (n rate))
//   direct all_to_all     latency + (n-1)/n sent / rate       all peers at once over one port
//   one-shot all_reduce   latency + (n-1) buffer / rate       each rank reads all other buffers
//   pipelined broadcast   (n-1) latency + buffer / rate
Seconds ring_all_reduce_time(Bytes buffer, int ranks, BytesPerSecond rate, Seconds latency);
Seconds ring_all_gather_time(Bytes contribution, int ranks, BytesPerSecond rate, Seconds latency);
Seconds ring_reduce_scatter_time(Bytes input, int ranks, BytesPerSecond rate, Seconds latency);
Seconds direct_all_to_all_time(Bytes sent, int ranks, BytesPerSecond rate, Seconds latency);
Seconds one_shot_all_reduce_time(Bytes buffer, int ranks, BytesPerSecond rate, Seconds latency);
Seconds pipelined_broadcast_time(Bytes buffer, int ranks, BytesPerSecond rate, Seconds latency);

// Error of the model on measured points it was not given: rows are split by a fixed hash, each
// held-out row is predicted from the others.
struct HeldOutError {
  std::string kernel;
  std::string dtype;
  std::int64_t num_points = 0;
  double median = 0;  // |predicted - measured| / measured
  double p95 = 0;
  double bias = 0;  // mean of (predicted - measured) / measured
};
// What is held out together: single rows, or everything of one shape (all m of one (n, k) of a
// gemm, all rows of one family of another kernel), so that the whole shape is new to the model.
enum class HeldOutUnit : std::uint8_t { kRow, kShape };
// Kernels in alphabetical order, then dtypes; collectives (single points of a curve) last under
// their name with the implementation as dtype. Rows that only bound a time (host bound) are not
// scored. Throws std::invalid_argument unless 0 < held_out_share < 1.
std::vector<HeldOutError> held_out_errors(const Machine& machine, const Provider& provider,
                                          const CollectiveTables* collectives,
                                          double held_out_share = 0.1,
                                          HeldOutUnit unit = HeldOutUnit::kRow);
// Error of tables that stand in for another device: every tenth row of `measured`, by the same
// hash, is predicted from `stand_in` alone. Order as above; only kernels that both have.
std::vector<HeldOutError> transfer_errors(const KernelSource& measured,
                                          const KernelSource& stand_in);

}  // namespace orrery
