#pragma once

// A step runner with a KV cache of several layers and a host behind it, whose copies run as early,
// as late or as anyhow as MoveSchedule lets them: a copy that nothing waits for comes too late, or
// too early, and the tokens that follow show it.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <span>
#include <vector>

#include "kernels/serve/move_schedule.h"
#include "tests/kernels/fake_runner.h"

namespace orrery::testing {

enum class CopyTiming : std::uint8_t { kEager, kLazy, kRandom };

class FakeHost : public StepRunner, private MoveLanes {
 public:
  struct Setup {
    std::int64_t num_blocks = 0;
    std::int64_t block_size = 0;
    std::int64_t blocks_per_unit = 1;
    int num_layers = 3;
    TierOverlap overlap = TierOverlap::kLayers;
    CopyTiming timing = CopyTiming::kLazy;
    std::uint64_t seed = 1;
    RunnerTimes times;
  };
  explicit FakeHost(const Setup& setup)
      : setup_(setup),
        schedule_(*this, setup.num_layers, setup.overlap),
        random_(setup.seed),
        gpu_(layers_of(setup.num_blocks * setup.block_size)),
        host_(layers_of(0)) {}

  void capture(std::int64_t /*rows*/) override {}
  [[nodiscard]] Seconds waited() const override { return waited_; }

  std::vector<std::int32_t> run(const StepInput& input, std::int64_t /*graph_rows*/,
                                const KvMoves& moves) override {
    const LiveClock clock;
    for (auto& layer : host_) {
      layer.resize(static_cast<std::size_t>(moves.num_slots * slot_tokens()), -2);
    }
    num_loads += std::ssize(moves.loads);
    num_writes += std::ssize(moves.writes) + std::ssize(moves.computed);
    schedule_.set(moves);
    const bool by_layers = !input.prefill.empty();
    schedule_.begin_step(by_layers);
    std::vector<std::uint64_t> sums(input.prefill.size() + input.decodes.size(), 0);
    for (int layer = 0; layer < setup_.num_layers; ++layer) {
      if (by_layers) schedule_.begin_layer(layer);
      compute(input, static_cast<std::size_t>(layer));
    }
    std::vector<std::int32_t> next;
    std::int64_t prompt_tokens = 0;
    for (const auto& sequences : {input.prefill, input.decodes}) {
      for (const SequenceTokens& sequence : sequences) {
        if (sequence.produces_token) next.push_back(next_token(history(sequence)));
      }
    }
    for (const SequenceTokens& chunk : input.prefill) prompt_tokens += std::ssize(chunk.tokens);
    schedule_.end_step();
    clock.wait_until(setup_.times.base +
                     setup_.times.per_token * static_cast<double>(prompt_tokens));
    waited_ = Seconds(1e-6) * static_cast<double>(moves.loads.size());
    return next;
  }

  std::int64_t num_loads = 0;
  std::int64_t num_writes = 0;

 private:
  using Cache = std::vector<std::int32_t>;  // tokens, by slot
  struct Operation {
    enum class Kind : std::uint8_t { kCopy, kRecord, kWait } kind = Kind::kCopy;
    std::int64_t event = 0;  // recorded or waited for
    std::vector<UnitMove> units;
    std::int64_t layer = 0;
    std::int64_t num_layers = 0;
  };

  [[nodiscard]] std::vector<Cache> layers_of(std::int64_t size) const {
    return std::vector<Cache>(static_cast<std::size_t>(setup_.num_layers),
                              Cache(static_cast<std::size_t>(size), -1));
  }
  [[nodiscard]] std::int64_t slot_tokens() const {
    return setup_.blocks_per_unit * setup_.block_size;
  }
  [[nodiscard]] std::size_t place(const SequenceTokens& of, std::int64_t position) const {
    const std::int32_t block = of.blocks.at(static_cast<std::size_t>(position / setup_.block_size));
    return static_cast<std::size_t>(block * setup_.block_size + position % setup_.block_size);
  }

  // A layer writes all its rows before it reads any.
  void compute(const StepInput& input, std::size_t layer) {
    for (const auto& sequences : {input.prefill, input.decodes}) {
      for (const SequenceTokens& sequence : sequences) {
        for (std::size_t i = 0; i < sequence.tokens.size(); ++i) {
          gpu_[layer].at(place(sequence, sequence.context + static_cast<std::int64_t>(i))) =
              sequence.tokens[i];
        }
      }
    }
    seen_.resize(gpu_.size());
    seen_[layer] = gpu_[layer];  // what attention of this layer reads
    progress();
  }
  // As all layers saw it; a token that they do not agree on is none.
  std::vector<std::int32_t> history(const SequenceTokens& of) const {
    std::vector<std::int32_t> tokens;
    const auto end = of.context + std::ssize(of.tokens);
    for (std::int64_t position = 0; position < end; ++position) {
      const std::size_t at = place(of, position);
      std::int32_t token = seen_.front().at(at);
      for (const Cache& layer : seen_) {
        if (layer.at(at) != token) token = -1;
      }
      tokens.push_back(token);
    }
    return tokens;
  }

  void copy(MoveLane lane, std::span<const UnitMove> units, std::int64_t layer,
            std::int64_t num_layers) override {
    ASSERT_NE(lane, MoveLane::kCompute);
    queue(lane).push_back(
        {.units = {units.begin(), units.end()}, .layer = layer, .num_layers = num_layers});
    progress();
  }
  void record(MoveLane lane, const MoveMark& mark) override {
    const std::int64_t event = num_events_++;
    last_[mark] = event;
    if (lane == MoveLane::kCompute) {
      happened_.resize(static_cast<std::size_t>(num_events_));
      happened_[static_cast<std::size_t>(event)] = true;
      return;
    }
    happened_.resize(static_cast<std::size_t>(num_events_));
    queue(lane).push_back({.kind = Operation::Kind::kRecord, .event = event});
    progress();
  }
  void wait(MoveLane lane, const MoveMark& mark) override {
    ASSERT_TRUE(last_.contains(mark)) << "a wait for what was not recorded";
    if (lane == MoveLane::kCompute) {
      force(last_[mark]);
    } else {
      queue(lane).push_back({.kind = Operation::Kind::kWait, .event = last_[mark]});
    }
  }

  std::deque<Operation>& queue(MoveLane lane) { return lane == MoveLane::kOut ? out_ : in_; }
  // One operation of a lane, unless it waits.
  bool advance(std::deque<Operation>& lane) {
    if (lane.empty()) return false;
    const Operation& next = lane.front();
    const auto event = static_cast<std::size_t>(next.event);
    if (next.kind == Operation::Kind::kWait && !happened_[event]) return false;
    if (next.kind == Operation::Kind::kRecord) happened_[event] = true;
    if (next.kind == Operation::Kind::kCopy) move(next, &lane == &out_);
    lane.pop_front();
    return true;
  }
  void force(std::int64_t event) {
    while (!happened_[static_cast<std::size_t>(event)]) {
      if (advance(in_) || advance(out_)) continue;
      FAIL() << "lanes wait for each other";
    }
  }
  void progress() {
    if (setup_.timing == CopyTiming::kLazy) return;
    while (setup_.timing == CopyTiming::kEager || random_() % 3 != 0) {
      const bool first = random_() % 2 == 0;
      if (!advance(first ? in_ : out_) && !advance(first ? out_ : in_)) return;
    }
  }
  void move(const Operation& of, bool to_host) {
    for (const UnitMove& unit : of.units) {
      for (std::int64_t i = 0; i < slot_tokens(); ++i) {
        const std::int32_t block = unit.blocks.at(static_cast<std::size_t>(i / setup_.block_size));
        const auto gpu =
            static_cast<std::size_t>(block * setup_.block_size + i % setup_.block_size);
        const auto host = static_cast<std::size_t>(unit.slot * slot_tokens() + i);
        for (std::int64_t layer = of.layer; layer < of.layer + of.num_layers; ++layer) {
          const auto l = static_cast<std::size_t>(layer);
          to_host ? host_[l].at(host) = gpu_[l].at(gpu) : gpu_[l].at(gpu) = host_[l].at(host);
        }
      }
    }
  }

  Setup setup_;
  MoveSchedule schedule_;
  std::mt19937_64 random_;
  std::vector<Cache> gpu_;   // by layer
  std::vector<Cache> seen_;  // of the step
  std::vector<Cache> host_;
  std::deque<Operation> out_;
  std::deque<Operation> in_;
  std::map<MoveMark, std::int64_t> last_;  // event
  std::vector<bool> happened_;             // by event
  std::int64_t num_events_ = 0;
  Seconds waited_;
};

}  // namespace orrery::testing
