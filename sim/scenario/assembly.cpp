#include "sim/scenario/assembly.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "sim/machine/joined_machines.h"
#include "sim/parallel/rank_rows.h"
#include "sim/plan/halves.h"
#include "sim/serve/step_time.h"
#include "sim/units/largest_normal.h"

namespace orrery {

// The machine as far as anything of it is simulated: replicas behind a router are equal and timed
// as the first, so only its nodes, or those of both sides of a disaggregated service on one
// machine, are built. Whole NVLink domains, in which no route or rate depends on how many there
// are.
MachineSpec simulated_part(const Scenario& scenario) {
  std::int64_t needed = num_ranks(scenario.mesh);
  if (scenario.ffn) needed -= num_ffn_ranks(scenario.mesh);
  if (scenario.disaggregation && !scenario.disaggregation->has_two_machines) {
    needed = num_gpus(scenario.disaggregation->prefill.placement) +
             num_gpus(scenario.disaggregation->decode.placement);
  }
  return machine_part(scenario.machine_spec, needed);
}

Scenario ffn_alone(const Scenario& scenario) {
  Scenario alone = scenario;
  static_cast<MachineSetting&>(alone) = scenario.ffn->setting;
  alone.ffn.reset();
  alone.side = kFfnSide;
  alone.mesh = {.dp = scenario.mesh.ffn_instances, .tp = scenario.mesh.ffn_tp};
  return alone;
}

namespace {

// Of attention and, behind it, of FFNs where those are on a machine of their own.
Machine simulated_machine(const Scenario& scenario, const Assembly* ffn) {
  Machine machine = make_machine(simulated_part(scenario));
  if (ffn == nullptr) return machine;
  const int num_attention = num_ranks(scenario.mesh) - num_ffn_ranks(scenario.mesh);
  return join_machines(machine, num_attention, ffn->machine(), scenario.ffn->rate,
                       scenario.ffn->latency);
}

std::vector<std::shared_ptr<const Provider>> load_providers(const Scenario& scenario) {
  std::vector<std::shared_ptr<const Provider>> loaded;
  loaded.reserve(scenario.kernel_tables.size());
  for (const KernelDirectory& directory : scenario.kernel_tables) {
    loaded.push_back(shared_provider(directory.path));
  }
  return loaded;
}

std::vector<std::shared_ptr<const CollectiveTables>> load_collectives(const Scenario& scenario) {
  std::vector<std::shared_ptr<const CollectiveTables>> loaded;
  loaded.reserve(scenario.collective_tables.size());
  for (const CollectiveDirectory& directory : scenario.collective_tables) {
    loaded.push_back(shared_collectives(directory.path));
  }
  return loaded;
}

// The op that an engine computes routed experts by.
constexpr std::string_view kExpertsKernel = "moe";

// That some table has rows of the backend asked for in the experts' format.
void require_backend(const Scenario& scenario,
                     std::span<const std::shared_ptr<const Provider>> providers) {
  if (scenario.moe.backend.empty() || scenario.model_config.num_experts == 0) return;
  const Precision& precision = scenario.precision;
  const DType format = precision.expert_weights.value_or(precision.weights);
  std::string found;
  for (std::size_t i = 0; i < providers.size(); ++i) {
    const KernelDirectory& directory = scenario.kernel_tables[i];
    for (const std::string& name : providers[i]->backends(kExpertsKernel, format)) {
      if (name == scenario.moe.backend) return;
      found += (found.empty() ? "" : ", ") + name + " (" + directory.provider + " on " +
               directory.device.name + ")";
    }
  }
  throw std::invalid_argument("backend: found " + scenario.moe.backend +
                              ", of which no table has rows of experts in " +
                              std::string(to_text(format)) + "; expected " +
                              (found.empty() ? "auto" : "auto, or one that has some: " + found));
}

enum class Pieces : std::uint8_t { kDecodes, kMixed };

// Ranks meet in every layer, so the slowest host decides.
void enqueue_as_slowest(HostCosts& host, double spread, int ranks) {
  const double slowest = 1 + spread * largest_normal(ranks);
  host.eager_launch = host.eager_launch * slowest;
  if (host.eager_collective) host.eager_collective = *host.eager_collective * slowest;
}

CostModel make_cost(const Scenario& scenario, const Machine& machine,
                    std::span<const KernelDirectory> directories,
                    std::span<const std::shared_ptr<const Provider>> providers,
                    std::span<const std::shared_ptr<const CollectiveTables>> collectives,
                    LaunchMode mode, std::optional<Pieces> pieces = {}) {
  std::vector<KernelSource> kernels;
  kernels.reserve(directories.size());
  for (std::size_t i = 0; i < directories.size(); ++i) {
    kernels.push_back({.provider = providers[i].get(),
                       .device = &directories[i].device,
                       .origin = directories[i].origin});
  }
  std::vector<CollectiveSource> curves;
  curves.reserve(collectives.size());
  for (std::size_t i = 0; i < collectives.size(); ++i) {
    curves.push_back({.tables = collectives[i].get(),
                      .nvlink_rate = scenario.collective_tables[i].nvlink_rate,
                      .is_own = scenario.collective_tables[i].is_own});
  }
  CostOptions options;
  options.launch_mode = mode;
  options.host = scenario.engine_profile.host;
  const EngineProfile& profile = scenario.engine_profile;
  // Steps with prompts have the same kernels in pieces as launched eagerly.
  const bool is_eager = mode == LaunchMode::kEager || pieces == Pieces::kMixed;
  if (pieces) options.host.eager_launch = profile.piece_launch;
  enqueue_as_slowest(options.host, profile.launch_spread, num_ranks(scenario.mesh));
  options.kernel_time = is_eager ? profile.kernel_time.eager : profile.kernel_time.graph;
  options.moe_kernel_time = is_eager ? profile.kernel_time.eager_moe : profile.kernel_time.graph;
  options.power = profile.power_limit;
  options.kernel_times = profile.kernel_time.kernels;
  options.moe_tables = profile.moe_tables;
  options.moe_backend = scenario.moe.backend;
  options.all_reduce_implementation = scenario.engine_profile.all_reduce_implementation;
  // Engines' own kernels write to each other's memory over NVLink; beyond two GPUs on PCIe they are
  // off (vllm/distributed/device_communicators/custom_all_reduce.py).
  if (scenario.machine_spec.kind == kPcieNode && scenario.mesh.tp > 2) {
    options.all_reduce_implementation = "nccl";
  }
  options.custom_all_reduce = scenario.engine_profile.custom_all_reduce;
  options.moe_distribution = to_text(scenario.expert_load.skew);
  const ModelConfig& model = scenario.model_config;
  if (model.num_experts > 0 && scenario.moe.design != MoeDesign::kFused) {
    options.expert_choices =
        choice_probabilities(scenario.expert_shares, model.num_experts, model.num_experts_per_tok);
    std::ranges::sort(options.expert_choices, std::ranges::greater{});
  }
  // Of layers that are one kernel, which a layer by itself may be beside other designs; they have
  // no copies of experts.
  if (model.num_experts > 0 && !scenario.expert_shares.shares.empty() &&
      scenario.mesh.num_redundant_experts == 0) {
    options.slot_choices = choice_probabilities(scenario.mesh.expert_load, model.num_experts,
                                                model.num_experts_per_tok);
  }
  return {machine, std::move(kernels), std::move(curves), std::move(options)};
}

}  // namespace

Assembly::Assembly(const Scenario& scenario)
    : ffn_(scenario.ffn ? std::make_unique<Assembly>(ffn_alone(scenario)) : nullptr),
      machine_(
          at_key(scenario, "machine", [&] { return simulated_machine(scenario, ffn_.get()); })),
      kernel_directories_(scenario.kernel_tables),
      moe_backend_(scenario.moe.backend),
      providers_(at_key(scenario, "provider", [&] { return load_providers(scenario); })),
      collectives_(at_key(scenario, "machine", [&] { return load_collectives(scenario); })),
      costs_{make_cost(scenario, machine_, kernel_directories_, providers_, collectives_,
                       LaunchMode::kEager),
             make_cost(scenario, machine_, kernel_directories_, providers_, collectives_,
                       LaunchMode::kGraph)} {
  at_key(scenario, "moe", [&] { require_backend(scenario, providers_); });
  static_assert(static_cast<int>(LaunchMode::kEager) == 0 &&
                static_cast<int>(LaunchMode::kGraph) == 1);
  if (ffn_) {
    costs_[0].join(ffn_->costs_[0]);
    costs_[1].join(ffn_->costs_[1]);
  }
  const EngineProfile& profile = scenario.engine_profile;
  if (profile.launch_mode == LaunchMode::kEager || profile.cuda_graphs == CudaGraphs::kDecodes) {
    return;
  }
  const auto make = [&](Pieces pieces) {
    return make_cost(scenario, machine_, kernel_directories_, providers_, collectives_,
                     LaunchMode::kGraph, pieces);
  };
  mixed_pieces_.reset(new CostModel(make(Pieces::kMixed)));
  if (ffn_) mixed_pieces_->join(*ffn_->mixed_pieces_);
  if (profile.cuda_graphs == CudaGraphs::kPiecewise) {
    decode_pieces_.reset(new CostModel(make(Pieces::kDecodes)));
    if (ffn_) decode_pieces_->join(*ffn_->decode_pieces_);
  }
}

std::vector<const CostModel*> Assembly::all_costs() const {
  std::vector<const CostModel*> all{costs_.data(), costs_.data() + 1, mixed_pieces_.get(),
                                    decode_pieces_.get()};
  std::erase(all, nullptr);
  return all;
}

std::vector<TableUse> Assembly::tables_used() const {
  const auto named = [&](const std::string& kernel) {
    const bool is_chosen = kernel == kExpertsKernel && !moe_backend_.empty();
    return is_chosen ? kernel + " (" + moe_backend_ + ")" : kernel;
  };
  std::vector<SourceUse> uses;
  for (const CostModel* cost : all_costs()) {
    std::ranges::copy(cost->sources_used(), std::back_inserter(uses));
  }
  std::ranges::sort(uses);
  uses.erase(std::unique(uses.begin(), uses.end()), uses.end());
  std::vector<TableUse> tables;
  for (std::size_t i = 0; i < kernel_directories_.size(); ++i) {
    const KernelDirectory& directory = kernel_directories_[i];
    TableUse table{directory.provider, directory.device.name, directory.origin, {}};
    for (const SourceUse& use : uses) {
      if (use.source_idx == i) {
        table.kernels.push_back(named(use.kernel));
      }
    }
    if (!table.kernels.empty()) {
      tables.push_back(std::move(table));
    }
  }
  return tables;
}

std::vector<CollectiveKind> Assembly::unmeasured_collectives() const {
  std::set<CollectiveKind> kinds;
  for (const CostModel* cost : all_costs()) {
    for (const CollectiveKind kind : cost->unmeasured_collectives()) kinds.insert(kind);
  }
  return {kinds.begin(), kinds.end()};
}

namespace {

// The first rank sends each micro-batch on, once.
double num_micro_batches(const Plan& plan) {
  const auto is_sent = [&](const Op& op) {
    const auto* comm = std::get_if<CommOp>(&op.body);
    return comm != nullptr && comm->kind == CollectiveKind::kSendRecv &&
           std::ranges::find(plan.ranks(op.ranks), 0) != plan.ranks(op.ranks).end();
  };
  return static_cast<double>(
      std::max<std::ptrdiff_t>(1, std::ranges::count_if(plan.ops(), is_sent)));
}

}  // namespace

PricedPlan price_repeated(const Assembly& assembly, const Scenario& scenario, const Plan& plan,
                          LaunchMode mode) {
  const PowerLimit& limit = scenario.engine_profile.power_limit;
  PricedPlan full = price(plan, assembly.cost(mode));
  if (!limit.acts()) {
    return full;
  }
  const Seconds busy = total(full.basis);
  const int stages = scenario.mesh.pp;
  const Seconds idle = busy * ((stages - 1.0) / num_micro_batches(plan));
  const double part = repeated_limited_part(limit, busy, full.arithmetic, idle);
  return part == 0 ? full : limited(full, part);
}

std::vector<std::int64_t> graph_batch_sizes(const Scenario& scenario) {
  const EngineProfile& profile = scenario.engine_profile;
  std::vector<std::int64_t> sizes;
  if (profile.launch_mode != LaunchMode::kEager && profile.cuda_graphs != CudaGraphs::kPiecewise &&
      !has_host_syncs(scenario.moe, scenario.mesh)) {
    sizes = profile.graph_batch_sizes;
    // Larger batches than max_num_seqs never run, so the engine captures none above the next size.
    const auto first_unused = std::ranges::lower_bound(sizes, scenario.engine.max_num_seqs);
    if (first_unused != sizes.end()) {
      sizes.erase(first_unused + 1, sizes.end());
    }
  }
  return sizes;
}

void require_megakernel(const Scenario& scenario, std::int64_t num_decodes) {
  const EngineProfile& profile = scenario.engine_profile;
  const Device& device = scenario.machine_spec.device;
  if (!profile.megakernel) {
    throw std::invalid_argument("the engine profile " + profile.name +
                                " has no megakernel, expected profile: orrery");
  }
  if (device.architecture != "hopper") {
    throw std::invalid_argument("the megakernel runs on devices of architecture hopper, found " +
                                device.name + "; expected such as h200-sxm");
  }
  const Batch batch{.num_decodes = num_decodes, .decode_context = num_decodes};
  megakernel::require_runs(
      parallelize(lower(scenario.model_config, batch, lowering_options(scenario)), scenario.mesh));
}

std::vector<std::int64_t> megakernel_batch_sizes(const Scenario& scenario) {
  if (scenario.engine_profile.launch_mode != LaunchMode::kMegakernel) return {};
  std::vector<std::int64_t> taken;
  at_key(scenario, "engine", [&] {
    try {
      require_megakernel(scenario, megakernel::kBatchSizes.front());
    } catch (const ScenarioError&) {
      throw;
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument("launch_mode: megakernel is not possible: " +
                                  std::string(error.what()) + "; or launch_mode: graph");
    }
    for (const std::int64_t size : graph_batch_sizes(scenario)) {
      if (std::ranges::find(megakernel::kBatchSizes, size) == megakernel::kBatchSizes.end()) {
        continue;
      }
      try {
        require_megakernel(scenario, size);
      } catch (const std::invalid_argument&) {  // too many sequences: they are graphs
        break;
      }
      taken.push_back(size);
    }
    if (taken.empty()) {
      throw std::invalid_argument(
          "launch_mode: megakernel, and none of graph_batch_sizes is one that it takes; expected "
          "1, 2, 4 or 8 among them");
    }
  });
  return taken;
}

megakernel::MachineTimes megakernel_times(const Scenario& scenario) {
  megakernel::MachineTimes times = scenario.engine_profile.megakernel.value();
  // Where no stream of reads was measured, the share of the data sheet's rate that an H200 reads
  // (topologies/devices/h200-sxm: 4,710 of 4,800 GB/s).
  constexpr double kShare = 4710.0 / 4800.0;
  const Device& device = scenario.machine_spec.device;
  const BytesPerSecond measured = device.sharing.hbm_rate;
  times.hbm_rate = measured > BytesPerSecond(0) ? measured : device.hbm_bandwidth * kShare;
  return times;
}

LaunchMode launch_mode(const Scenario& scenario, const Batch& batch) {
  const std::int64_t dp = scenario.mesh.dp;
  const auto rows = graph_rows(batch, scenario.mesh.dp, graph_batch_sizes(scenario));
  if (!rows) return LaunchMode::kEager;
  const std::vector<std::int64_t> of_one_kernel = megakernel_batch_sizes(scenario);
  const bool is_one_kernel = std::ranges::find(of_one_kernel, *rows / dp) != of_one_kernel.end();
  return is_one_kernel ? LaunchMode::kMegakernel : LaunchMode::kGraph;
}

namespace {

// Ops that rank 0 runs, those of repeats as often as they are run.
std::int64_t num_ops(const Plan& plan) {
  std::int64_t count = 0;
  for (OpId id = 0; static_cast<std::size_t>(id) < plan.ops().size(); ++id) {
    const Op& op = plan.ops()[static_cast<std::size_t>(id)];
    if (plan.contains(op.ranks, 0)) count += plan.multiplicity(id);
  }
  return count;
}

// Steps with prompts have as many ops, whatever their rows.
Seconds new_rows(const Scenario& scenario) {
  const EngineProfile& profile = scenario.engine_profile;
  if (profile.new_rows_per_op == Seconds(0)) return profile.new_rows;
  Mesh mesh = scenario.mesh;
  if (mesh.two_batch_overlap) mesh.num_micro_batches = kNumHalves;
  const Batch rank{.prefill = {{.query = kNumHalves}}};
  const Plan plan =
      step_plan(scenario.model_config, alike_shape(rank, mesh), lowering_options(scenario), mesh);
  const bool is_spread =
      std::ranges::any_of(plan.ops(), [](const Op& op) { return op.stream > 0; });
  return profile.new_rows + profile.new_rows_per_op * static_cast<double>(num_ops(plan)) *
                                (is_spread ? profile.new_rows_streams : 1);
}

}  // namespace

SimulatedStepsConfig steps_config(const Scenario& scenario, const Assembly& assembly,
                                  bool contexts_differ) {
  SimulatedStepsConfig config;
  config.model = scenario.model_config;
  config.mesh = scenario.mesh;
  config.lowering = lowering_options(scenario);
  config.level = scenario.step_level;
  config.machine = &assembly.machine();
  config.graph_cost = &assembly.graph_cost();
  config.eager_cost = &assembly.eager_cost();
  const EngineProfile& profile = scenario.engine_profile;
  config.scheduler_base = profile.scheduler_base + profile.serve_base;
  config.scheduler_per_sequence = profile.scheduler_per_sequence + profile.serve_per_sequence;
  config.prefill_base = profile.prefill_base;
  config.new_rows = new_rows(scenario);
  config.new_attention = profile.new_attention;
  config.attention_shape = profile.attention_shape;
  if (contexts_differ) config.uneven_attention = profile.kernel_time.uneven_attention;
  config.graph_batch_sizes = graph_batch_sizes(scenario);
  config.megakernel_batch_sizes = megakernel_batch_sizes(scenario);
  if (!config.megakernel_batch_sizes.empty()) config.megakernel = megakernel_times(scenario);
  if (!has_host_syncs(scenario.moe, scenario.mesh)) {
    config.max_piece_tokens = profile.max_piece_tokens;
    config.mixed_piece_cost = assembly.mixed_piece_cost();
    config.decode_piece_cost = assembly.decode_piece_cost();
  }
  config.async_scheduling = scenario.engine.async_scheduling;
  return config;
}

namespace {

LoweringOptions draft_lowering(const Scenario& scenario) {
  LoweringOptions options = lowering_options(scenario);
  options.precision = scenario.speculative->precision;
  if (!scenario.speculative->model.empty()) options.expert_load = {};  // of other experts
  return options;
}

}  // namespace

SimulatedStepsConfig draft_config(const Scenario& scenario, const Assembly& assembly,
                                  bool contexts_differ) {
  SimulatedStepsConfig config = steps_config(scenario, assembly, contexts_differ);
  config.model = scenario.speculative->model_config;
  config.mesh = scenario.speculative->mesh;
  config.lowering = draft_lowering(scenario);
  // The host's time of a step is the target's.
  config.scheduler_base = config.scheduler_per_sequence = Seconds(0);
  config.prefill_base = config.new_rows = Seconds(0);
  return config;
}

MemoryBudget memory_budget(const Scenario& scenario) {
  const EngineProfile& profile = scenario.engine_profile;
  CapacityRequest request;
  request.model = scenario.model_config;
  request.mesh = scenario.mesh;
  request.lowering = lowering_options(scenario);
  request.engine = scenario.engine;
  const bool has_graphs =
      !graph_batch_sizes(scenario).empty() || profile.cuda_graphs == CudaGraphs::kPiecewise;
  request.graphs = has_graphs ? profile.graph_memory : Bytes(0);
  request.communication = num_ranks(scenario.mesh) > 1 ? profile.communication_buffers : Bytes(0);
  request.context = profile.context_memory + profile.library_memory;
  request.keeps_window_kv = profile.keeps_window_kv;
  request.workspace = profile.workspace_memory;
  if (scenario.speculative) {
    const SpeculativeSpec& draft = *scenario.speculative;
    request.engine.speculation = speculation(draft, scenario.seed);
    request.draft = {.model = draft.model_config,
                     .mesh = draft.mesh,
                     .lowering = draft_lowering(scenario),
                     .shares_embedding = draft.shares_embedding()};
  }
  if (scenario.ffn) request.ffn_device = &scenario.ffn->setting.machine_spec.device;
  return at_key(scenario, scenario.disaggregation ? "disaggregation" : "placement",
                [&] { return memory_budget(request, scenario.machine_spec.device); });
}

LoweringOptions lowering_options(const Scenario& scenario) {
  LoweringOptions options;
  options.precision = scenario.precision;
  options.mla_form = scenario.engine_profile.mla_form;
  options.attention_form = scenario.engine_profile.attention_form;
  set_moe(scenario.moe, options);
  options.expert_load = scenario.expert_shares;
  return options;
}

}  // namespace orrery
