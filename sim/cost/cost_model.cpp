#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>
#include <set>
#include <stdexcept>
#include <utility>

#include "sim/cost/clock.h"
#include "sim/cost/collectives.h"
#include "sim/cost/estimate_cache.h"
#include "sim/cost/interpolate.h"
#include "sim/cost/provider_tables.h"
#include "sim/units/largest_normal.h"
#include "sim/units/shown.h"

namespace orrery {
namespace {

// Relative standard deviations. Measured: repeated runs of one kernel. Nearest efficiency: outside
// the measured hull, from shapes held out as a whole (docs/data.md). Sibling: half of the 95th
// percentile of the H100's rows predicted from the H200's. Another engine's kernel: the vLLM,
// SGLang and TensorRT-LLM tables differ by about this on equal shapes.
constexpr double kMeasuredSpread = 0.01;
// Interquartile range of a normal distribution over its standard deviation.
constexpr double kQuartilesPerDeviation = 1.349;
constexpr double kNearestSpread = 0.25;
constexpr double kSiblingSpread = 0.1;
constexpr double kOtherEngineSpread = 0.15;

// Routing skews from the most even to the least.
constexpr std::array<std::string_view, 4> kSkews = {"balanced", "uniform", "power_law_1.01",
                                                    "power_law_1.2"};

std::string names_of(const std::vector<DimSpec>& dims) {
  std::string text;
  for (const DimSpec& dim : dims) {
    text += (text.empty() ? "" : ", ") + std::string(dim.name);
  }
  return text;
}

// Sizes in the order of the spec.
std::vector<std::int64_t> ordered_dims(const KernelSpec& spec, const KernelOp& op) {
  std::vector<std::int64_t> sizes(spec.dims.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const DimSpec& wanted = spec.dims[i];
    const bool in_order = i < op.dims.size() && op.dims[i].name == wanted.name;
    const auto found = in_order ? op.dims.begin() + static_cast<std::ptrdiff_t>(i)
                                : std::ranges::find(op.dims, wanted.name, &Dim::name);
    if (found == op.dims.end()) {
      throw std::invalid_argument("kernel " + op.kernel + " lacks dim '" +
                                  std::string(wanted.name) + "'; expected " + names_of(spec.dims));
    }
    sizes[i] = found->size;
    if (sizes[i] < (wanted.may_be_zero ? 0 : 1)) {
      throw std::invalid_argument("kernel " + op.kernel + ": dim " + std::string(wanted.name) +
                                  " is " + std::to_string(sizes[i]) + "; expected " +
                                  (wanted.may_be_zero ? "0" : "1") + " or more");
    }
  }
  return sizes;
}

}  // namespace

struct CostModel::Impl {
  const Machine& machine;
  std::vector<KernelSource> kernels;
  std::vector<CollectiveSource> collectives;
  CostOptions options;
  EstimateCache cache;
  std::mutex used_mutex;
  std::set<SourceUse> used;
  std::set<CollectiveKind> unmeasured;

  Estimate compute(const KernelOp& op);
  // Of one source; the prediction's basis and spread are lowered by its kinship.
  [[nodiscard]] std::optional<Estimate> from_source(const KernelSource& source, const KernelOp& op,
                                                    std::span<const std::int64_t> dims,
                                                    bool& is_own_family) const;
};

namespace {

// Index of the distribution `wanted`, or of the nearest that the table has.
int distribution_of(const KernelTable& table, const std::string& wanted) {
  const std::vector<std::string>& known = table.distributions();
  const auto found = std::ranges::find(known, wanted);
  if (known.empty() || found != known.end()) {
    return static_cast<int>(found - known.begin());
  }
  const auto skew = [](std::string_view name) { return std::ranges::find(kSkews, name); };
  if (skew(wanted) == kSkews.end()) {
    std::string names;
    for (const std::string_view name : kSkews) {
      names += (names.empty() ? "" : ", ") + std::string(name);
    }
    throw std::invalid_argument("unknown routing distribution '" + shown(wanted) +
                                "'; expected one of " + names + ", or one of the table's");
  }
  const auto distance = [&](const std::string& name) {
    return std::abs(skew(name) - skew(wanted));
  };
  return static_cast<int>(std::ranges::min_element(known, {}, distance) - known.begin());
}

// Share of the HBM rate that quantising of a whole input reaches: gemm rows of the shipped tables
// against cuBLAS products of quantised inputs on an H200, 8,192 rows, n 2,560 (docs/data.md).
constexpr double kQuantizeBandwidth = 0.42;
// What is left of a row at least when the quantising is taken out.
constexpr double kLeastRemainder = 0.4;

Seconds quantize_time(const Device& device, Seconds floor, std::int64_t rows,
                      std::int64_t columns) {
  constexpr double kBytesPerElement = 3;  // bf16 in, fp8 out
  const Bytes moved(static_cast<double>(rows) * static_cast<double>(columns) * kBytesPerElement);
  return floor + moved / (device.hbm_bandwidth * kQuantizeBandwidth);
}

// Time of a call without what a plan has as an op of its own: of the time on the device of the rows
// that part stays which stays there, so a faster device is not slower for having less taken out.
Seconds without_inclusions(const KernelSource& source, const KernelOp& op,
                           const Prediction& found) {
  const auto* held = source.provider->tables().quantizing(op.kernel, op.dtype);
  if (held == nullptr || held->floor.value() == 0) {
    return found.time;
  }
  const Seconds quantize =
      quantize_time(*source.device, held->floor, dim(op.dims, "m"), dim(op.dims, "k"));
  return found.time * std::max(1 - quantize / found.measured, kLeastRemainder);
}

// What the calls before have written is in the L2 cache only in part: norms, rope, silu_mul and
// kv_append of 128 and 1,000 tokens in steps of scenarios/validate/fit_8b.yaml save 0.4 to 0.7 of
// what all operands in the cache save, those of 2,048 tokens in judged steps as executed before
// 0 to 0.5 (docs/validation/README.md).
constexpr double kWarmPart = 0.4;

// Our gemm of few rows begins while the kernel before it runs and fetches weights meanwhile
// (kernels/dense/gemm/gemm.h, GemmOptions::overlap), so what ends in such a gemm takes no more of a
// step than until that has begun. 1.3 us: decodes of scenarios/validate/fit_8b.yaml, which is not
// judged, then err by -0.7 to 0.0 %, without it by +0.3 to +1.0 %.
constexpr Seconds kBeforeStreamedWeights(1.3e-6);
constexpr std::int64_t kMostStreamedRows = 64;

bool precedes_streamed_weights(const KernelSpec& spec, const KernelOp& op) {
  return spec.prior.feeds_gemm && dim(op.dims, "tokens") <= kMostStreamedRows;
}

}  // namespace

std::optional<Estimate> CostModel::Impl::from_source(const KernelSource& source, const KernelOp& op,
                                                     std::span<const std::int64_t> dims,
                                                     bool& is_own_family) const {
  const KernelTable* table = source.provider->tables().table(op.kernel);
  if (table == nullptr) {
    return std::nullopt;
  }
  const int distribution = distribution_of(*table, options.moe_distribution);
  const std::optional<Prediction> found =
      predict(*table, *source.device, machine.device(), op.dtype, distribution, dims);
  if (!found) {
    return std::nullopt;
  }
  is_own_family = found->is_own_family;
  const Provider::Tables& tables = source.provider->tables();
  Estimate estimate{.time = without_inclusions(source, op, *found),
                    .basis = found->basis,
                    .spread = std::max(kMeasuredSpread, found->spread / kQuartilesPerDeviation)};
  if (estimate.time != found->time) {
    estimate.basis = std::max(estimate.basis, Basis::kInterpolated);
  }
  const Work work = work_of(op);
  const double warm = table->warm_ratio(work.bytes_read + work.bytes_written);
  estimate.time = estimate.time * (1 - kWarmPart * (1 - warm));
  if (tables.name == kOwnProvider && precedes_streamed_weights(table->spec(), op)) {
    estimate.time = std::min(estimate.time, kBeforeStreamedWeights);
  }
  if (options.launch_mode == LaunchMode::kEager) {
    estimate.time += table->eager_gap();
  }
  if (source.kinship != Kinship::kOwn) {
    estimate.basis = std::max(estimate.basis, Basis::kInterpolated);
    estimate.spread = source.kinship == Kinship::kSibling ? kSiblingSpread : kOtherEngineSpread;
  }
  if (source.kinship >= Kinship::kOtherArchitecture) {
    estimate.basis = Basis::kRoofline;
  }
  if (estimate.basis == Basis::kInterpolated) {
    estimate.spread = std::max(estimate.spread, table->spec().prior.spread);
  } else if (estimate.basis == Basis::kRoofline) {
    estimate.spread = std::max(kNearestSpread, table->spec().prior.spread);
  }
  return estimate;
}

Estimate CostModel::Impl::compute(const KernelOp& op) {
  const KernelSpec& spec = kernel_spec(op.kernel);
  const std::vector<std::int64_t> dims = ordered_dims(spec, op);
  const FlopsPerSecond peak = peak_flops(machine.device(), arithmetic_dtype(spec, op.dtype));
  if (!kernels.empty() &&
      kernels.front().provider->tables().is_paid_elsewhere(op.kernel, op.dtype)) {
    return {.time = Seconds(0), .basis = Basis::kMeasured, .spread = 0};
  }
  if (!is_launched(op)) {
    return {.time = Seconds(0), .basis = Basis::kMeasured, .spread = 0};
  }
  std::optional<Estimate> answer;
  std::size_t answered_by = 0;
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    // Another architecture only where this one has nothing.
    if (answer && kernels[i].kinship >= Kinship::kOtherArchitecture &&
        kernels[answered_by].kinship < Kinship::kOtherArchitecture) {
      break;
    }
    bool is_own_family = false;
    const std::optional<Estimate> found = from_source(kernels[i], op, dims, is_own_family);
    if (found && (is_own_family || !answer)) {
      answer = found;
      answered_by = i;
    }
    if (found && is_own_family) {
      break;
    }
  }
  if (answer) {
    const std::lock_guard lock(used_mutex);
    used.insert({op.kernel, answered_by});
    return *answer;
  }
  if (spec.prior.same_work != nullptr) {
    Estimate estimate = compute(spec.prior.same_work(op));
    estimate.basis = std::max(estimate.basis, Basis::kInterpolated);
    estimate.spread = std::max(estimate.spread, spec.prior.spread);
    return estimate;
  }
  return {.time = work_model_time(spec.prior, work_of(op), peak, machine.device().hbm_bandwidth),
          .basis = Basis::kRoofline,
          .spread = std::max(kNearestSpread, spec.prior.spread)};
}

namespace {

std::vector<KernelSource> own_source(const Machine& machine, const Provider* provider) {
  if (provider == nullptr) {
    return {};
  }
  return {{.provider = provider, .device = &machine.device()}};
}

std::vector<CollectiveSource> own_source(const Machine& machine, const CollectiveTables* tables) {
  if (tables == nullptr) {
    return {};
  }
  return {{.tables = tables, .nvlink_rate = machine.spec.nvlink_rate}};
}

}  // namespace

CostModel::CostModel(const Machine& machine, const Provider* provider,
                     const CollectiveTables* collectives, CostOptions options)
    : CostModel(machine, own_source(machine, provider), own_source(machine, collectives),
                std::move(options)) {}
CostModel::CostModel(const Machine& machine, std::vector<KernelSource> kernels,
                     std::vector<CollectiveSource> collectives, CostOptions options)
    : impl_(new Impl{.machine = machine,
                     .kernels = std::move(kernels),
                     .collectives = std::move(collectives),
                     .options = std::move(options)}) {}
CostModel::~CostModel() = default;
CostModel::CostModel(CostModel&&) noexcept = default;

Estimate CostModel::kernel(const KernelOp& op) const {
  if (const std::optional<Estimate> known = impl_->cache.find(op)) {
    return *known;
  }
  Estimate estimate = impl_->compute(op);
  const CostOptions& options = impl_->options;
  estimate.time =
      at_clock(estimate.time, options.power, options.power_state, impl_->machine.device(), op) *
      (kernel_spec(op.kernel).prior.composite == Composite::kRoutedExperts ? options.moe_kernel_time
                                                                           : options.kernel_time);
  if (const auto own = options.kernel_times.find(op.kernel); own != options.kernel_times.end()) {
    estimate.time = estimate.time * own->second;
  }
  impl_->cache.insert(op, estimate);
  return estimate;
}

namespace {

// Whether the tables that are asked first have such a collective.
bool has_rows_of(const CollectiveCurves& curves, CollectiveKind kind) {
  if (curves.sources.empty()) return false;
  const auto& known = curves.sources.front().tables->tables().curves;
  return std::ranges::any_of(known, [&](const auto& entry) { return entry.first.kind == kind; });
}

}  // namespace

Estimate CostModel::collective(const CommOp& op, std::span<const int> ranks) const {
  const bool is_pair = op.kind == CollectiveKind::kSendRecv;
  if (ranks.size() < 2 || (is_pair && ranks.size() != 2)) {
    throw std::invalid_argument(std::string(to_text(op.kind)) + " among " +
                                std::to_string(ranks.size()) + " ranks; expected " +
                                (is_pair ? "2" : "2 or more"));
  }
  if (!(op.bytes_per_rank.value() > 0)) {
    throw std::invalid_argument(std::string(to_text(op.kind)) + " of " +
                                std::to_string(op.bytes_per_rank.value()) +
                                " bytes; expected more than 0");
  }
  const CollectiveCurves curves{impl_->collectives, impl_->machine.spec.nvlink_rate};
  if (impl_->machine.in_one_nvlink_domain(ranks)) {
    const auto found =
        measured_collective(curves, op, static_cast<int>(ranks.size()), impl_->options);
    if (!found || !has_rows_of(curves, op.kind)) {
      const std::lock_guard lock(impl_->used_mutex);
      impl_->unmeasured.insert(op.kind);
    }
    if (found) {
      return *found;
    }
  }
  return modelled_collective(impl_->machine, curves, op, ranks, impl_->options);
}

Estimate CostModel::host(const HostOp& op) const {
  const HostCosts& costs = impl_->options.host;
  Seconds time;
  switch (op.kind) {
    case HostKind::kLaunchGap:
      time =
          impl_->options.launch_mode == LaunchMode::kEager ? costs.eager_launch : costs.graph_node;
      break;
    case HostKind::kD2hSync:
      time = costs.d2h_sync;
      break;
    case HostKind::kScheduler:
      time = costs.scheduler;
      break;
    case HostKind::kSampling:
      time = costs.sampling;
      break;
  }
  // Parameters of a measured engine profile, not of this call.
  return {.time = time, .basis = Basis::kInterpolated, .spread = kNearestSpread};
}

namespace {

// From when ranks come to an exchange on average until the last is there.
Seconds arrival_wait(const CostOptions& options, const CommOp& op, std::size_t num_ranks) {
  constexpr std::array kExchanges = {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
                                     CollectiveKind::kAllToAll};
  const Seconds arrivals = options.launch_mode == LaunchMode::kEager ? options.host.eager_arrivals
                                                                     : options.host.graph_arrivals;
  if (arrivals == Seconds(0) || std::ranges::find(kExchanges, op.kind) == kExchanges.end()) {
    return Seconds(0);
  }
  return arrivals * largest_normal(static_cast<int>(num_ranks));
}

}  // namespace

Estimate CostModel::price(const Plan& plan, const Op& op) const {
  if (const auto* kernel_op = std::get_if<KernelOp>(&op.body)) {
    return kernel(*kernel_op);
  }
  if (const auto* comm_op = std::get_if<CommOp>(&op.body)) {
    Estimate estimate = collective(*comm_op, plan.ranks(op.ranks));
    const Seconds wait = arrival_wait(impl_->options, *comm_op, plan.ranks(op.ranks).size());
    if (wait > Seconds(0)) {
      estimate.time += wait;
      estimate.basis = std::max(estimate.basis, Basis::kInterpolated);
    }
    return estimate;
  }
  return host(std::get<HostOp>(op.body));
}

std::vector<SourceUse> CostModel::sources_used() const {
  const std::lock_guard lock(impl_->used_mutex);
  return {impl_->used.begin(), impl_->used.end()};
}

std::vector<CollectiveKind> CostModel::unmeasured_collectives() const {
  const std::lock_guard lock(impl_->used_mutex);
  return {impl_->unmeasured.begin(), impl_->unmeasured.end()};
}

const Machine& CostModel::machine() const { return impl_->machine; }
const CostOptions& CostModel::options() const { return impl_->options; }

}  // namespace orrery
