#include <algorithm>
#include <stdexcept>

#include "sim/cost/collectives.h"
#include "sim/cost/estimate_cache.h"
#include "sim/cost/interpolate.h"
#include "sim/cost/provider_tables.h"

namespace orrery {
namespace {

// Relative standard deviations. Measured: repeated runs of one kernel. Nearest efficiency: outside
// the measured hull, from shapes held out as a whole (docs/data.md). Another engine's kernel: the
// vLLM, SGLang and TensorRT-LLM tables differ by about this on equal shapes.
constexpr double kMeasuredSpread = 0.01;
constexpr double kNearestSpread = 0.25;
constexpr double kOtherEngineSpread = 0.15;

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

std::string_view to_text(LaunchMode mode) { return mode == LaunchMode::kEager ? "eager" : "graph"; }

struct CostModel::Impl {
  const Machine& machine;
  const Provider* provider;
  const CollectiveTables* collectives;
  CostOptions options;
  EstimateCache cache;

  [[nodiscard]] Estimate compute(const KernelOp& op) const;
  [[nodiscard]] std::optional<Estimate> from_provider(const Provider& source, const KernelOp& op,
                                                      std::span<const std::int64_t> dims) const;
  [[nodiscard]] int distribution_of(const KernelTable& table, const Provider& source) const;
};

int CostModel::Impl::distribution_of(const KernelTable& table, const Provider& source) const {
  const std::vector<std::string>& known = table.distributions();
  if (known.empty()) {
    return 0;
  }
  const auto found = std::ranges::find(known, options.moe_distribution);
  if (found == known.end()) {
    std::string names;
    for (const std::string& name : known) {
      names += (names.empty() ? "" : ", ") + name;
    }
    throw std::invalid_argument("provider " + source.name() + " has no routing distribution '" +
                                options.moe_distribution + "'; it has " + names);
  }
  return static_cast<int>(found - known.begin());
}

std::optional<Estimate> CostModel::Impl::from_provider(const Provider& source, const KernelOp& op,
                                                       std::span<const std::int64_t> dims) const {
  const KernelTable* table = source.tables().table(op.kernel);
  if (table == nullptr) {
    return std::nullopt;
  }
  const std::optional<Prediction> found =
      predict(*table, machine.device(), op.dtype, distribution_of(*table, source), dims);
  if (!found) {
    return std::nullopt;
  }
  Estimate estimate{.time = found->time, .basis = found->basis, .spread = kMeasuredSpread};
  if (found->basis == Basis::kInterpolated) {
    estimate.spread = work_model(op.kernel).spread;
  } else if (found->basis == Basis::kRoofline) {
    estimate.spread = std::max(kNearestSpread, work_model(op.kernel).spread);
  }
  return estimate;
}

Estimate CostModel::Impl::compute(const KernelOp& op) const {
  const KernelSpec& spec = kernel_spec(op.kernel);
  const std::vector<std::int64_t> dims = ordered_dims(spec, op);
  const FlopsPerSecond peak = peak_flops(machine.device(), arithmetic_dtype(op.kernel, op.dtype));
  if (provider != nullptr) {
    if (const auto estimate = from_provider(*provider, op, dims)) {
      return *estimate;
    }
  }
  if (options.fallback_provider != nullptr) {
    if (auto estimate = from_provider(*options.fallback_provider, op, dims)) {
      estimate->basis = std::max(estimate->basis, Basis::kInterpolated);
      estimate->spread = std::max(estimate->spread, kOtherEngineSpread);
      return *estimate;
    }
  }
  const WorkModel model = work_model(op.kernel);
  return {.time = work_model_time(model, work_of(op), peak, machine.device().hbm_bandwidth),
          .basis = Basis::kRoofline,
          .spread = std::max(kNearestSpread, model.spread)};
}

CostModel::CostModel(const Machine& machine, const Provider* provider,
                     const CollectiveTables* collectives, CostOptions options)
    : impl_(new Impl{machine, provider, collectives, std::move(options), {}}) {}
CostModel::~CostModel() = default;
CostModel::CostModel(CostModel&&) noexcept = default;

Estimate CostModel::kernel(const KernelOp& op) const {
  if (const std::optional<Estimate> known = impl_->cache.find(op)) {
    return *known;
  }
  const Estimate estimate = impl_->compute(op);
  impl_->cache.insert(op, estimate);
  return estimate;
}

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
  const CollectiveTables::Tables* tables =
      impl_->collectives == nullptr ? nullptr : &impl_->collectives->tables();
  if (tables != nullptr && impl_->machine.in_one_nvlink_domain(ranks)) {
    const auto found =
        measured_collective(*tables, op, static_cast<int>(ranks.size()), impl_->options);
    if (found) {
      return *found;
    }
  }
  return modelled_collective(impl_->machine, tables, op, ranks, impl_->options);
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

Estimate CostModel::price(const Plan& plan, const Op& op) const {
  if (const auto* kernel_op = std::get_if<KernelOp>(&op.body)) {
    return kernel(*kernel_op);
  }
  if (const auto* comm_op = std::get_if<CommOp>(&op.body)) {
    return collective(*comm_op, plan.ranks(op.ranks));
  }
  return host(std::get<HostOp>(op.body));
}

const Machine& CostModel::machine() const { return impl_->machine; }
const CostOptions& CostModel::options() const { return impl_->options; }

}  // namespace orrery
