#include "kernels/execute/executor_state.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/cuda/devices.h"
#include "kernels/executable.h"
#include "kernels/execute/context_share.h"
#include "kernels/execute/rank_batches.h"
#include "kernels/execute/side_rows.h"

namespace orrery {
namespace {

using Clock = std::chrono::steady_clock;

ExecutorSetup checked(ExecutorSetup setup) {
  check_kernels(setup.plan);
  const int num_ranks = setup.plan.num_ranks();
  if (num_ranks != setup.grid.size() || num_ranks != static_cast<int>(setup.devices.size())) {
    throw std::invalid_argument("a plan of " + std::to_string(num_ranks) + " ranks on a grid of " +
                                std::to_string(setup.grid.size()) + " and " +
                                std::to_string(setup.devices.size()) +
                                " devices, expected as many of each");
  }
  if (setup.max_tokens < 1 || setup.max_sequences < 1 || setup.max_model_len < 1) {
    throw std::invalid_argument("max_tokens, max_sequences and max_model_len must be positive");
  }
  if (setup.max_model_len > setup.numbers.max_positions) {
    throw std::invalid_argument("max_model_len is " + std::to_string(setup.max_model_len) +
                                ", expected at most max_positions, " +
                                std::to_string(setup.numbers.max_positions));
  }
  return setup;
}

// Launches depend on the lengths of chunks and their ranks, not on which of them end their prompts.
bool have_same_lengths(const PreparedStep::State& bound,
                       const std::vector<SequenceTokens>& sequences) {
  return std::ranges::equal(bound.chunk_ranks, sequences, {}, {}, &SequenceTokens::dp_rank) &&
         std::ranges::equal(bound.chunks, sequences,
                            [](const PrefillChunk& chunk, const SequenceTokens& sequence) {
                              return chunk.query == std::ssize(sequence.tokens) &&
                                     chunk.context == sequence.context;
                            });
}

void check_at_most(const char* what, std::int64_t found, const char* name, std::int64_t most) {
  if (found <= most) return;
  throw std::invalid_argument("a step of " + std::to_string(found) + " " + what +
                              " on a rank, expected at most " + name + ", " + std::to_string(most));
}

std::vector<int> local_ranks(const ExecutorSetup& setup) {
  std::vector<int> ranks;
  for (int rank = 0; rank < static_cast<int>(setup.devices.size()); ++rank) {
    if (setup.devices[static_cast<std::size_t>(rank)] != kElsewhere) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<int> local_devices(const ExecutorSetup& setup) {
  std::vector<int> devices;
  for (const int rank : local_ranks(setup)) {
    devices.push_back(setup.devices[static_cast<std::size_t>(rank)]);
  }
  return devices;
}

std::vector<std::optional<HeldMemory>> held_before(const std::vector<int>& devices) {
  std::vector<std::optional<HeldMemory>> held;
  for (const int device : devices) {
    const bool exists = device >= 0 && device < cuda::device_count();
    held.push_back(exists ? held_by_others(device) : std::nullopt);
  }
  return held;
}

}  // namespace

void check_kernels(const Plan& plan) {
  const std::vector<Refusal> refused = refusals(plan);
  if (!refused.empty()) {
    throw std::invalid_argument("ops that cannot be executed: " + to_text(refused));
  }
}

Executor::State::State(ExecutorSetup executor_setup)
    : setup(checked(std::move(executor_setup))),
      phase_fault(setup.fault),
      others(held_before(setup.devices)),
      own_calls(setup.devices.size()),
      team(local_ranks(setup), local_devices(setup)),
      communicators(setup),
      ranks(setup.devices.size()) {
  watch = std::make_unique<Watch>(watch_setup());
  try {
    run_phase(RunPhase::kStart, [this](int r) {
      const auto i = static_cast<std::size_t>(r);
      ranks[i] = std::make_unique<RankDevice>(setup, r, others[i], *watch);
    });
    open(setup.plan);
    run_phase(RunPhase::kWeights, [this](int r) { rank(r).allocate(setup); });
  } catch (...) {  // what the watch refers to goes now
    watch->retire();
    throw;
  }
}

Executor::State::~State() {
  watch->retire();
  if (team.failed()) communicators.abort();
}

Watch::Setup Executor::State::watch_setup() {
  return {.num_ranks = static_cast<int>(setup.devices.size()),
          .first_error = [this] { return team.error(); },
          .fail = [this](std::exception_ptr error) { team.fail(std::move(error)); },
          .abort = [this] { communicators.abort(); },
          .find_problem =
              [this] {
                const std::optional<RankError> error = communicators.find_error();
                return error ? std::make_exception_ptr(*error) : nullptr;
              },
          .look_at =
              [this](int r, RankPlace& place) {
                const std::vector<std::string>& names = running->rank(r).own_all_reduces();
                place.progress =
                    communicators.calls_begun(r) - own_calls[static_cast<std::size_t>(r)];
                if (place.progress < 1 || place.progress > std::ssize(names)) return;
                place.reached = names[static_cast<std::size_t>(place.progress - 1)];
              },
          .last_words = setup.last_words,
          .phase_begun = setup.phase_begun};
}

void Executor::State::open(const Plan& plan) {
  if (communicators.has_opened(plan)) return;
  const Seconds limit = phase_limit(RunPhase::kCommunicators, setup.watch_limit);
  const auto set_all = [this](auto&& set) {
    for (const int r : team.ranks()) set(r);
  };
  measure(&RankMemory::communication, [&] {
    watch->begin(limit, limit, RunPhase::kCommunicators);
    int at = team.ranks().front();
    try {
      set_all([&](int r) {
        at = r;
        watch->expect(r);
        phase_fault.reach(r, RunPhase::kCommunicators);
        watch->idle(r);
      });
      at = team.ranks().front();
      set_all([&](int r) { watch->expect(r); });
      communicators.open(plan);
      set_all([&](int r) { watch->idle(r); });
    } catch (...) {  // named, and thrown again
      watch->end();
      rethrow_in_phase(at, RunPhase::kCommunicators);
    }
    watch->end();
  });
}

void Executor::State::run_phase(RunPhase phase, const std::function<void(int rank)>& work) {
  const Seconds limit = phase_limit(phase, setup.watch_limit);
  const std::function<void(int)> watched = [&](int r) {
    in_phase(r, phase, work);
    watch->idle(r);
  };
  watch->begin(limit, limit, phase);
  for (const int r : team.ranks()) watch->expect(r);
  try {
    is_apart(phase) ? team.run_apart(watched) : team.run(watched);
  } catch (...) {
    watch->end();
    throw;
  }
  watch->end();
}

void Executor::State::in_phase(int r, RunPhase phase, const std::function<void(int rank)>& work) {
  try {
    phase_fault.reach(r, phase);
    work(r);
  } catch (const RankAbandoned&) {
    throw;
  } catch (...) {  // named, and thrown again
    rethrow_in_phase(r, phase);
  }
}

std::span<const StepPart> Executor::State::parts_of(const PreparedStep::State& step,
                                                    const std::vector<StepPart>& parts,
                                                    int r) const {
  if (setup.grid.is_ffn(r)) return step.without_sequences;
  const auto num_parts = static_cast<std::size_t>(step.num_micro_batches);
  const auto first = static_cast<std::size_t>(setup.grid.dp_rank(r)) * num_parts;
  return std::span(parts).subspan(first, num_parts);
}

std::vector<StepPart> Executor::State::split(const PreparedStep::State& step,
                                             const StepInput& input) const {
  const int ways = setup.grid.dp * step.num_micro_batches;
  if (is_layer_plan(step.plan)) return std::vector<StepPart>(static_cast<std::size_t>(ways));
  const bool deals_evenly = setup.grid.pp > 1 || setup.grid.ffn_instances > 0;
  if (step.num_micro_batches > 1 && deals_evenly && names_ranks(input)) {
    throw std::invalid_argument("sequences that name their ranks in a step of " +
                                std::to_string(step.num_micro_batches) +
                                " micro-batches of a pipeline or of FFNs apart, expected 1");
  }
  std::vector<StepPart> parts = split_step(input, ways);
  if (setup.grid.ffn_instances > 0) check_parts_apart(step.plan, parts);
  step.rank(team.ranks().front()).check_even(parts);
  for (const int r : team.ranks()) {
    const bool is_first = setup.grid.is_first(r) && setup.grid.stage(r) == 0;
    if (!is_first && setup.processes.size == 1) continue;  // as that one
    const auto own = parts_of(step, parts, r);
    for (std::size_t m = 0; m < own.size(); ++m) {
      check_part(own[m], step.rank(r).rows(static_cast<int>(m)), rank(r).cache());
    }
  }
  return parts;
}

void Executor::State::check_rows(const PreparedStep::State& step) const {
  const bool deals_decodes = dealt_decodes(step.plan, team.ranks().front()).room > 0;
  const std::int64_t padding = deals_decodes ? setup.grid.cp - 1 : 0;  // of the last rank's rows
  for (int m = 0; m < step.num_micro_batches; ++m) {
    const StepRows& rows = step.rank(team.ranks().front()).rows(m);
    check_at_most("rows", rows.tokens, "max_tokens", setup.max_tokens + padding);
    check_at_most("decodes", rows.decodes, "max_sequences", setup.max_sequences + padding);
  }
}

void Executor::State::bind(PreparedStep::State& step, const std::vector<StepPart>& parts,
                           const StepInput& input) {
  step.is_bound = false;
  bound_last = nullptr;
  run_phase(RunPhase::kPrepare, [&](int r) {
    RankDevice& own = rank(r);
    const std::size_t before = own.workspace_bytes();
    own.take_memory("workspace of kernels", [&] { step.rank(r).bind(parts_of(step, parts, r)); });
    own.memory.workspace += Bytes(static_cast<double>(own.workspace_bytes() - before));
  });
  step.chunks = batch_of(input).prefill;
  step.chunk_ranks.clear();
  for (const SequenceTokens& chunk : input.prefill) step.chunk_ranks.push_back(chunk.dp_rank);
  bound_last = &step;
}

void Executor::State::bind_again(PreparedStep::State& step, const std::vector<StepPart>& parts,
                                 const StepInput& input) {
  const bool is_same = have_same_lengths(step, input.prefill);
  if (is_same && (step.is_bound || bound_last == &step)) return;
  if (!is_same && step.mode == LaunchMode::kGraph) {
    throw std::invalid_argument(
        "a captured step with other prefill chunks than it was captured with");
  }
  bind(step, parts, input);
}

void Executor::State::run_watched(PreparedStep::State& step,
                                  const std::function<void(int rank)>& work) {
  // The first run connects ranks and loads code: long in all, but none of it long at one op, unless
  // ranks are on several hosts.
  constexpr Seconds kFirstRun{60};
  const Seconds connect(setup.processes.size > 1 ? 20 : 0);
  running = &step;
  const RunPhase phase = step.has_run ? RunPhase::kStep : RunPhase::kWarmUp;
  if (step.has_run) {
    watch->begin(step.limit, step.limit, phase);
  } else {
    watch->begin(step.limit + connect, step.limit + kFirstRun, phase);
  }
  for (const int r : team.ranks()) watch->expect(r);
  try {
    team.run([&](int r) { in_phase(r, phase, work); });
    if (const auto error = communicators.find_error(); error) {
      team.fail(std::make_exception_ptr(*error));
      throw RankError(*error);
    }
  } catch (...) {  // the watch ends what other ranks wait for
    watch->fail(team.failed() ? team.error() : std::current_exception());
    watch->end();
    throw;
  }
  watch->end();
  step.has_run = true;
  step.is_bound = true;
  for (const int r : team.ranks()) {
    own_calls[static_cast<std::size_t>(r)] += std::ssize(step.rank(r).own_all_reduces());
  }
}

void Executor::State::count_nodes(PreparedStep::State& step) {
  team.run([&](int r) {
    RankStep& own = step.rank(r);
    if (!own.num_nodes().empty()) return;
    step.mode == LaunchMode::kGraph ? own.capture(/*counts_nodes=*/true) : own.count_nodes();
  });
}

void Executor::State::enqueue_gated(cuda::Gate& gate, int r, RankStep& step,
                                    std::atomic<int>& num_enqueued) {
  gate.close(rank(r).stream(0));
  try {
    step.enqueue();
  } catch (...) {  // no stream may be left waiting
    gate.open();
    throw;
  }
  if (num_enqueued.fetch_add(1) + 1 == team.size()) gate.open();
}

StepOutput Executor::State::run(PreparedStep::State& step, const std::vector<StepPart>& parts,
                                cuda::Gate* gate) {
  struct Times {
    Clock::time_point begin;
    Clock::time_point end;
    Seconds device;
  };
  std::vector<Times> times(ranks.size());
  std::atomic<int> num_enqueued{0};
  setup.processes.barrier();
  run_watched(step, [&](int r) {
    RankStep& own = step.rank(r);
    Times& time = times[static_cast<std::size_t>(r)];
    own.stage(parts_of(step, parts, r), parts);
    time.begin = Clock::now();
    if (gate != nullptr) {
      enqueue_gated(*gate, r, own, num_enqueued);
    } else {
      own.enqueue();
    }
    own.wait();
    time.end = Clock::now();
    time.device = rank(r).end - rank(r).start;
  });
  std::erase_if(times, [](const Times& time) { return time.end == Clock::time_point(); });
  const auto begin = std::ranges::min(times, {}, &Times::begin).begin;
  const auto end = std::ranges::max(times, {}, &Times::end).end;
  StepOutput output{.duration = Seconds(std::chrono::duration<double>(end - begin).count()),
                    .device = std::ranges::max(times, {}, &Times::device).device};
  std::size_t num_sampled = 0;
  step.sampled.clear();
  for (const StepPart& part : parts) {
    num_sampled += part.sampled.size();
    step.sampled.push_back(part.sampled);
  }
  output.next_tokens.assign(num_sampled, 0);
  for (const int r : team.ranks()) {
    const auto own = parts_of(step, parts, r);
    for (std::size_t m = 0; m < own.size(); ++m) {
      const auto tokens = step.rank(r).sampled(static_cast<int>(m));
      if (tokens.empty()) continue;
      for (std::size_t i = 0; i < own[m].sampled.size(); ++i) {
        const std::int64_t row = step.rank(r).sampled_row(static_cast<int>(m), i);
        if (row < 0) continue;
        output.next_tokens[static_cast<std::size_t>(own[m].sampled[i])] =
            tokens[static_cast<std::size_t>(row)];
      }
    }
  }
  if (setup.processes.size > 1) combine(output);
  return output;
}

std::optional<RankError> Executor::State::find_faults(const PreparedStep::State& step) const {
  std::optional<RankError> found;
  std::optional<Task> first;
  for (const int r : team.ranks()) {
    const RankStep& own = step.rank(r);
    const std::optional<RankStep::Faults> faults = own.first_faults();
    if (!faults) continue;
    const Task& task = own.tasks()[faults->task];
    if (first && !runs_before(step.plan, task, *first)) continue;
    first = task;
    found.emplace(r, task_name(step.plan, task),
                  "scores of " + std::to_string(faults->tokens) +
                      (faults->tokens == 1 ? " token are" : " tokens are") + " no numbers");
  }
  return found;
}

bool Executor::State::agree(bool is_true) const {
  if (setup.processes.size == 1) return is_true;
  const std::array<std::uint8_t, 1> own{static_cast<std::uint8_t>(is_true)};
  std::vector<std::uint8_t> all(static_cast<std::size_t>(setup.processes.size));
  setup.processes.all_gather(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
  return std::ranges::all_of(all, [](std::uint8_t value) { return value != 0; });
}

void Executor::State::combine(StepOutput& output) const {
  const ProcessGroup& processes = setup.processes;
  const auto size = static_cast<std::size_t>(processes.size);
  const std::array<double, 2> own{output.duration.value(), output.device.value()};
  std::vector<double> times(2 * size);
  processes.all_gather(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(times)));
  const std::size_t num_tokens = output.next_tokens.size();
  std::vector<std::int32_t> tokens(num_tokens * size);
  processes.all_gather(std::as_bytes(std::span(output.next_tokens)),
                       std::as_writable_bytes(std::span(tokens)));
  for (std::size_t process = 0; process < size; ++process) {
    output.duration = std::max(output.duration, Seconds(times[2 * process]));
    output.device = std::max(output.device, Seconds(times[2 * process + 1]));
    // Zeros where a process does not have the token.
    for (std::size_t i = 0; i < num_tokens; ++i) {
      output.next_tokens[i] = std::max(output.next_tokens[i], tokens[process * num_tokens + i]);
    }
  }
}

}  // namespace orrery
