#include "sim/serve/megakernel_step.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <variant>

#include "kernels/kernel_spec.h"
#include "sim/des/simulate.h"

namespace orrery {
namespace {

using megakernel::Opcode;

struct Ran {
  Seconds start;
  Seconds end;
};
// By opcode and layer.
using RanByPhase = std::map<std::pair<Opcode, std::int32_t>, Ran>;

RanByPhase phases_of(const megakernel::Program& program,
                     const megakernel::SimulatedForward& forward) {
  RanByPhase phases;
  for (std::size_t sm = 0; sm < forward.instructions.size(); ++sm) {
    for (std::size_t i = 0; i < forward.instructions[sm].size(); ++i) {
      const megakernel::Instruction& in = program.instructions[sm][i];
      const megakernel::InstructionTimes& times = forward.instructions[sm][i];
      const auto [entry, is_new] =
          phases.try_emplace({in.opcode, in.layer}, Ran{.start = times.ready, .end = times.end});
      entry->second.start = std::min(entry->second.start, times.ready);
      entry->second.end = std::max(entry->second.end, times.end);
    }
  }
  return phases;
}

// Which opcode and layer multiply a weight.
std::map<std::pair<TensorId, std::int32_t>, std::pair<Opcode, std::int32_t>> phase_of_weights(
    const megakernel::Program& program) {
  std::map<std::pair<TensorId, std::int32_t>, std::pair<Opcode, std::int32_t>> found;
  for (const auto& own : program.instructions) {
    for (const megakernel::Instruction& in : own) {
      if (in.opcode == Opcode::kAttention || in.opcode == Opcode::kPick ||
          in.opcode == Opcode::kEnd) {
        continue;
      }
      const megakernel::WeightName& name = program.weights[static_cast<std::size_t>(in.weight)];
      found[{name.tensor, name.copy}] = {in.opcode, in.layer};
    }
  }
  return found;
}

// For a trace.
std::vector<InstructionSpan> instruction_spans(
    const megakernel::Program& program,
    const std::vector<std::vector<megakernel::InstructionTimes>>& times) {
  std::vector<InstructionSpan> spans;
  for (std::size_t sm = 0; sm < times.size(); ++sm) {
    for (std::size_t i = 0; i < times[sm].size(); ++i) {
      const megakernel::InstructionTimes& own = times[sm][i];
      const megakernel::Instruction& instruction = program.instructions[sm][i];
      spans.push_back({.sm = static_cast<int>(sm),
                       .kind = std::string(megakernel::to_text(instruction.opcode)),
                       .name = megakernel::describe(instruction),
                       .start = own.start,
                       .ready = own.ready,
                       .end = own.end,
                       .weights = own.weights});
    }
  }
  return spans;
}

}  // namespace

StepShape megakernel_shape(StepShape shape) {
  shape.num_decodes = shape.tokens;
  return shape;
}

DeviceTime megakernel_time(const StepSetup& setup, const Plan& plan) {
  megakernel::require_runs(plan);
  const int num_sms = setup.machine->device().num_sms;
  const PricedPlan priced = price(plan, *setup.cost);
  DeviceTime time{
      .duration = megakernel::simulate_forward(megakernel::compile(plan, {.num_sms = num_sms}),
                                               *setup.megakernel)
                      .duration,
      .energy = priced.energy};
  time.limited = time.duration;
  time.arithmetic = std::min(priced.arithmetic, time.duration);
  time.basis.roofline = time.duration;
  return time;
}

Timeline megakernel_timeline(const Plan& plan, int num_sms, const megakernel::MachineTimes& times) {
  megakernel::require_runs(plan);
  const megakernel::Program program = megakernel::compile(plan, {.num_sms = num_sms});
  const megakernel::SimulatedForward forward = megakernel::simulate_forward(program, times);
  const RanByPhase ran = phases_of(program, forward);
  const auto of_weights = phase_of_weights(program);
  Timeline timeline;
  std::map<std::int32_t, std::int32_t> layers;  // by copy, of the gemm before
  for (OpId id = 0; id < static_cast<OpId>(plan.ops().size()); ++id) {
    const Op& op = plan.ops()[static_cast<std::size_t>(id)];
    timeline.op_names.push_back(printed_name(op));
    const auto* const kernel = std::get_if<KernelOp>(&op.body);
    if (kernel == nullptr) continue;
    const Arithmetic arithmetic = kernel_spec(kernel->kernel).prior.arithmetic;
    const bool gives_tokens =
        std::ranges::find(op.writes, program.next_tokens, &TensorView::tensor) != op.writes.end();
    for (std::int32_t copy = 0; copy < plan.multiplicity(id); ++copy) {
      std::optional<std::pair<Opcode, std::int32_t>> phase;
      for (const TensorView& read : op.reads) {
        const auto found = of_weights.find({read.tensor, copy});
        // Tied to the head, the embedding reads its weight, too.
        if (arithmetic == Arithmetic::kGemm && found != of_weights.end()) phase = found->second;
      }
      if (phase) layers[copy] = phase->second;
      if (arithmetic == Arithmetic::kAttention) phase = {Opcode::kAttention, layers[copy]};
      if (gives_tokens) phase = {Opcode::kPick, static_cast<std::int32_t>(program.shape.layers)};
      if (!phase) continue;
      const Ran& span = ran.at(*phase);
      timeline.spans.push_back({.op = id,
                                .copy = copy,
                                .basis = Basis::kRoofline,
                                .start = span.start,
                                .end = span.end});
    }
  }
  std::ranges::stable_sort(timeline.spans, {}, &Span::start);
  timeline.instructions = instruction_spans(program, forward.instructions);
  return timeline;
}

}  // namespace orrery
