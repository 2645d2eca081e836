#include "kernels/execute/executor.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/execute/executor_state.h"
#include "sim/megakernel/program.h"

namespace orrery {

void set_execute_environment() {
  static_cast<void>(setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0));
  static_cast<void>(setenv("NCCL_NVLS_ENABLE", "0", /*overwrite=*/0));
  static_cast<void>(setenv("NCCL_GRAPH_MIXING_SUPPORT", "0", /*overwrite=*/0));
}

PreparedStep::PreparedStep(std::unique_ptr<State> state) : state_(std::move(state)) {}
PreparedStep::~PreparedStep() = default;
PreparedStep::PreparedStep(PreparedStep&&) noexcept = default;
PreparedStep& PreparedStep::operator=(PreparedStep&&) noexcept = default;
const Plan& PreparedStep::plan() const { return state_->plan; }
LaunchMode PreparedStep::mode() const { return state_->mode; }

Executor::Executor(ExecutorSetup setup) : state_(std::make_unique<State>(std::move(setup))) {}

Executor::~Executor() = default;

namespace {

void require_capturable(const Plan& plan) {
  for (const Op& op : plan.ops()) {
    const auto* host = std::get_if<HostOp>(&op.body);
    if (host == nullptr || host->kind != HostKind::kD2hSync || op.reads.empty()) continue;
    std::string counts;
    for (const TensorId id : op.reads) {
      counts.append(counts.empty() ? "\"" : ", \"")
          .append(plan.tensors()[static_cast<std::size_t>(id)].name)
          .append("\"");
    }
    throw std::invalid_argument("op \"" + printed_name(op) +
                                "\" cannot be captured: the host waits for " + counts +
                                "; expected eager mode, or a plan without it");
  }
}

}  // namespace

std::unique_ptr<PreparedStep> Executor::prepare(const Plan& plan, const StepInput& input,
                                                LaunchMode mode) {
  check_kernels(plan);
  if (plan.num_ranks() != num_ranks()) {
    throw std::invalid_argument("a plan of " + std::to_string(plan.num_ranks()) +
                                " ranks, the executor was made for " + std::to_string(num_ranks()));
  }
  if (mode == LaunchMode::kGraph) require_capturable(plan);
  if (mode == LaunchMode::kMegakernel) megakernel::require_runs(plan);
  State& state = *state_;
  auto prepared = std::make_unique<PreparedStep::State>();
  PreparedStep::State& step = *prepared;
  step.plan = plan;
  step.mode = mode;
  step.limit = std::max(step_limit(plan), state.setup.watch_limit.value_or(Seconds(0)));
  step.counts_faults = std::ranges::any_of(plan.ops(), counts_faults);
  step.num_micro_batches = num_micro_batches(plan);
  step.without_sequences.resize(static_cast<std::size_t>(step.num_micro_batches));
  step.ranks.resize(static_cast<std::size_t>(num_ranks()));
  state.open(plan);
  state.run_phase(RunPhase::kPrepare, [&](int r) {
    state.rank(r).take_memory("activations", [&] {
      step.ranks[static_cast<std::size_t>(r)] = std::make_unique<RankStep>(
          step.plan, step.mode, state.setup, state.rank(r), state.communicators, state.team);
    });
  });
  state.check_rows(step);
  const std::vector<StepPart> parts = state.split(step, input);
  state.bind(step, parts, input);
  if (mode == LaunchMode::kGraph) {
    Bytes RankMemory::* const first_run =
        num_ranks() > 1 ? &RankMemory::communication : &RankMemory::workspace;
    state.measure(first_run, [&] { static_cast<void>(state.run(step, parts)); });
    state.measure(&RankMemory::graphs, [&] {
      state.run_phase(RunPhase::kCapture, [&](int r) {
        state.rank(r).take_memory("graphs", [&] { step.rank(r).capture(/*counts_nodes=*/false); });
      });
    });
  }
  return std::make_unique<PreparedStep>(std::move(prepared));
}

StepOutput Executor::run(PreparedStep& step, const StepInput& input) {
  const std::vector<StepPart> parts = state_->split(step.state(), input);
  state_->bind_again(step.state(), parts, input);
  StepOutput output;
  const auto run = [&] { output = state_->run(step.state(), parts); };
  if (num_ranks() > 1 && !step.state().has_run) {
    state_->measure(&RankMemory::communication, run);  // NCCL connects ranks as they first meet
  } else {
    run();
  }
  if (step.state().counts_faults) require_scores(step, input);
  // Rows of NaN give token 0: what is cheap to see says when to look.
  if (std::ranges::find(output.next_tokens, 0) != output.next_tokens.end()) {
    const std::vector<float> values = logits(step);
    if (!state_->agree(
            std::ranges::all_of(values, [](float value) { return std::isfinite(value); }))) {
      check_finite(step, input);
      throw std::runtime_error("logits are not finite, though all that ops wrote is");
    }
  }
  return output;
}

// Who made the first value that is no number is more than who was given it.
void Executor::require_scores(PreparedStep& step, const StepInput& input) {
  const std::optional<RankError> faults = state_->find_faults(step.state());
  if (state_->agree(!faults)) return;
  const std::string found = faults ? faults->what() : "scores of another process are no numbers";
  try {
    check_finite(step, input);
  } catch (const RankError& error) {
    throw RankError(error.rank(), error.op(), error.message() + "; " + found);
  }
  if (faults) throw RankError(*faults);
  throw std::runtime_error(found);
}

void Executor::lose_value(PreparedStep& step, std::int32_t unit) {
  State& state = *state_;
  RankStep& own = step.state().rank(state.team.ranks().front());
  state.team.run([&](int) { own.lose_value(unit); });
}

StepOutput Executor::run_ahead(PreparedStep& step, const StepInput& input, std::int64_t steps) {
  State& state = *state_;
  for (const SequenceTokens& one : input.decodes) {
    const std::int64_t length = one.context + steps;
    const std::int64_t room = std::min(std::ssize(one.blocks) * state.setup.block_size,
                                       state.setup.numbers.max_positions);
    if (length <= room) continue;
    throw std::invalid_argument(std::to_string(steps) + " steps after " +
                                std::to_string(one.context) + " tokens need room for " +
                                std::to_string(length) + ", the sequence has it for " +
                                std::to_string(room));
  }
  RankStep& own = step.state().rank(state.team.ranks().front());
  state.team.run([&](int) { own.set_steps(steps); });
  StepOutput output;
  try {
    output = run(step, input);
    state.team.run([&](int) { output.next_tokens = own.step_tokens(); });
  } catch (const std::invalid_argument&) {  // after any other the executor runs nothing more
    state.team.run([&](int) { own.set_steps(1); });
    throw;
  }
  state.team.run([&](int) { own.set_steps(1); });
  return output;
}

megakernel::TimedProgram Executor::instruction_times(PreparedStep& step, const StepInput& input) {
  State& state = *state_;
  const int rank = state.team.ranks().front();
  RankStep& own = step.state().rank(rank);
  state.team.run([&](int) { own.keep_instruction_times(); });
  static_cast<void>(run(step, input));
  megakernel::TimedProgram times;
  state.team.run([&](int) { times = own.instruction_times(); });
  return times;
}

void Executor::check_finite(PreparedStep& step, const StepInput& input) {
  State& state = *state_;
  PreparedStep::State& prepared = step.state();
  if (prepared.mode == LaunchMode::kMegakernel) {  // no op of it can be looked at by itself
    static_cast<void>(state.run(prepared, state.split(prepared, input)));
    const std::vector<float> values = logits(step);
    const auto count = std::ranges::count_if(values, [](float v) { return !std::isfinite(v); });
    if (count == 0) return;
    throw RankError(state.team.ranks().front(), std::string(to_text(prepared.mode)),
                    "wrote " + std::to_string(count) + " logits that are not finite");
  }
  const std::vector<StepPart> parts = state.split(prepared, input);
  state.bind_again(prepared, parts, input);
  struct Found {
    int task = -1;
    std::uint32_t count = 0;
  };
  std::vector<Found> found(static_cast<std::size_t>(num_ranks()));
  state.run_watched(prepared, [&](int r) {
    RankStep& own = prepared.rank(r);
    own.stage(state.parts_of(prepared, parts, r), parts);
    own.enqueue_checked();
    own.wait();
    Found& first = found[static_cast<std::size_t>(r)];
    first.task = own.first_not_finite(first.count);
  });
  const auto task_of = [&](const Found& of) {
    const auto rank = static_cast<int>(&of - found.data());
    return prepared.rank(rank).tasks()[static_cast<std::size_t>(of.task)];
  };
  const auto is_before = [&](const Found& a, const Found& b) {
    if (a.task < 0 || b.task < 0) return a.task >= 0 && b.task < 0;
    return runs_before(prepared.plan, task_of(a), task_of(b));
  };
  const auto first = std::ranges::min_element(found, is_before);
  if (first->task < 0) return;
  const int rank = static_cast<int>(first - found.begin());
  const Task& task = prepared.rank(rank).tasks()[static_cast<std::size_t>(first->task)];
  throw RankError(rank, task_name(prepared.plan, task),
                  "wrote " + std::to_string(first->count) + " values that are not finite");
}

std::vector<float> Executor::logits(const PreparedStep& step) const {
  const PreparedStep::State& prepared = step.state();
  const auto num_parts = static_cast<std::size_t>(prepared.num_micro_batches);
  // By rank and micro-batch, [rows, vocab] each.
  std::vector<std::vector<float>> found(static_cast<std::size_t>(num_ranks()) * num_parts);
  state_->team.run_apart([&](int r) {
    for (std::size_t m = 0; m < num_parts; ++m) {
      if (prepared.rank(r).sampled(static_cast<int>(m)).empty()) continue;
      found[static_cast<std::size_t>(r) * num_parts + m] =
          prepared.rank(r).logits(static_cast<int>(m));
    }
  });
  std::size_t num_sampled = 0;
  for (const auto& sampled : prepared.sampled) num_sampled += sampled.size();
  std::vector<float> logits;
  for (std::size_t at = 0; at < found.size(); ++at) {
    if (found[at].empty()) continue;
    const auto r = static_cast<int>(at / num_parts);
    const auto m = static_cast<int>(at % num_parts);
    const auto part = static_cast<std::size_t>(state_->setup.grid.dp_rank(r)) * num_parts +
                      static_cast<std::size_t>(m);
    const std::vector<std::int64_t>& sampled = prepared.sampled[part];
    const RankStep& own = prepared.rank(r);
    const std::size_t vocab = found[at].size() / own.sampled(m).size();
    if (!sampled.empty()) logits.resize(num_sampled * vocab);
    for (std::size_t row = 0; row < sampled.size(); ++row) {
      const std::int64_t here = own.sampled_row(m, row);
      if (here < 0) continue;
      std::copy_n(found[at].begin() + here * static_cast<std::ptrdiff_t>(vocab), vocab,
                  logits.begin() +
                      static_cast<std::ptrdiff_t>(static_cast<std::size_t>(sampled[row]) * vocab));
    }
  }
  return logits;
}

std::vector<std::vector<float>> Executor::recorded(const PreparedStep& step, int rank) const {
  std::vector<std::vector<float>> values;
  state_->team.run_apart([&](int r) {
    if (r == rank) values = step.state().rank(r).recorded();
  });
  return values;
}

void Executor::give(PreparedStep& step, int rank, std::string_view tensor,
                    std::span<const float> values) {
  state_->team.run_apart([&](int r) {
    if (r == rank) step.state().rank(r).give(tensor, values);
  });
}

std::vector<float> Executor::take(const PreparedStep& step, int rank,
                                  std::string_view tensor) const {
  std::vector<float> values;
  state_->team.run_apart([&](int r) {
    if (r == rank) values = step.state().rank(r).take(tensor);
  });
  return values;
}

std::map<int, RankMemory> Executor::memory() const {
  std::vector<RankMemory> memory(state_->ranks.size());
  state_->team.run_apart([&](int r) {
    RankMemory& own = memory[static_cast<std::size_t>(r)];
    own = state_->rank(r).memory;
    // Code that libraries loaded meanwhile, and whatever else nobody counted.
    own.other += device_memory_in_use() - state_->held_by_others(r) - own.total();
  });
  std::map<int, RankMemory> here;
  for (const int r : ranks()) here[r] = memory[static_cast<std::size_t>(r)];
  return here;
}

const KvPool& Executor::kv(int rank) const { return state_->rank(rank).kv(); }
void Executor::end_warm_up() {
  for (const int rank : state_->team.ranks()) state_->rank(rank).end_warm_up();
}

int Executor::num_ranks() const { return state_->setup.grid.size(); }
const std::vector<int>& Executor::ranks() const { return state_->team.ranks(); }

}  // namespace orrery
