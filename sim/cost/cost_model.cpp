#include <algorithm>
#include <array>
#include <cassert>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "sim/cost/collectives.h"
#include "sim/cost/corrections.h"
#include "sim/cost/energy.h"
#include "sim/cost/estimate_cache.h"
#include "sim/cost/interpolate.h"
#include "sim/cost/moe_capacity.h"
#include "sim/cost/provider_tables.h"
#include "sim/plan/sides.h"
#include "sim/units/shown.h"

namespace orrery {
namespace {

// Relative standard deviation of repeated runs of one kernel.
constexpr double kMeasuredSpread = 0.01;
// Interquartile range of a normal distribution over its standard deviation.
constexpr double kQuartilesPerDeviation = 1.349;

// Routing skews from the most even to the least.
constexpr std::array<std::string_view, 4> kSkews = {"balanced", "uniform", "power_law_1.01",
                                                    "power_law_1.2"};

}  // namespace

struct CostModel::Impl {
  const Machine& machine;
  std::vector<KernelSource> kernels;
  std::vector<CollectiveSource> collectives;
  CostOptions options;
  const CostModel* behind = nullptr;  // of the second of two machines
  EstimateCache cache;
  std::mutex used_mutex;
  std::set<SourceUse> used;
  std::set<CollectiveKind> unmeasured;

  // Rows that answer a call, and what they say.
  struct Answer {
    std::size_t source_idx = 0;
    const KernelTable* table = nullptr;
    Prediction found;
  };
  std::optional<Answer> answer(const KernelOp& op, std::span<const std::int64_t> dims);
  // Of which backend alone rows answer; empty: of any.
  [[nodiscard]] std::string_view backend_of(const KernelOp& op) const {
    const bool is_experts = kernel_spec(op.kernel).prior.composite == Composite::kRoutedExperts;
    return is_experts ? std::string_view(options.moe_backend) : std::string_view();
  }
  // Of the sources of one provider alone; empty: of all.
  std::optional<Answer> answer_of(const std::string& provider, const KernelOp& op,
                                  std::span<const std::int64_t> dims);
  // Of experts that the provider's own rows answer, what they take by the rows of the slowest of
  // the other engines; empty: fewer than two have the family.
  std::optional<Seconds> slowest_of_others(const Answer& own, const KernelOp& op,
                                           std::span<const std::int64_t> dims);
  Estimate compute(const KernelOp& asked, PriceExplanation* explanation);
  // Of a KernelOp or CommOp; 0 where the device's power is not known.
  template <typename Body>
  [[nodiscard]] Joules energy(const Body& op) const {
    const std::optional<BoardPower>& power = machine.device().power;
    return power ? energy_of(*power, machine.device(), op) : Joules(0);
  }
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

// Rows of even routing that take longer than skewed ones are not of what they say: a sixth of the
// balanced rows of vLLM's, SGLang's and TensorRT-LLM's tables do, by up to 2.7 times on shapes that
// are split over GPUs, where the timed one had the experts of two. A more skewed routing bounds
// them.
std::vector<int> skewed_distributions(const KernelTable& table, const std::string& wanted) {
  constexpr std::size_t kNumEven = 2;  // of kSkews
  const auto* const asked = std::ranges::find(kSkews, wanted);
  std::vector<int> found;
  if (asked >= kSkews.begin() + kNumEven) return found;
  for (const auto* skew = asked + 1; skew != kSkews.end(); ++skew) {
    const auto known = std::ranges::find(table.distributions(), *skew);
    if (known == table.distributions().end()) continue;
    found.push_back(static_cast<int>(known - table.distributions().begin()));
  }
  return found;
}

void explain_rows(const PricedCall& call, Seconds time, PriceExplanation& explanation) {
  explanation.kernel = call.answered.kernel;
  explanation.row_time = time;
  if (call.found == nullptr) {
    explanation.rows = "the work model";
    return;
  }
  const Provider::Tables& tables = call.source->provider->tables();
  explanation.provider = tables.name;
  explanation.device = call.source->device->name;
  explanation.file = tables.entries.find(call.answered.kernel)->second->path;
  explanation.rows = call.found->rows;
  const KernelSpec& spec = call.table->spec();
  if (tables.name == kOwnProvider && spec.way != nullptr) {
    explanation.way = spec.way(call.answered.dtype, ordered_dims(spec, call.answered));
  }
}

}  // namespace

std::optional<CostModel::Impl::Answer> CostModel::Impl::answer(const KernelOp& op,
                                                               std::span<const std::int64_t> dims) {
  std::optional<Answer> best = answer_of("", op, dims);
  const bool is_outside = best && best->found.basis == Basis::kRoofline;
  if (is_outside && kernel_spec(op.kernel).prior.composite == Composite::kRoutedExperts) {
    const auto named = options.moe_tables.find(op.dtype);
    if (named != options.moe_tables.end()) {
      const std::optional<Answer> other = answer_of(named->second, op, dims);
      if (other && other->found.basis != Basis::kRoofline) best = other;
    }
  }
  if (!best && !backend_of(op).empty()) {
    throw std::invalid_argument("moe.backend: found " + options.moe_backend +
                                ", of which no table has rows of experts in " +
                                std::string(to_text(op.dtype)));
  }
  if (best) {
    const std::lock_guard lock(used_mutex);
    used.insert({op.kernel, best->source_idx});
  }
  return best;
}

// The first source that has the call's own family; without one, the first that has any answer, but
// another architecture only where this one has nothing.
std::optional<CostModel::Impl::Answer> CostModel::Impl::answer_of(
    const std::string& provider, const KernelOp& op, std::span<const std::int64_t> dims) {
  std::optional<Answer> best;
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    const KernelSource& source = kernels[i];
    if (!provider.empty() && source.provider->name() != provider) continue;
    if (best && source.origin >= Origin::kOtherArchitecture &&
        kernels[best->source_idx].origin < Origin::kOtherArchitecture) {
      break;
    }
    const KernelTable* table = source.provider->tables().table(op.kernel, backend_of(op));
    if (table == nullptr) continue;
    const auto predicted = [&](int distribution) {
      return predict(*table, *source.device, machine.device(), op.dtype, distribution, dims);
    };
    std::optional<Prediction> found = predicted(distribution_of(*table, options.moe_distribution));
    if (!found) continue;
    for (const int skewed : skewed_distributions(*table, options.moe_distribution)) {
      std::optional<Prediction> other = predicted(skewed);
      if (other && other->is_own_family == found->is_own_family && other->time < found->time) {
        other->rows = "rows of skewed routing, since those of even routing take longer";
        found = other;
      }
    }
    if (found->is_own_family || !best) best = {.source_idx = i, .table = table, .found = *found};
    if (found->is_own_family) break;
  }
  return best;
}

std::optional<Seconds> CostModel::Impl::slowest_of_others(const Answer& own, const KernelOp& op,
                                                          std::span<const std::int64_t> dims) {
  if (kernel_spec(op.kernel).prior.composite != Composite::kRoutedExperts ||
      !own.found.is_own_family) {
    return std::nullopt;
  }
  std::set<std::string_view> engines = {kernels[own.source_idx].provider->name()};
  int num_others = 0;
  Seconds slowest(0);
  const bool is_carried = kernels[own.source_idx].origin >= Origin::kOtherArchitecture;
  for (const KernelSource& source : kernels) {
    if (!is_carried && source.origin >= Origin::kOtherArchitecture) break;
    if (!engines.insert(source.provider->name()).second) continue;
    const std::optional<Answer> other = answer_of(source.provider->name(), op, dims);
    if (!other || !other->found.is_own_family) continue;
    ++num_others;
    slowest = std::max(slowest, other->found.time);
  }
  if (num_others < 2) return std::nullopt;
  return slowest;
}

Estimate CostModel::Impl::compute(const KernelOp& asked, PriceExplanation* explanation) {
  const bool drops = may_drop(asked);
  const KernelOp whole = drops ? without_capacity(asked) : KernelOp();
  const KernelOp& op = drops ? whole : asked;
  const KernelSpec& spec = kernel_spec(op.kernel);
  const std::vector<std::int64_t> dims = ordered_dims(spec, op);
  const FlopsPerSecond peak = peak_flops(machine.device(), arithmetic_dtype(spec, op.dtype));
  const bool is_paid_elsewhere =
      !kernels.empty() && kernels.front().provider->tables().is_paid_elsewhere(op.kernel, op.dtype);
  if (is_paid_elsewhere || !is_launched(op)) {
    if (explanation != nullptr) {
      explanation->rows = is_paid_elsewhere ? "paid with the rows of another kernel (includes.csv)"
                                            : "not launched";
    }
    return {.time = Seconds(0),
            .basis = Basis::kMeasured,
            .spread = 0,
            .energy = is_launched(op) ? energy(op) : Joules(0)};
  }
  KernelOp same;
  const KernelOp* answered = &op;
  std::optional<Answer> rows = answer(op, dims);
  if (!rows && spec.prior.same_work != nullptr) {
    same = spec.prior.same_work(op);
    answered = &same;
    rows = answer(same, ordered_dims(kernel_spec(same.kernel), same));
  }
  PricedCall call{.op = op,
                  .spec = spec,
                  .answered = *answered,
                  .device = machine.device(),
                  .options = options,
                  .dropping = drops ? &asked : nullptr};
  Estimate estimate;
  if (rows) {
    call.source = &kernels[rows->source_idx];
    call.table = rows->table;
    call.found = &rows->found;
    call.slowest_of_others =
        slowest_of_others(*rows, *answered, ordered_dims(kernel_spec(answered->kernel), *answered));
    estimate = {.time = rows->found.measured,
                .basis = rows->found.basis,
                .spread = std::max(kMeasuredSpread, rows->found.spread / kQuartilesPerDeviation)};
  } else {
    const Prior& prior = kernel_spec(answered->kernel).prior;
    estimate = {
        .time = work_model_time(prior, work_of(*answered), peak, machine.device().hbm_bandwidth),
        .basis = Basis::kRoofline,
        .spread = std::max(kNearestSpread, prior.spread)};
  }
  estimate.limited = estimate.time;
  if (explanation != nullptr) explain_rows(call, estimate.time, *explanation);
  correct(call, estimate, explanation == nullptr ? nullptr : &explanation->corrections);
  estimate.energy = energy(asked);
  return estimate;
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
  const Estimate estimate = impl_->compute(op, nullptr);
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

namespace {

// What computes nothing takes as long at any clock.
Estimate at_any_clock(Estimate estimate) {
  estimate.limited = estimate.time;
  return estimate;
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
  const bool is_in_domain = impl_->machine.in_one_nvlink_domain(ranks);
  const auto measured = [&](const CommOp& call) -> std::optional<Estimate> {
    if (!is_in_domain) return std::nullopt;
    return measured_collective(curves, call, static_cast<int>(ranks.size()), impl_->options);
  };
  const std::optional<Estimate> found = measured(op);
  if (is_in_domain && (!found || !has_rows_of(curves, op.kind))) {
    const std::lock_guard lock(impl_->used_mutex);
    impl_->unmeasured.insert(op.kind);
  }
  const auto estimate = [&](const CommOp& call, const std::optional<Estimate>& rows) {
    return rows ? *rows : modelled_collective(impl_->machine, curves, call, ranks, impl_->options);
  };
  Estimate result = at_any_clock(estimate(op, found));
  if (!is_in_domain) {
    result.latency = result.time;  // NICs keep more under way than their rate needs
    return result;
  }
  CommOp least = op;
  least.bytes_per_rank = std::min(op.bytes_per_rank, Bytes(static_cast<double>(ranks.size())));
  result.latency = std::min(estimate(least, measured(least)).time, result.time);
  return result;
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
  return at_any_clock({.time = time, .basis = Basis::kInterpolated, .spread = kNearestSpread});
}

namespace {

// A collective between two sides as the one among all their ranks in which as much leaves a rank,
// or its domain: with n ranks, of which a domain has at most d, (n - 1) / n of its bytes, or
// (n - d) / n. Sides are taken to share no domain of several.
CommOp of_one_side(const Machine& machine, const Plan& plan, const Op& op) {
  CommOp comm = std::get<CommOp>(op.body);
  if (!sides_of(plan, op)) return comm;
  std::map<int, double> in_domain;
  double most = 0;
  const std::span<const int> ranks = plan.ranks(op.ranks);
  for (const int rank : ranks) most = std::max(most, ++in_domain[machine.nvlink_domain_of(rank)]);
  if (in_domain.size() == 1) most = 1;
  const auto all = static_cast<double>(ranks.size());
  comm.bytes_per_rank = comm.bytes_per_rank * (all / (all - most));
  return comm;
}

}  // namespace

Estimate CostModel::engine_collective(const CommOp& op, std::span<const int> ranks,
                                      PriceExplanation* explanation) const {
  Estimate estimate = collective(op, ranks);
  if (explanation != nullptr) {
    explanation->row_time = estimate.time;
    explanation->rows = estimate.basis == Basis::kRoofline
                            ? "a formula, with what curves say of its parts"
                            : "a measured curve";
  }
  return estimate;
}

namespace {

// The most that a rank copies to others: all but its own share, or of two sides all.
Bytes bytes_leaving(const CommOp& comm, std::size_t num_ranks) {
  if (!comm.is_copied) return comm.bytes_per_rank;
  const auto all = static_cast<double>(num_ranks);
  return comm.bytes_per_rank * ((all - 1) / all);
}

// Ranks of an op of two machines that are of the second one alone.
bool is_of_second(const Machine& machine, const Plan& plan, const Op& op) {
  return plan.ranks(op.ranks).front() >= machine.joined->num_front;
}
bool is_of_both(const Machine& machine, const Plan& plan, const Op& op) {
  return plan.ranks(op.ranks).back() >= machine.joined->num_front;
}

}  // namespace

Estimate CostModel::of_behind(const Plan& plan, const Op& op, PriceExplanation* explanation) const {
  const CostModel& behind = *impl_->behind;
  if (const auto* kernel_op = std::get_if<KernelOp>(&op.body)) {
    return explanation == nullptr ? behind.kernel(*kernel_op)
                                  : behind.impl_->compute(*kernel_op, explanation);
  }
  const auto& comm = std::get<CommOp>(op.body);
  std::vector<int> own(plan.ranks(op.ranks).begin(), plan.ranks(op.ranks).end());
  for (int& rank : own) rank -= machine().joined->num_front;
  Estimate estimate = behind.engine_collective(comm, own, explanation);
  correct(PricedCollective{comm, own.size(), behind.impl_->options}, estimate,
          explanation == nullptr ? nullptr : &explanation->corrections);
  estimate.energy = behind.impl_->energy(comm);
  return estimate;
}

// Each GPU of the side with fewer sends or gets the op's bytes, one of the other side its part of
// them; the side that takes longer decides.
Estimate CostModel::between_machines(const Plan& plan, const Op& op) const {
  const auto& comm = std::get<CommOp>(op.body);
  const JoinedMachines& joined = *machine().joined;
  const std::span<const int> ranks = plan.ranks(op.ranks);
  const auto front = static_cast<double>(
      std::ranges::count_if(ranks, [&](int rank) { return rank < joined.num_front; }));
  const double behind = static_cast<double>(ranks.size()) - front;
  const double fewer = std::min(front, behind);
  const Bytes of_front = comm.bytes_per_rank * (fewer / front);
  const Bytes of_behind = comm.bytes_per_rank * (fewer / behind);
  return at_any_clock(exchange_between(joined, of_front, of_behind));
}

Estimate CostModel::transfer(const Plan& plan, const Op& op, PriceExplanation* explanation) const {
  const auto& comm = std::get<CommOp>(op.body);
  const std::span<const int> ranks = plan.ranks(op.ranks);
  const bool is_between = impl_->behind != nullptr && is_of_both(machine(), plan, op);
  const bool is_in_domain = impl_->machine.in_one_nvlink_domain(ranks);
  if (comm.is_copied && (is_between || !is_in_domain)) {
    throw std::invalid_argument("op \"" + printed_name(op) +
                                "\" is copied between GPUs of several NVLink domains, expected "
                                "one, or an all_to_all that is not copied");
  }
  const BytesPerSecond nvlink = impl_->machine.spec.nvlink_rate;
  std::optional<Estimate> alone;
  const char* rows = "a measured curve";
  if (is_between) {
    alone = between_machines(plan, op);
    rows = "the slower of both machines' links";
  } else if (is_in_domain && (comm.is_copied || sides_of(plan, op))) {
    const auto copies = measured_copies({impl_->collectives, nvlink},
                                        bytes_leaving(comm, ranks.size()), impl_->options);
    if (copies) alone = at_any_clock(*copies);
  }
  if (!alone && comm.is_copied) {  // curves are of kernels
    alone = at_any_clock(modelled_collective(impl_->machine, {.sources = {}, .nvlink_rate = nvlink},
                                             comm, ranks, impl_->options));
    rows = "a formula";
  }
  if (!alone) {
    Estimate estimate = engine_collective(of_one_side(machine(), plan, op), ranks, explanation);
    correct(PricedCollective{comm, ranks.size(), impl_->options}, estimate,
            explanation == nullptr ? nullptr : &explanation->corrections);
    return estimate;
  }
  if (explanation != nullptr) {
    explanation->row_time = alone->time;
    explanation->rows = rows;
  }
  // Ranks are waited for between machines, and where each copies to all others; copies of one side
  // wait for nobody.
  if (is_between || comm.is_copied) {
    correct(PricedCollective{comm, ranks.size(), impl_->options}, *alone,
            explanation == nullptr ? nullptr : &explanation->corrections);
  }
  return *alone;
}

Estimate CostModel::price(const Plan& plan, const Op& op) const {
  const bool is_host = std::holds_alternative<HostOp>(op.body);
  if (impl_->behind != nullptr && !is_host && is_of_second(machine(), plan, op)) {
    return of_behind(plan, op, nullptr);
  }
  if (const auto* kernel_op = std::get_if<KernelOp>(&op.body)) {
    return kernel(*kernel_op);
  }
  if (const auto* comm_op = std::get_if<CommOp>(&op.body)) {
    Estimate estimate = transfer(plan, op, nullptr);
    estimate.energy = impl_->energy(*comm_op);
    return estimate;
  }
  return host(std::get<HostOp>(op.body));
}

PriceExplanation CostModel::explain(const Plan& plan, const Op& op) const {
  PriceExplanation explanation;
  const bool is_host = std::holds_alternative<HostOp>(op.body);
  if (impl_->behind != nullptr && !is_host && is_of_second(machine(), plan, op)) {
    explanation.price = of_behind(plan, op, &explanation);
    return explanation;
  }
  if (const auto* kernel_op = std::get_if<KernelOp>(&op.body)) {
    explanation.price = impl_->compute(*kernel_op, &explanation);
  } else if (std::holds_alternative<CommOp>(op.body)) {
    explanation.price = transfer(plan, op, &explanation);
  } else {
    explanation.price = host(std::get<HostOp>(op.body));
    explanation.row_time = explanation.price.time;
    explanation.rows = "the engine profile";
  }
  return explanation;
}

std::vector<SourceUse> CostModel::sources_used() const {
  const std::lock_guard lock(impl_->used_mutex);
  return {impl_->used.begin(), impl_->used.end()};
}

std::vector<CollectiveKind> CostModel::unmeasured_collectives() const {
  const std::lock_guard lock(impl_->used_mutex);
  return {impl_->unmeasured.begin(), impl_->unmeasured.end()};
}

void CostModel::join(const CostModel& behind) {
  assert(impl_->machine.joined != nullptr);
  impl_->behind = &behind;
}

const Machine& CostModel::machine() const { return impl_->machine; }
const CostOptions& CostModel::options() const { return impl_->options; }

}  // namespace orrery
