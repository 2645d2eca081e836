#include "kernels/execute/executor_state.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/cuda/devices.h"
#include "kernels/execute/kernel_binding.h"

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

std::vector<PrefillSequence> chunks_of(const StepInput& input) {
  std::vector<PrefillSequence> chunks;
  chunks.reserve(input.prefill.size());
  for (const SequenceTokens& chunk : input.prefill) {
    chunks.push_back({.query = static_cast<std::int32_t>(chunk.tokens.size()),
                      .context = static_cast<std::int32_t>(chunk.context)});
  }
  return chunks;
}

bool same_chunks(const std::vector<PrefillSequence>& bound, const StepInput& input) {
  return std::ranges::equal(
      bound, input.prefill, [](const PrefillSequence& chunk, const SequenceTokens& sequence) {
        return chunk.query == static_cast<std::int64_t>(sequence.tokens.size()) &&
               chunk.context == sequence.context;
      });
}

void check_at_most(const char* what, std::int64_t found, const char* name, std::int64_t most) {
  if (found <= most) return;
  throw std::invalid_argument("a step of " + std::to_string(found) + " " + what +
                              " on a rank, expected at most " + name + ", " + std::to_string(most));
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
  for (const Op& op : plan.ops()) {
    const auto* kernel = std::get_if<KernelOp>(&op.body);
    if (kernel == nullptr || find_kernel_binding(kernel->kernel) != nullptr) continue;
    std::string known;
    for (const KernelBinding& binding : kernel_bindings()) known.append(" ").append(binding.kernel);
    throw std::invalid_argument("op \"" + op.name + "\" is of kernel \"" + kernel->kernel +
                                "\", which cannot be executed; those that can:" + known);
  }
}

Executor::State::State(ExecutorSetup executor_setup)
    : setup(checked(std::move(executor_setup))),
      others(held_before(setup.devices)),
      own_calls(setup.devices.size()),
      team(setup.devices),
      communicators(setup.devices, setup.only_nccl, setup.max_tokens),
      ranks(setup.devices.size()) {
  watch = std::make_unique<Watch>(watch_setup());
  team.run_apart([this](int r) {
    const auto i = static_cast<std::size_t>(r);
    ranks[i] = std::make_unique<RankDevice>(setup, r, others[i], *watch);
  });
  open(setup.plan);
  team.run_apart([this](int r) { rank(r).allocate(setup); });
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
          .last_words = setup.last_words};
}

void Executor::State::open(const Plan& plan) {
  if (communicators.has_opened(plan)) return;
  measure(&RankMemory::communication, [&] { communicators.open(plan); });
}

std::span<const StepPart> Executor::State::parts_of(const PreparedStep::State& step,
                                                    const std::vector<StepPart>& parts,
                                                    int r) const {
  const auto num_parts = static_cast<std::size_t>(step.num_micro_batches);
  const auto first = static_cast<std::size_t>(setup.grid.dp_rank(r)) * num_parts;
  return std::span(parts).subspan(first, num_parts);
}

std::vector<StepPart> Executor::State::split(const PreparedStep::State& step,
                                             const StepInput& input) const {
  std::vector<StepPart> parts = split_step(input, setup.grid.dp * step.num_micro_batches);
  for (int r = 0; r < team.size(); ++r) {
    if (setup.grid.tp_rank(r) != 0 || setup.grid.stage(r) != 0) continue;  // as this one
    const auto own = parts_of(step, parts, r);
    for (std::size_t m = 0; m < own.size(); ++m) {
      check_part(own[m], step.rank(r).rows(static_cast<int>(m)), rank(r).cache());
    }
  }
  return parts;
}

void Executor::State::check_rows(const PreparedStep::State& step) const {
  for (int m = 0; m < step.num_micro_batches; ++m) {
    const StepRows& rows = step.rank(0).rows(m);
    check_at_most("rows", rows.tokens, "max_tokens", setup.max_tokens);
    check_at_most("decodes", rows.decodes, "max_sequences", setup.max_sequences);
  }
}

void Executor::State::bind(PreparedStep::State& step, const std::vector<StepPart>& parts,
                           const StepInput& input) {
  team.run_apart([&](int r) {
    RankDevice& own = rank(r);
    const std::size_t before = own.workspace_bytes();
    own.take_memory("workspace of kernels", [&] { step.rank(r).bind(parts_of(step, parts, r)); });
    own.memory.workspace += Bytes(static_cast<double>(own.workspace_bytes() - before));
  });
  step.chunks = chunks_of(input);
}

void Executor::State::bind_again(PreparedStep::State& step, const std::vector<StepPart>& parts,
                                 const StepInput& input) {
  if (same_chunks(step.chunks, input)) return;
  if (step.mode == ExecuteMode::kGraph) {
    throw std::invalid_argument(
        "a captured step with other prefill chunks than it was captured with");
  }
  bind(step, parts, input);
}

void Executor::State::run_watched(PreparedStep::State& step,
                                  const std::function<void(int rank)>& work) {
  constexpr Seconds kFirstRun{60};
  running = &step;
  watch->begin(step.has_run ? step.limit : step.limit + kFirstRun);
  try {
    team.run(work);
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
  for (std::size_t r = 0; r < own_calls.size(); ++r) {
    own_calls[r] += std::ssize(step.rank(static_cast<int>(r)).own_all_reduces());
  }
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
  run_watched(step, [&](int r) {
    RankStep& own = step.rank(r);
    Times& time = times[static_cast<std::size_t>(r)];
    own.stage(parts_of(step, parts, r));
    time.begin = Clock::now();
    if (gate != nullptr) {
      enqueue_gated(*gate, r, own, num_enqueued);
    } else {
      own.enqueue();
    }
    own.wait(team);
    time.end = Clock::now();
    time.device = rank(r).end - rank(r).start;
  });
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
  for (int r = 0; r < team.size(); ++r) {
    const auto own = parts_of(step, parts, r);
    for (std::size_t m = 0; m < own.size(); ++m) {
      const auto tokens = step.rank(r).sampled(static_cast<int>(m));
      for (std::size_t i = 0; i < std::min(tokens.size(), own[m].sampled.size()); ++i) {
        output.next_tokens[static_cast<std::size_t>(own[m].sampled[i])] = tokens[i];
      }
    }
  }
  return output;
}

}  // namespace orrery
