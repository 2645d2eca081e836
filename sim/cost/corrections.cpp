#include "sim/cost/corrections.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <stdexcept>
#include <variant>
#include <vector>

#include "kernels/launch_gpu.h"
#include "sim/cost/clock.h"
#include "sim/cost/group_rows.h"
#include "sim/cost/moe_capacity.h"
#include "sim/cost/provider_tables.h"
#include "sim/cost/roofline.h"
#include "sim/units/largest_normal.h"

namespace orrery {
namespace {

void to_device(const PricedCall& call, Estimate& estimate) {
  if (call.found != nullptr) estimate.time = call.found->time;
}

// Tables have shapes whose tactics were not tuned when they were timed, as an engine tunes them
// when it starts or ships them: TensorRT-LLM's bf16 experts of Mixtral 8x22B over eight GPUs take
// nine times what their weights take to read, six times as long as vLLM's and SGLang's. So no more
// is taken than this many times the slowest of the others.
constexpr double kMostOfOthers = 2;

void untuned_experts(const PricedCall& call, Estimate& estimate) {
  if (!call.slowest_of_others) return;
  const Seconds most = *call.slowest_of_others * kMostOfOthers;
  if (!(most < estimate.time)) return;
  estimate.time = most;
  if (estimate.basis != Basis::kRoofline) estimate.basis = Basis::kInterpolated;
}

// Lines between and beyond rows go on as the rows around bend, by more than the GPU can follow: on
// an H100 to 1,030 TFLOP/s in bf16, where its rows end at 838.
void fastest_row(const PricedCall& call, Estimate& estimate) {
  if (call.found == nullptr) return;
  const double slower = call.found->at_fastest_row / call.found->measured;
  estimate.time = std::max(estimate.time, call.found->time * slower);
}

// Share of the HBM rate that quantising of a whole input reaches: gemm rows of the shipped tables
// against cuBLAS GEMMs of quantised inputs on an H200, 8,192 rows, n 2,560 (docs/data.md).
constexpr double kQuantizeBandwidth = 0.42;
// What is left of a row at least when the quantising is taken out.
constexpr double kLeastRemainder = 0.4;

Seconds quantize_time(const Device& device, Seconds floor, std::int64_t rows,
                      std::int64_t columns) {
  constexpr double kBytesPerElement = 3;  // bf16 in, fp8 out
  const Bytes moved(static_cast<double>(rows) * static_cast<double>(columns) * kBytesPerElement);
  return floor + moved / (device.hbm_bandwidth * kQuantizeBandwidth);
}

// Takes out what a plan has as an op of its own: of the time on the device of the rows that part
// stays which stays there, so a faster device is not slower for having less taken out.
void without_included(const PricedCall& call, Estimate& estimate) {
  if (call.found == nullptr) return;
  const KernelOp& op = call.answered;
  const auto* held = call.source->provider->tables().quantizing(op.kernel, op.dtype);
  if (held == nullptr || held->floor.value() == 0) return;
  const Seconds quantize =
      quantize_time(*call.source->device, held->floor, dim(op.dims, "m"), dim(op.dims, "k"));
  const Seconds before = estimate.time;
  estimate.time = before * std::max(1 - quantize / call.found->measured, kLeastRemainder);
  if (estimate.time != before) estimate.basis = std::max(estimate.basis, Basis::kInterpolated);
}

// What the calls before have written is in the L2 cache only in part: norms, rope, silu_mul and
// kv_append of 128 and 1,000 tokens in steps of scenarios/validate/fit_8b.yaml save 0.4 to 0.7 of
// what all operands in the cache save, those of 2,048 tokens in judged steps as executed before
// 0 to 0.5 (docs/validation/README.md).
constexpr double kWarmPart = 0.4;

void warm_operands(const PricedCall& call, Estimate& estimate) {
  if (call.found == nullptr) return;
  const Work work = work_of(call.answered);
  const double warm = call.table->warm_ratio(work.bytes_read + work.bytes_written);
  estimate.time = estimate.time * (1 - kWarmPart * (1 - warm));
}

// Weights that a pass over more rows of the same group reads again come from the L2 cache as far as
// it holds them, where that costs this part of reading them from HBM. Both by 24 calls with groups
// of more than 64 rows in steps of scenarios/validate/unseen as executed on an H200 on 2026-11-29,
// weights of 9 to 403 MB a group, which are then off by -4 to +8 %, -1 % in the median; calls of
// models executed after that by -7 to +10 %.
constexpr double kRereadFromL2 = 0.35;
constexpr double kHeldByL2 = 40e6;  // bytes

constexpr double kStreamedRows = 64;  // of a group in one pass (StreamedTile)

// Of a dim; the number of dims where there is none of that name.
std::size_t index_of(const KernelSpec& spec, std::string_view name) {
  return static_cast<std::size_t>(std::ranges::find(spec.dims, name, &DimSpec::name) -
                                  spec.dims.begin());
}

// Whether our own rows answer a call whose rows lie in groups that tokens choose.
bool is_of_chosen_groups(const PricedCall& call) {
  if (call.options.expert_choices.empty() || call.found == nullptr) return false;
  if (call.source->provider->name() != kOwnProvider) return false;
  const KernelSpec& spec = call.table->spec();
  return spec.way != nullptr && index_of(spec, "groups") < spec.dims.size();
}

// The fewest rows that `spec` takes in the same way as `sizes`, which its dim `rows` is set to.
std::int64_t fewest_of_way(const KernelSpec& spec, DType dtype, std::vector<std::int64_t> sizes,
                           std::size_t rows, std::int64_t least) {
  const int way = spec.way(dtype, sizes);
  std::int64_t most = sizes[rows];
  while (least < most) {
    sizes[rows] = least + (most - least) / 2;
    if (spec.way(dtype, sizes) == way) {
      most = sizes[rows];
    } else {
      least = sizes[rows] + 1;
    }
  }
  return most;
}

// Groups of unequal numbers of rows take each what it would take among others like it. The kernel
// that streams weights reads those of a full group again and again; tiles read them no faster for
// groups of few rows, which rows of the table have of the other kernel.
void rows_by_group(const PricedCall& call, Estimate& estimate) {
  const std::vector<double>& choices = call.options.expert_choices;
  if (!is_of_chosen_groups(call) || choices.front() == choices.back()) return;
  const KernelSpec& spec = call.table->spec();
  const auto at = [&](std::string_view name) { return index_of(spec, name); };
  const DType dtype = call.answered.dtype;
  std::vector<std::int64_t> sizes = ordered_dims(spec, call.answered);
  const std::int64_t active = sizes[at("active")];
  const std::vector<GroupRows> groups =
      group_rows(choices, sizes[at("rows")], sizes[at("groups")], active);
  if (groups.empty()) return;
  double longer = 1;
  if (spec.way(dtype, sizes) == 1) {
    const double elements =
        static_cast<double>(sizes[at("n")]) * static_cast<double>(sizes[at("k")]);
    const double held = std::max(1 - elements * bytes_per_element(dtype) / kHeldByL2, 0.0);
    const double again = held * kRereadFromL2 + 1 - held;
    longer = uneven_over_even(groups, [&](double rows) {
      return 1 + (expected_passes(rows, kStreamedRows) - 1) * again;
    });
  } else {
    const std::int64_t fewest = fewest_of_way(spec, dtype, sizes, at("rows"), active);
    longer = uneven_over_even(groups, [&](double rows) {
      const double all = std::round(rows * static_cast<double>(active));
      sizes[at("rows")] = std::max(fewest, static_cast<std::int64_t>(all));
      const std::optional<Prediction> found =
          predict(*call.table, *call.source->device, call.device, dtype, 0, sizes);
      return found ? found->time.value() : 1.0;
    });
  }
  estimate.time = estimate.time * longer;
  if (longer != 1) estimate.basis = std::max(estimate.basis, Basis::kInterpolated);
}

// 6 % of 64 groups and more: layers of experts by themselves over their rows of the same minutes,
// Qwen3-30B-A3B at 1,400 tokens, DeepSeek-V2-Lite at 1,040 and 64 experts of 2,048 at 2,816 on one
// H200, are 4 to 9 % longer. In executed steps the 8 experts of Mixtral-8x7B are -1 to 2 %, which
// the share was chosen by. Why is not known.
constexpr double kOfManyGroups = 0.06;
constexpr double kManyGroups = 64;

void many_groups(const PricedCall& call, Estimate& estimate) {
  if (call.found == nullptr || call.source->provider->name() != kOwnProvider) return;
  const KernelSpec& spec = call.table->spec();
  const std::size_t active = index_of(spec, "active");
  if (spec.way == nullptr || active == spec.dims.size()) return;
  const std::vector<std::int64_t> sizes = ordered_dims(spec, call.answered);
  if (spec.way(call.answered.dtype, sizes) == 1) return;  // streams weights
  const double share = std::min(static_cast<double>(sizes[active]) / kManyGroups, 1.0);
  estimate.time = estimate.time * (1 + kOfManyGroups * share);
}

// As many experts as are reached on average lie between two whole numbers, of which a call names
// the nearer one.
void experts_reached(const PricedCall& call, Estimate& estimate) {
  const std::vector<double>& choices = call.options.expert_choices;
  if (!is_of_chosen_groups(call)) return;
  const KernelSpec& spec = call.table->spec();
  const auto at = [&](std::string_view name) { return index_of(spec, name); };
  std::vector<std::int64_t> sizes = ordered_dims(spec, call.answered);
  const std::int64_t rows = sizes[at("rows")];
  if (sizes[at("groups")] != std::ssize(choices)) return;  // a part of them
  const double reached = expected_groups(choices, rows);
  const double most = static_cast<double>(std::min(rows, sizes[at("groups")]));
  if (!(reached >= 1) || reached > most || sizes[at("active")] < 1) return;
  const auto time_of = [&](double active) {
    sizes[at("active")] = static_cast<std::int64_t>(active);
    const std::optional<Prediction> found =
        predict(*call.table, *call.source->device, call.device, call.answered.dtype, 0, sizes);
    return found ? found->time.value() : 1.0;
  };
  const double named = time_of(static_cast<double>(sizes[at("active")]));
  const double fewer = time_of(std::floor(reached));
  const double more = time_of(std::ceil(reached));
  const double part = reached - std::floor(reached);
  estimate.time = estimate.time * ((fewer * (1 - part) + more * part) / named);
}

// 1.3 us: decodes of scenarios/validate/fit_8b.yaml, which is not judged, then err by -0.7 to
// 0.0 %, without it by +0.3 to +1.0 %.
constexpr Seconds kBeforeStreamedWeights(1.3e-6);

void hidden_by_streaming(const PricedCall& call, Estimate& estimate) {
  if (call.found == nullptr || call.source->provider->name() != kOwnProvider) return;
  const auto precedes = call.table->spec().prior.precedes_streamed_weights;
  if (precedes != nullptr && precedes(call.answered.dims)) {
    estimate.time = std::min(estimate.time, kBeforeStreamedWeights);
  }
}

void eager_gap(const PricedCall& call, Estimate& estimate) {
  if (call.found != nullptr && call.options.launch_mode == LaunchMode::kEager) {
    estimate.time += call.table->eager_gap();
  }
}

// Relative standard deviations. Sibling: half of the 95th percentile of the H100's rows predicted
// from the H200's. Another engine's kernel: the vLLM, SGLang and TensorRT-LLM tables differ by
// about this on equal shapes.
constexpr double kSiblingSpread = 0.1;
constexpr double kOtherEngineSpread = 0.15;

// No better than this are rows that are not the provider's own of the device.
Basis basis_of(Origin origin) {
  if (origin >= Origin::kOtherArchitecture) return Basis::kRoofline;
  return origin == Origin::kOtherProvider ? Basis::kInterpolated : Basis::kBorrowed;
}

void of_other_rows(const PricedCall& call, Estimate& estimate) {
  if (call.found == nullptr) return;
  const double own = call.table->spec().prior.spread;
  const Origin origin = call.source->origin;
  if (origin != Origin::kOwn) {
    estimate.basis = std::max(estimate.basis, basis_of(origin));
    estimate.spread = origin == Origin::kSibling ? kSiblingSpread : kOtherEngineSpread;
  }
  if (estimate.basis == Basis::kInterpolated || estimate.basis == Basis::kBorrowed) {
    estimate.spread = std::max(estimate.spread, own);
  } else if (estimate.basis == Basis::kRoofline) {
    estimate.spread = std::max(kNearestSpread, own);
  }
}

void of_same_work(const PricedCall& call, Estimate& estimate) {
  if (&call.answered == &call.op) return;
  estimate.basis = std::max(estimate.basis, Basis::kInterpolated);
  estimate.spread = std::max(estimate.spread, call.spec.prior.spread);
}

void power_limit(const PricedCall& call, Estimate& estimate) {
  const bool has_short_rows = call.table != nullptr && call.table->leaves_out_long_calls();
  const RowClocks rows = routed_role(call.op) == RoutedRole::kLayer ? RowClocks::kRepeated
                         : has_short_rows                           ? RowClocks::kFull
                                                                    : RowClocks::kByLength;
  const ClockTimes times = at_clocks(estimate.time, call.options.power, call.device, call.op, rows);
  estimate.time = times.full;
  estimate.limited = times.limited;
  estimate.arithmetic = times.arithmetic;
}

void scale(Estimate& estimate, double factor) {
  estimate.time = estimate.time * factor;
  estimate.limited = estimate.limited * factor;
  estimate.arithmetic = estimate.arithmetic * factor;
}

void engine_factor(const PricedCall& call, Estimate& estimate) {
  scale(estimate, call.spec.prior.composite == Composite::kRoutedExperts
                      ? call.options.moe_kernel_time
                      : call.options.kernel_time);
}

void engine_factor_of_kernel(const PricedCall& call, Estimate& estimate) {
  const auto own = call.options.kernel_times.find(call.op.kernel);
  if (own != call.options.kernel_times.end()) scale(estimate, own->second);
}

// Rows are of layers that drop nothing, of tokens that choose all experts alike.
void layer_rows(const PricedCall& call, Estimate& estimate) {
  if (routed_role(call.op) != RoutedRole::kLayer) return;
  const KernelOp& asked = call.dropping == nullptr ? call.op : *call.dropping;
  std::span<const double> choices = call.options.slot_choices;
  if (std::ssize(choices) != dim(asked.dims, "experts_total")) choices = {};  // of another model
  if (call.dropping == nullptr && choices.empty()) return;
  scale(estimate, share_of_tiles(asked, call.device, choices));
  estimate.basis = Basis::kRoofline;
  estimate.spread = std::max(kNearestSpread, call.spec.prior.spread);
}

// Other engines' kernels are left what they were: SGLang, for one, launches GEMMs beside
// collectives on the SMs that these leave.
void dealt_work(const PricedCall& call, Estimate& estimate) {
  if (call.found == nullptr || call.source->provider->name() != kOwnProvider) return;
  if (call.spec.rounds != nullptr) estimate.rounds = call.spec.rounds(call.op.dtype, call.op.dims);
}

// As much longer as the blocks of a launch on fewer SMs say.
void fewer_sms(const PricedCall& call, Estimate& estimate) {
  const int free_sms = call.op.free_sms;
  const Prior& prior = call.spec.prior;
  if (free_sms == 0 || call.found == nullptr || call.source->provider->name() != kOwnProvider) {
    return;
  }
  estimate.free_sms = free_sms;
  estimate.rounds = 0;  // nothing of it waits
  if (prior.launch == nullptr) return;
  const FlopsPerSecond peak = peak_flops(call.device, arithmetic_dtype(call.spec, call.op.dtype));
  const auto on = [&](int num_sms) {
    return work_model_time(prior, work_of(call.op), peak, call.device.hbm_bandwidth,
                           prior.launch(call.op.dtype, call.op.dims, num_sms));
  };
  scale(estimate, std::max(on(launch::kNumSms - free_sms) / on(launch::kNumSms), 1.0));
}

// From when ranks come to a collective on average until the last is there.
void arrival_wait(const PricedCollective& call, Estimate& estimate) {
  constexpr std::array kKinds = {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter,
                                 CollectiveKind::kAllToAll};
  const HostCosts& host = call.options.host;
  const Seconds arrivals =
      call.options.launch_mode == LaunchMode::kEager ? host.eager_arrivals : host.graph_arrivals;
  if (arrivals == Seconds(0) || std::ranges::find(kKinds, call.op.kind) == kKinds.end()) {
    return;
  }
  const Seconds wait = arrivals * largest_normal(static_cast<int>(call.num_ranks));
  if (!(wait > Seconds(0))) return;
  estimate.time += wait;
  estimate.limited += wait;
  estimate.basis = std::max(estimate.basis, Basis::kInterpolated);
}

Seconds collective_launch(LaunchMode mode, const HostCosts& host) {
  return launch_time(mode, host, Launched::kCollective);
}

Seconds gemm_launch(LaunchMode mode, const HostCosts& host) {
  return launch_time(mode, host, Launched::kProduct);
}

Seconds latent_launch(LaunchMode mode, const HostCosts& host) {
  return launch_time(mode, host, Launched::kLatent);
}

constexpr std::array kCorrections = {
    Correction{.name = "device",
               .source = "peaks and rates of both devices (sim/cost/interpolate.cpp, on_device)",
               .of_kernel = to_device},
    Correction{.name = "untuned experts",
               .source = "at most twice the slowest of two other engines' rows of the call, "
                         "docs/data.md",
               .of_kernel = untuned_experts},
    Correction{.name = "fastest row",
               .source =
                   "the rows of the table in the call's format that reach the most FLOP/s and "
                   "the most bytes/s",
               .of_kernel = fastest_row},
    Correction{.name = "included quantising",
               .source = "includes.csv; 0.42 of the HBM rate, docs/data.md",
               .of_kernel = without_included},
    Correction{.name = "warm L2",
               .source = "rows of both L2 states; 0.4 of them, scenarios/validate/fit_8b.yaml",
               .of_kernel = warm_operands},
    Correction{.name = "rows by group",
               .source = "grouped_gemm.csv at other rows; 0.35 and 40 MB: "
                         "scenarios/validate/unseen as executed (docs/unseen.md)",
               .of_kernel = rows_by_group},
    Correction{.name = "many groups",
               .source = "6 % of 64 groups in tiles: layers by themselves over rows, docs/data.md",
               .of_kernel = many_groups},
    Correction{.name = "experts reached",
               .source = "grouped_gemm.csv at the whole numbers around the average",
               .of_kernel = experts_reached},
    Correction{.name = "streamed weights",
               .source = "at most 1.3 us before a GEMM that fetches its weights early, "
                         "scenarios/validate/fit_8b.yaml",
               .of_kernel = hidden_by_streaming},
    Correction{.name = "eager gap",
               .source = "rows of calls of less than 50 us in both launch modes",
               .of_kernel = eager_gap},
    Correction{.name = "other rows",
               .source = "docs/data.md: H100 from H200, other engines' tables",
               .of_kernel = of_other_rows},
    Correction{.name = "same work",
               .source = "the spec of the kernel: whose rows answer",
               .of_kernel = of_same_work},
    Correction{.name = "power limit",
               .source = "power_limit.csv of the device; engine profile, power_limit",
               .of_kernel = power_limit},
    Correction{.name = "engine",
               .source = "engine profile, kernel_time: graph, eager, eager_moe",
               .of_kernel = engine_factor},
    Correction{.name = "engine's kernel",
               .source = "engine profile, kernel_time: kernels",
               .of_kernel = engine_factor_of_kernel},
    Correction{.name = "rows of a layer",
               .source =
                   "choices and capacity of a layer's experts: its tiles with them over those "
                   "of all alike (sim/cost/moe_tiles.h)",
               .of_kernel = layer_rows},
    Correction{.name = "dealt work",
               .source = "launch geometry of our own kernels; cuBLASLt's by "
                         "topologies/devices/h200-sxm/held_sms.csv",
               .of_kernel = dealt_work},
    Correction{.name = "fewer SMs",
               .source = "SMs that the plan leaves to collectives; the launch of the kernel on the "
                         "others (KernelSpec::prior)",
               .of_kernel = fewer_sms},
    Correction{.name = "arrivals",
               .source = "engine profile, graph_arrivals and eager_arrivals",
               .of_collective = arrival_wait},
    Correction{.name = "hop between streams",
               .source = "engine profile, graph_hop and eager_hop",
               .between_ops = hop_time},
    Correction{.name = "collective launch",
               .source = "engine profile, eager_exchange",
               .between_ops = collective_launch},
    Correction{
        .name = "GEMM launch", .source = "engine profile, gemm_launch", .between_ops = gemm_launch},
    Correction{.name = "latent launch",
               .source = "engine profile, latent_launch",
               .between_ops = latent_launch}};

// Before the power limit is asked, `limited` says nothing.
bool differ(const Estimate& before, const Estimate& after) {
  return before.time != after.time || before.basis != after.basis ||
         before.spread != after.spread || before.arithmetic != after.arithmetic ||
         (before.limited != after.limited && after.limited != after.time);
}

template <typename Call>
void correct_by(void (*Correction::*act)(const Call&, Estimate&), const Call& call,
                Estimate& estimate, std::vector<AppliedCorrection>* applied) {
  for (const Correction& correction : kCorrections) {
    if (correction.*act == nullptr) continue;
    if (applied == nullptr) {
      (correction.*act)(call, estimate);
      continue;
    }
    const Estimate before = estimate;
    (correction.*act)(call, estimate);
    if (differ(before, estimate)) {
      applied->push_back({correction.name, correction.source, before, estimate});
    }
  }
}

}  // namespace

std::span<const Correction> corrections() { return kCorrections; }

void correct(const PricedCall& call, Estimate& estimate, std::vector<AppliedCorrection>* applied) {
  correct_by(&Correction::of_kernel, call, estimate, applied);
}

void correct(const PricedCollective& call, Estimate& estimate,
             std::vector<AppliedCorrection>* applied) {
  correct_by(&Correction::of_collective, call, estimate, applied);
}

Seconds hop_time(LaunchMode mode, const HostCosts& host) {
  return mode == LaunchMode::kGraph ? host.graph_hop : host.eager_hop;
}

Launched launched_for(const Op& op) {
  if (const auto* comm = std::get_if<CommOp>(&op.body)) {
    return comm->kind == CollectiveKind::kAllReduce ? Launched::kRows : Launched::kCollective;
  }
  const auto* kernel = std::get_if<KernelOp>(&op.body);
  if (kernel == nullptr || !is_launched(*kernel)) return Launched::kNothing;
  const KernelSpec* const spec = find_kernel_spec(kernel->kernel);
  if (spec != nullptr && spec->prior.is_issued_slowly) return Launched::kLatent;
  const bool is_rows = spec == nullptr || spec->prior.arithmetic == Arithmetic::kRows;
  return is_rows ? Launched::kRows : Launched::kProduct;
}

Seconds launch_time(LaunchMode mode, const HostCosts& host, Launched launched) {
  if (mode == LaunchMode::kGraph) return Seconds(0);
  switch (launched) {
    case Launched::kNothing:
      return Seconds(0);
    case Launched::kRows:
      return host.eager_launch;
    case Launched::kProduct:
      return host.eager_launch * host.gemm_launch;
    case Launched::kLatent:
      return host.eager_launch * host.latent_launch.value_or(host.gemm_launch);
    case Launched::kCollective:
      return host.eager_collective.value_or(host.eager_launch);
  }
  throw std::invalid_argument("a launch of an unknown kind");
}

std::array<double, kLaunchedKinds> launch_times(LaunchMode mode, const HostCosts& host) {
  std::array<double, kLaunchedKinds> times{};
  for (std::size_t kind = 0; kind < kLaunchedKinds; ++kind) {
    times[kind] = launch_time(mode, host, static_cast<Launched>(kind)).value();
  }
  return times;
}

}  // namespace orrery
