#include "sim/explore/steady_state.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/scenario/disaggregated_run.h"
#include "sim/units/text.h"

namespace orrery {

namespace {

struct Lengths {
  double prompt = 0;  // means
  double output = 0;
  std::int64_t shortest_prompt = 0;
};

Lengths lengths_of(const Workload& workload) {
  Lengths lengths{.shortest_prompt = std::numeric_limits<std::int64_t>::max()};
  for (const Request& request : workload.requests) {
    lengths.prompt += static_cast<double>(request.prompt_tokens);
    lengths.output += static_cast<double>(request.output_tokens);
    lengths.shortest_prompt = std::min(lengths.shortest_prompt, request.prompt_tokens);
  }
  const auto count = static_cast<double>(workload.requests.size());
  lengths.prompt /= count;
  lengths.output /= count;
  return lengths;
}

// What a step, or a part of one, takes of a replica.
struct Cost {
  Seconds time;
  Joules energy;  // of its work

  friend Cost operator+(Cost a, Cost b) { return {a.time + b.time, a.energy + b.energy}; }
  friend Cost operator-(Cost a, Cost b) { return {a.time - b.time, a.energy - b.energy}; }
  friend Cost operator*(Cost a, double factor) { return {a.time * factor, a.energy * factor}; }
  friend Cost operator/(Cost a, double parts) { return {a.time / parts, a.energy / parts}; }
};

// Steps of one replica of a side.
class ReplicaTimes {
 public:
  ReplicaTimes(const Scenario& side, StepTimes& times, const MemoryBudget& memory,
               const Lengths& lengths)
      : engine_(side.engine),
        dp_(side.mesh.dp),
        num_micro_batches_(side.mesh.num_micro_batches),
        times_(times),
        lengths_(lengths) {
    const std::int64_t of_block = tokens_of_block(engine_, side.mesh);
    const double context =
        lengths.prompt + lengths.output / 2 + static_cast<double>(memory.state_blocks * of_block);
    const double tokens = static_cast<double>(memory.num_kv_blocks * of_block);
    most_ = std::max(1.0, std::min(static_cast<double>(engine_.max_num_seqs * dp_),
                                   std::floor(tokens / std::max(context, 1.0))));
  }

  [[nodiscard]] bool caches_prefixes() const { return engine_.enable_prefix_caching; }
  // Sequences that fit.
  [[nodiscard]] double most() const { return most_; }

  // Between batches of 1, 2, 4, ... on a straight line.
  Cost decode_cost(double batch) {
    return between(batch, [&](std::int64_t decodes) { return decode_of(decodes); });
  }
  Seconds decode(double batch) { return decode_cost(batch).time; }

  // What a mean prompt adds to the steps in which it runs beside `batch` decodes, likewise: one of
  // as many as there are data-parallel ranks, each of which takes prompts of its own in a step.
  Cost prefill_cost(double batch) { return prompts_cost(batch, dp_) / static_cast<double>(dp_); }
  Seconds prefill(double batch) { return prefill_cost(batch).time; }
  // The same where other ranks have none.
  Seconds lone_prefill(double batch) { return prompts_cost(batch, 1).time; }

  // The least that a prompt of `tokens` takes. Sequences beside it on its rank cut the step into
  // micro-batches, of which one computes while the rows of another are elsewhere.
  Seconds least_prefill(std::int64_t tokens) {
    Seconds sum;
    for (const PrefillChunk& chunk : chunks_of(tokens)) {
      Seconds least = cost_of({.prefill = {chunk}}).time;
      for (std::int64_t parts = 2; parts <= num_micro_batches_; ++parts) {
        std::vector<Batch> ranks(static_cast<std::size_t>(dp_));
        ranks.front() = {.prefill = {chunk},
                         .num_decodes = parts - 1,
                         .decode_context = (parts - 1) * (lengths_.shortest_prompt + 1)};
        least = std::min(least, times_.step(ranks).duration);
      }
      sum += least;
    }
    return sum;
  }

  Cost decode_of(std::int64_t decodes) {
    Cost& known = decodes_[decodes];
    if (known.time == Seconds(0)) known = cost_of(decodes_of(decodes));
    return known;
  }

  // A step that decodes `decodes` sequences of the shortest context.
  Seconds least_decode(std::int64_t decodes) {
    Batch batch;
    batch.num_decodes = decodes;
    batch.decode_context = decodes * (lengths_.shortest_prompt + 1);
    return times_.step(batch).duration;
  }

 private:
  Cost cost_of(const Batch& batch) {
    const StepTime step = times_.step(batch);
    return {.time = step.duration, .energy = step.energy};
  }
  // A prompt in chunks of the budget.
  [[nodiscard]] std::vector<PrefillChunk> chunks_of(std::int64_t tokens) const {
    const std::int64_t budget = engine_.max_num_batched_tokens;
    std::vector<PrefillChunk> chunks;
    for (std::int64_t done = 0; done < tokens; done += budget) {
      const std::int64_t query = std::min(budget, tokens - done);
      chunks.push_back({.query = query, .context = done, .produces_token = done + query == tokens});
    }
    return chunks;
  }
  // `count` mean prompts at once beside `batch` decodes, less what these take alone.
  Cost prompts_cost(double batch, std::int64_t count) {
    const auto at = [&](std::int64_t decodes) { return prefill_of(count, decodes); };
    return batch < 1 ? at(0) : between(batch, at);
  }
  Cost prefill_of(std::int64_t count, std::int64_t decodes) {
    Cost& known = prefills_[{count, decodes}];
    if (known.time > Seconds(0)) return known;
    Cost cost;
    for (const PrefillChunk& chunk :
         chunks_of(std::max<std::int64_t>(1, std::llround(lengths_.prompt)))) {
      Batch batch = decodes_of(decodes);
      batch.prefill.assign(static_cast<std::size_t>(count), chunk);
      cost = cost + cost_of(batch);
      if (decodes > 0) cost = cost - decode_of(decodes);
    }
    known = cost;
    return cost;
  }
  template <typename At>
  Cost between(double batch, At at) {
    const double inside = std::clamp(batch, 1.0, most_);
    const double low = std::exp2(std::floor(std::log2(inside)));
    const double high = std::min(2 * low, most_);
    const Cost at_low = at(static_cast<std::int64_t>(low));
    if (high <= low || inside <= low) return at_low;
    const Cost at_high = at(static_cast<std::int64_t>(high));
    return at_low + (at_high - at_low) * ((inside - low) / (high - low));
  }
  [[nodiscard]] Batch decodes_of(std::int64_t decodes) const {
    Batch batch;
    batch.num_decodes = decodes;
    batch.decode_context =
        decodes * std::max<std::int64_t>(1, std::llround(lengths_.prompt + lengths_.output / 2));
    return batch;
  }

  EngineConfig engine_;
  std::int64_t dp_;
  std::int64_t num_micro_batches_;
  StepTimes& times_;
  Lengths lengths_;
  double most_ = 1;
  std::map<std::int64_t, Cost> decodes_;
  std::map<std::pair<std::int64_t, std::int64_t>, Cost> prefills_;  // by prompts and decodes
};

// Requests per second of one replica.
double capacity(ReplicaTimes& replica, double output) {
  double best = 0;
  for (double batch = 1;; batch = std::min(2 * batch, replica.most())) {
    const Seconds per_request = replica.prefill(batch) + replica.decode(batch) * (output / batch);
    best = std::max(best, 1 / per_request.value());
    if (batch >= replica.most()) return best;
  }
}

// The batch and TPOT at `rate` requests per second of a replica; the largest batch where there is
// no steady state.
struct Load {
  double batch = 1;
  Seconds tpot;
};
Load at_rate(ReplicaTimes& replica, double output, double rate) {
  Load load{.batch = 1, .tpot = replica.decode(1)};
  constexpr int kMostRounds = 60;
  for (int i = 0; i < kMostRounds; ++i) {
    const double busy = std::min(0.999, rate * replica.prefill(load.batch).value());
    load.tpot = replica.decode(load.batch) / (1 - busy);
    const double next = std::clamp(rate * output * load.tpot.value(), 1.0, replica.most());
    const bool is_close = std::abs(next - load.batch) < 1e-3 * load.batch;
    load.batch = next;
    if (is_close) break;
  }
  return load;
}

// Of a mean prompt: its steps, and half a step or more of waiting as replicas fill.
Seconds first_token(Seconds prefill, double utilisation) {
  const double busy = std::min(utilisation, 0.98);
  return prefill * (1 + busy / (2 * (1 - busy)));
}

double offered_rate(const Workload& workload) {
  if (!arrives_by_itself(workload) || workload.requests.size() < 2) return 0;
  const Seconds time = workload.requests.back().arrival - workload.requests.front().arrival;
  return time > Seconds(0) ? static_cast<double>(workload.requests.size() - 1) / time.value() : 0;
}

// What no service of this shape can keep below.
std::string impossible(const Slo& slo, ReplicaTimes& prefill, ReplicaTimes& decode,
                       const Lengths& lengths) {
  const auto why = [](std::string_view name, Seconds least, Seconds limit) {
    return std::string(name) + " is at least " + to_text(least * kBoundSlack) +
           " with nothing else on the GPUs, above the limit of " + to_text(limit);
  };
  Seconds least_step = decode.least_decode(1);
  const auto most = static_cast<std::int64_t>(decode.most());
  for (std::int64_t batch = 2; batch <= most; batch *= 2) {
    least_step = std::min(least_step, decode.least_decode(batch));
  }
  // A prompt that a prefix cache holds takes a step of one token.
  const Seconds least_prefill =
      prefill.least_prefill(prefill.caches_prefixes() ? 1 : lengths.shortest_prompt);
  const bool decodes = lengths.output >= 2;
  const auto above = [](Seconds least, Seconds limit) { return least * kBoundSlack > limit; };
  if (above(least_prefill, slo.ttft)) return why("TTFT", least_prefill, slo.ttft);
  if (decodes && above(least_step, slo.tpot)) return why("TPOT", least_step, slo.tpot);
  for (const LatencyLimit& limit : slo.limits) {
    if (limit.metric == LatencyMetric::kTtft && above(least_prefill, limit.limit)) {
      return why("TTFT", least_prefill, limit.limit);
    }
    if (limit.metric == LatencyMetric::kTpot && decodes && above(least_step, limit.limit)) {
      return why("TPOT", least_step, limit.limit);
    }
  }
  return "";
}

// Of all GPUs: waiting all the time, and the work of each request.
Joules per_output_token(const Scenario& scenario, const SteadyState& state, double output,
                        ReplicaTimes& prefill, ReplicaTimes& decode) {
  const std::optional<BoardPower>& power = scenario.machine_spec.device.power;
  if (!power || !(state.requests_per_s > 0)) return Joules(0);
  const bool is_apart = &prefill != &decode;
  const Joules work = prefill.prefill_cost(is_apart ? 0 : state.batch).energy +
                      decode.decode_cost(state.batch).energy * (output / state.batch);
  const Joules waiting = power->waiting * Seconds(1 / state.requests_per_s) * num_gpus(scenario);
  return (work + waiting) / output;
}

}  // namespace

SteadyState steady_state(const Scenario& scenario, const Workload& workload,
                         const ServiceModel& model) {
  const Lengths lengths = lengths_of(workload);
  const bool is_apart = scenario.disaggregation.has_value();
  const Scenario decode_scenario = is_apart ? decode_side(scenario) : scenario;
  ReplicaTimes decode(decode_scenario, model.steps().times(), model.memory(), lengths);
  std::optional<ReplicaTimes> prefill_only;
  Scenario prefill_scenario;
  if (is_apart) {
    prefill_scenario = prefill_side(scenario);
    prefill_only.emplace(prefill_scenario, model.prefill_steps()->times(), *model.prefill_memory(),
                         lengths);
  }
  SteadyState state;
  const double replicas = decode_scenario.replicas;
  const double output = std::max(lengths.output, 1.0);
  double busy = 0;
  Seconds prefill_time;
  const double rate = offered_rate(workload);
  if (is_apart) {
    const double prefill_replicas = prefill_scenario.replicas;
    prefill_time = prefill_only->prefill(0);
    const double per_prefill = 1 / prefill_time.value();
    const double per_decode = decode.most() / (output * decode.decode(decode.most()).value());
    state.capacity_requests_per_s = std::min(prefill_replicas * per_prefill, replicas * per_decode);
    busy = rate / (prefill_replicas * per_prefill);
  } else {
    state.capacity_requests_per_s = replicas * capacity(decode, output);
    busy = rate / state.capacity_requests_per_s;
  }
  const bool is_open = rate > 0;
  double in_flight = static_cast<double>(workload.closed_loop_concurrency) / replicas;
  if (!is_open && in_flight == 0) in_flight = decode.most();
  if (is_open && !is_apart) {
    const Load load = at_rate(decode, output, rate / replicas);
    state.batch = load.batch;
    state.tpot = load.tpot;
  } else if (is_open) {
    state.batch = std::min(decode.most(), rate / replicas * output * decode.decode(1).value());
    for (int i = 0; i < 40; ++i) {
      state.batch = std::clamp(rate / replicas * output * decode.decode(state.batch).value(), 1.0,
                               decode.most());
    }
    state.tpot = decode.decode(state.batch);
  } else {
    state.batch = std::clamp(in_flight, 1.0, decode.most());
    if (!is_apart) prefill_time = decode.prefill(state.batch);
    const Seconds cycle =
        decode.decode(state.batch) * output + prefill_time * (is_apart ? 0.0 : state.batch);
    state.tpot = cycle / output;
    const double all = replicas * state.batch / cycle.value();
    state.capacity_requests_per_s = is_apart ? std::min(all, state.capacity_requests_per_s) : all;
  }
  state.utilisation = is_open ? rate / state.capacity_requests_per_s : 1;
  state.requests_per_s =
      is_open ? std::min(rate, state.capacity_requests_per_s) : state.capacity_requests_per_s;
  state.offered_requests_per_s = rate;
  state.output_tokens_per_s = state.requests_per_s * lengths.output;
  ReplicaTimes& prefill = is_apart ? *prefill_only : decode;
  state.ttft = first_token(prefill.lone_prefill(is_apart ? 0 : state.batch), is_open ? busy : 0.5);
  state.per_output_token = per_output_token(scenario, state, output, prefill, decode);
  state.impossible = impossible(scenario.slo, prefill, decode, lengths);
  return state;
}

std::vector<OperatingPoint> load_curve(const Scenario& scenario, const Workload& workload,
                                       const ServiceModel& model) {
  const Lengths lengths = lengths_of(workload);
  const Scenario side = scenario.disaggregation ? decode_side(scenario) : scenario;
  ReplicaTimes decode(side, model.steps().times(), model.memory(), lengths);
  std::vector<OperatingPoint> points;
  for (double batch = 1;; batch = std::min(2 * batch, decode.most())) {
    Workload closed = workload;
    closed.closed_loop_concurrency = static_cast<std::int64_t>(batch) * side.replicas;
    const SteadyState state = steady_state(scenario, closed, model);
    points.push_back(
        {.batch = batch,
         .ttft = state.ttft,
         .tpot = state.tpot,
         .output_tokens_per_s_per_gpu = state.requests_per_s * lengths.output / num_gpus(scenario),
         .per_output_token = state.per_output_token});
    if (batch >= decode.most()) return points;
  }
}

}  // namespace orrery
