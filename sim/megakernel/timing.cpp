#include "sim/megakernel/timing.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

namespace orrery::megakernel {
namespace {

// As kernels/megakernel/machine.cuh and matvec.cuh have them.
constexpr std::size_t kPagesAsked = 2;         // under way at once
constexpr std::size_t kHeldPages = 2;          // that consumers take before they have values
constexpr std::int64_t kTilesOfPage = 4;       // of keys
constexpr std::int64_t kValuesOfRound = 8192;  // 8 warps of 32 lanes with 4 loads of 8 values each
constexpr std::int64_t kPartsOfRound = 4;      // of the keys, merged
constexpr double kNever = std::numeric_limits<double>::infinity();

struct Page {
  std::int32_t instruction = 0;
  std::int32_t rows_done = 0;  // of the output, when it has been multiplied; of a block's last page
  double bytes = 0;
};

// What a group of instructions waits for together: values of a vector on the board.
struct Values {
  std::int64_t missing = 0;
  double latest = 0;
  std::vector<std::int32_t> waiting;  // SMs
};

bool has_rows(const Instruction& in) {
  return in.opcode != Opcode::kAttention && in.opcode != Opcode::kPick && in.opcode != Opcode::kEnd;
}

// Pages that the loader asks for, in order.
std::vector<Page> pages_of(std::span<const Instruction> own, const ModelShape& shape) {
  std::vector<Page> pages;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const Instruction& in = own[i];
    const auto index = static_cast<std::int32_t>(i);
    if (in.opcode == Opcode::kAttention) {
      const std::int64_t tile_keys = page_keys(shape.head_dim) / kTilesOfPage;
      const std::int64_t tiles = (shape.context - 1 + tile_keys - 1) / tile_keys;
      const std::int64_t all = (tiles + kTilesOfPage - 1) / kTilesOfPage;
      const std::int64_t each = (all + in.parts - 1) / in.parts * kTilesOfPage;
      const std::int64_t begin = std::min(tiles, in.part * each);
      const std::int64_t end = std::min(tiles, begin + each);
      for (std::int64_t tile = begin; tile < end; tile += kTilesOfPage) {
        const std::int64_t keys = std::min(kTilesOfPage, end - tile) * tile_keys;
        pages.push_back(
            {.instruction = index, .bytes = static_cast<double>(keys * shape.head_dim * 4)});
      }
      continue;
    }
    if (!has_rows(in)) continue;
    const std::int64_t weights = in.opcode == Opcode::kGateUp ? 2 : 1;
    const std::int64_t row_bytes = std::int64_t{in.width} * in.weight_bytes;
    for (std::int64_t row = 0; row < in.num_rows; row += kPageRows / weights) {
      const std::int64_t rows = std::min(kPageRows / weights, in.num_rows - row);
      for (std::int64_t at = 0; at < row_bytes; at += kPageRowBytes) {
        const std::int64_t own_bytes = std::min<std::int64_t>(kPageRowBytes, row_bytes - at);
        pages.push_back(
            {.instruction = index,
             .rows_done = at + kPageRowBytes >= row_bytes ? static_cast<std::int32_t>(rows) : 0,
             .bytes = static_cast<double>(rows * weights * own_bytes)});
      }
    }
  }
  return pages;
}

class Machine {
 public:
  Machine(const Program& program, const MachineTimes& times)
      : program_(program),
        shape_(program.shape),
        times_(times),
        num_pages_(static_cast<std::size_t>(num_pages(program.shape))),
        sms_(program.instructions.size()) {
    if (!(times.hbm_rate.value() > 0) || !(times.page.value() > 0) ||
        !(times.fp8_page.value() > 0)) {
      throw std::invalid_argument("megakernel: a rate or a time of products that is not positive");
    }
    make_values();
    for (std::size_t i = 0; i < sms_.size(); ++i) {
      sms_[i].own = program.instructions[i];
      sms_[i].pages = pages_of(sms_[i].own, shape_);
      sms_[i].times.resize(sms_[i].own.size() - 1);
    }
  }

  SimulatedForward run() {
    for (std::size_t sm = 0; sm < sms_.size(); ++sm) {
      ask(sm);
      begin_instruction(sm);
    }
    while (step()) {
    }
    SimulatedForward forward;
    for (std::size_t i = 0; i < sms_.size(); ++i) {
      Sm& sm = sms_[i];
      if (sm.at < sm.times.size()) {
        throw std::logic_error("megakernel: SM " + std::to_string(i) + " waits for ever in " +
                               describe(sm.own[sm.at]));
      }
      if (!sm.times.empty()) forward.duration = std::max(forward.duration, sm.times.back().end);
      forward.instructions.push_back(std::move(sm.times));
    }
    return forward;
  }

 private:
  enum class What : std::uint8_t { kAtMemory, kReady, kMultiplied, kNext };
  struct Event {
    double time = 0;
    std::int64_t number = 0;  // of equal times the first made
    What what = What::kNext;
    std::size_t sm = 0;
    [[nodiscard]] bool operator>(const Event& other) const {
      return std::tie(time, number) > std::tie(other.time, other.number);
    }
  };
  struct Sm {
    std::span<const Instruction> own;
    std::vector<Page> pages;
    std::vector<InstructionTimes> times;
    std::size_t asked = 0;   // pages
    std::size_t queued = 0;  // of these have reached the memory
    std::size_t landed = 0;
    std::size_t freed = 0;  // or held
    std::size_t multiplied = 0;
    std::size_t at = 0;           // instruction
    std::int32_t row = 0;         // of it, the next to be done
    double page_wanted = kNever;  // since when its consumers wait for a page
    double start = 0;             // of its instruction
  };

  // Of a layer's QKV each kv head's values apart, with those of its query heads.
  void make_values() {
    constexpr std::size_t kVectors = 5;  // of a layer
    const auto kv_heads = static_cast<std::size_t>(shape_.kv_heads);
    of_layer_ = kv_heads + kVectors - 1;
    values_.resize(of_layer_ * static_cast<std::size_t>(shape_.layers) + 1);
    for (const auto& own : program_.instructions) {
      for (const Instruction& in : own) {
        each_written(in, 0, in.num_rows, [](Values& values) { ++values.missing; });
      }
    }
  }
  [[nodiscard]] std::size_t first_of(std::int64_t layer) const {
    return static_cast<std::size_t>(layer) * of_layer_;
  }
  [[nodiscard]] std::size_t attended(std::int64_t layer) const {
    return first_of(layer) + static_cast<std::size_t>(shape_.kv_heads);
  }
  // What rows first ... last of an instruction's are a part of.
  template <typename Use>
  void each_written(const Instruction& in, std::int64_t first, std::int64_t last, const Use& use) {
    switch (in.opcode) {
      case Opcode::kQkv:
        for (std::int64_t row = in.first_row + first; row < in.first_row + last; ++row) {
          const std::int64_t head = row / shape_.head_dim;
          const std::int64_t kv = head < shape_.heads ? head / (shape_.heads / shape_.kv_heads)
                                                      : (head - shape_.heads) % shape_.kv_heads;
          use(values_[first_of(in.layer) + static_cast<std::size_t>(kv)]);
        }
        return;
      case Opcode::kAttention:
        use(values_[attended(in.layer)]);
        return;
      case Opcode::kOutput:
      case Opcode::kGateUp:
      case Opcode::kDown: {
        const auto vector =
            static_cast<std::size_t>(in.opcode) - static_cast<std::size_t>(Opcode::kOutput) + 1;
        for (std::int64_t row = first; row < last; ++row) {
          use(values_[attended(in.layer) + vector]);
        }
        return;
      }
      case Opcode::kLogits:
        if (last == in.num_rows) use(values_.back());
        return;
      case Opcode::kPick:
      case Opcode::kEnd:
        return;
    }
  }
  // What an instruction waits for; null: the token alone.
  Values* read_of(const Instruction& in) {
    switch (in.opcode) {
      case Opcode::kQkv:
      case Opcode::kLogits:
        return in.layer == 0 ? nullptr : &values_[attended(in.layer - 1) + 3];
      case Opcode::kAttention:
        return &values_[first_of(in.layer) + static_cast<std::size_t>(in.num_rows)];
      case Opcode::kOutput:
        return &values_[attended(in.layer)];
      case Opcode::kGateUp:
        return &values_[attended(in.layer) + 1];
      case Opcode::kDown:
        return &values_[attended(in.layer) + 2];
      default:
        return &values_.back();
    }
  }
  // Of an instruction's values, first looked for when it begins.
  [[nodiscard]] double read_time(const Instruction& in) const {
    return times_.read.value() + later_rounds(in);
  }
  // Rounds that follow the first, or the first that finds the last part of the keys.
  [[nodiscard]] double later_rounds(const Instruction& in) const {
    if (in.opcode == Opcode::kAttention || in.opcode == Opcode::kPick) return 0;
    if (in.opcode == Opcode::kOutput && in.parts > 1) {
      const std::int64_t rounds = shape_.batch * ((in.parts + kPartsOfRound - 1) / kPartsOfRound);
      return times_.merge.value() * static_cast<double>(rounds);
    }
    const std::int64_t values = shape_.batch * in.width;
    const std::int64_t rounds = (values + kValuesOfRound - 1) / kValuesOfRound;
    return times_.read.value() * static_cast<double>(rounds - 1);
  }

  void add(double time, What what, std::size_t sm) {
    events_.push({.time = time, .number = ++num_events_, .what = what, .sm = sm});
  }

  // The loader: as many pages as it may.
  void ask(std::size_t index) {
    Sm& sm = sms_[index];
    while (sm.asked < sm.pages.size() && sm.asked - sm.landed < kPagesAsked &&
           sm.asked - sm.freed < num_pages_) {
      ++sm.asked;
      add(now_ + times_.hbm_latency.value(), What::kAtMemory, index);
    }
  }

  void begin_instruction(std::size_t index) {
    Sm& sm = sms_[index];
    if (sm.at == sm.times.size()) return;
    sm.start = now_;
    sm.row = 0;
    sm.times[sm.at].start = Seconds(now_);
    hold_pages(index);
    Values* const values = read_of(sm.own[sm.at]);
    if (values != nullptr && values->missing > 0) {
      values->waiting.push_back(static_cast<std::int32_t>(index));
      return;
    }
    take_values(index, values);
  }
  // The instruction's first pages that are there make room for others.
  void hold_pages(std::size_t index) {
    Sm& sm = sms_[index];
    if (!has_rows(sm.own[sm.at])) return;
    for (std::size_t i = 0; i < kHeldPages && sm.freed < sm.landed; ++i) {
      if (sm.pages[sm.freed].instruction != static_cast<std::int32_t>(sm.at)) return;
      ++sm.freed;
      ask(index);
    }
  }
  void take_values(std::size_t index, const Values* values) {
    const Sm& sm = sms_[index];
    double ready = sm.start + read_time(sm.own[sm.at]);
    if (values != nullptr) {
      ready = std::max(ready, values->latest + times_.hop.value() + later_rounds(sm.own[sm.at]));
    }
    add(ready, What::kReady, index);
  }

  // The consumers' next page, or the end of their instruction.
  void want_page(std::size_t index) {
    Sm& sm = sms_[index];
    const bool has_page = sm.multiplied < sm.pages.size() &&
                          sm.pages[sm.multiplied].instruction == static_cast<std::int32_t>(sm.at);
    if (!has_page) return end_instruction(index);
    if (sm.multiplied >= sm.landed) {
      sm.page_wanted = now_;
      return;
    }
    add(now_ + page_time(sm.own[sm.at]).value(), What::kMultiplied, index);
  }
  [[nodiscard]] Seconds page_time(const Instruction& in) const {
    if (in.opcode == Opcode::kAttention) return times_.key_page;
    return in.weight_bytes == 1 ? times_.fp8_page : times_.page;
  }
  void end_instruction(std::size_t index) {
    Sm& sm = sms_[index];
    const Instruction& in = sm.own[sm.at];
    sm.times[sm.at].end = Seconds(now_);
    if (in.opcode == Opcode::kAttention) write(in, 0, 0);
    // Without rows the SM has a candidate all the same.
    if (in.opcode == Opcode::kLogits && in.num_rows == 0) write(in, 0, 0);
    ++sm.at;
    add(now_ + times_.instruction.value(), What::kNext, index);
  }
  void write(const Instruction& in, std::int64_t first, std::int64_t last) {
    const double time = now_ + times_.store.value();
    each_written(in, first, last, [&](Values& values) {
      values.latest = std::max(values.latest, time);
      if (--values.missing > 0) return;
      for (const std::int32_t sm : std::exchange(values.waiting, {})) {
        take_values(static_cast<std::size_t>(sm), &values);
      }
    });
  }
  void multiplied(std::size_t index) {
    Sm& sm = sms_[index];
    const Page& page = sm.pages[sm.multiplied];
    if (sm.freed == sm.multiplied++) ++sm.freed;
    ask(index);
    if (page.rows_done > 0) {
      write(sm.own[sm.at], sm.row, sm.row + page.rows_done);
      sm.row += page.rows_done;
    }
    want_page(index);
  }

  // The memory: each SM with a page there gets as much of the rate. `served_` is what each of them
  // has got since the beginning, so that a page ends where it reaches what stands in `ends_`.
  struct Served {
    double end = 0;
    std::size_t sm = 0;
    [[nodiscard]] bool operator>(const Served& other) const {
      return std::tie(end, sm) > std::tie(other.end, other.sm);
    }
  };
  void serve(std::size_t index) {
    const Sm& sm = sms_[index];
    ends_.push({.end = served_ + sm.pages[sm.landed].bytes, .sm = index});
  }
  void at_memory(std::size_t index) {
    Sm& sm = sms_[index];
    if (sm.queued++ == sm.landed) serve(index);
  }
  void land(std::size_t index) {
    Sm& sm = sms_[index];
    ++sm.landed;
    if (sm.queued > sm.landed) serve(index);
    ask(index);
    if (sm.page_wanted == kNever) return;
    sm.times[sm.at].weights += Seconds(now_ - sm.page_wanted);
    sm.page_wanted = kNever;
    want_page(index);
  }
  void advance(double time) {
    if (!ends_.empty()) {
      served_ += (time - now_) * times_.hbm_rate.value() / static_cast<double>(ends_.size());
    }
    now_ = time;
  }

  bool step() {
    double landing = kNever;
    if (!ends_.empty()) {
      landing = now_ + std::max(0.0, ends_.top().end - served_) *
                           static_cast<double>(ends_.size()) / times_.hbm_rate.value();
    }
    if (!events_.empty() && events_.top().time <= landing) {
      const Event event = events_.top();
      events_.pop();
      advance(event.time);
      handle(event);
      return true;
    }
    if (landing == kNever) return false;
    const Served next = ends_.top();
    advance(landing);
    served_ = next.end;
    ends_.pop();
    land(next.sm);
    return true;
  }
  void handle(const Event& event) {
    Sm& sm = sms_[event.sm];
    switch (event.what) {
      case What::kAtMemory:
        return at_memory(event.sm);
      case What::kReady:
        sm.times[sm.at].ready = Seconds(now_);
        return want_page(event.sm);
      case What::kMultiplied:
        return multiplied(event.sm);
      case What::kNext:
        return begin_instruction(event.sm);
    }
  }

  const Program& program_;
  const ModelShape& shape_;
  const MachineTimes& times_;
  std::size_t num_pages_;
  std::vector<Sm> sms_;
  std::vector<Values> values_;
  std::size_t of_layer_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::priority_queue<Served, std::vector<Served>, std::greater<>> ends_;
  std::int64_t num_events_ = 0;
  double now_ = 0;
  double served_ = 0;
};

}  // namespace

SimulatedForward simulate_forward(const Program& program, const MachineTimes& times) {
  return Machine(program, times).run();
}

std::vector<RankedSchedule> rank_schedules(const Plan& plan, int num_sms,
                                           const MachineTimes& times) {
  std::vector<RankedSchedule> ranked;
  for (std::size_t i = 0; i < kSchedules.size(); ++i) {
    const auto schedule = static_cast<Schedule>(i);
    const Program program = compile(plan, {.num_sms = num_sms, .schedule = schedule});
    ranked.push_back({.schedule = schedule, .duration = simulate_forward(program, times).duration});
  }
  std::ranges::stable_sort(ranked, {}, &RankedSchedule::duration);
  return ranked;
}

}  // namespace orrery::megakernel
