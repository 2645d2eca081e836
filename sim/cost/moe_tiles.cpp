#include "sim/cost/moe_tiles.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <queue>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/cost/moe_rank_tasks.h"
#include "sim/cost/nic_queue.h"

namespace orrery {
namespace {

// As kernels/experts/grouped_gemm/swap_ab_sm90.cuh and fused_moe have them.
constexpr std::int64_t kWarps = 12;
constexpr double kResult = 2;  // bytes of a value
constexpr double kNever = std::numeric_limits<double>::infinity();

constexpr std::array<std::string_view, 4> kOrders = {"behind", "by_layer", "longest_first",
                                                     "ready_first"};

class Layer {
 public:
  // Of `rank`, which stands still for `stall`.
  Layer(const FusedMoeShape& shape, const MoeTileTimes& times, const MoeTileOptions& options,
        std::int64_t rank, Seconds stall)
      : shape_(shape),
        times_(times),
        gemms_(moe_gemms(shape, times)),
        rows_(moe_rank_rows(shape, options, rank)),
        tasks_(moe_rank_tasks(shape, options, rows_, gemms_)),
        order_(options.order),
        is_bulk_(options.is_bulk_synchronous),
        stall_(stall.value()),
        element_(shape.is_fp8 ? 1 : 2),
        keeps_tasks_(options.keeps_tasks),
        sms_(static_cast<std::size_t>(options.num_sms)) {
    const MoeNetwork& network = options.network;
    ranks_of_host_ = shape.ranks / network.hosts;
    latency_ = network.latency;
    if (network.hosts > 1) nic_.emplace(network.rate, network.latency, network.queue);
    missing_.assign(static_cast<std::size_t>(rows_.num_tiles), gemms_[0].tasks());
    ready_.resize(missing_.size());
    waiting_.resize(missing_.size());
    for (const MoeGemm& gemm : gemms_) {
      weights_.emplace_back(rows_.experts.size() * static_cast<std::size_t>(gemm.tasks()));
    }
    is_taken_.resize(tasks_.size());
  }

  MoeLayerTime run() {
    now_ = routed();
    const double begin = now_;
    last_ = begin;
    returned_ = summed_ = begin;
    for (std::size_t sm = 0; sm < sms_.size(); ++sm) take(sm);
    while (step()) {
    }
    const double tiles = last_;
    if (is_bulk_) exchange_results();
    double duration = std::max(last_, summed_) + times_.end.value();
    if (shape_.ranks > 1) duration += times_.end_of_ranks.value();
    const double span = (tiles - begin) * static_cast<double>(sms_.size());
    return {.duration = Seconds(duration),
            .routed = Seconds(begin),
            .tiles = Seconds(tiles),
            .busy = span > 0 ? worked_ / span : 0,
            .most_outstanding = nic_ ? nic_->most_outstanding() : 0,
            .tasks = std::move(spans_)};
  }

 private:
  enum class What : std::uint8_t { kMultiplied, kWritten, kBegun, kSent };
  struct Event {
    double time = 0;
    std::int64_t number = 0;  // of equal times the first made
    What what = What::kBegun;
    std::size_t sm = 0;
    [[nodiscard]] bool operator>(const Event& other) const {
      return std::tie(time, number) > std::tie(other.time, other.number);
    }
  };
  // What an SM fetches; `end` in bytes that each fetching SM has been given since the beginning.
  struct Fetch {
    double end = 0;
    std::size_t sm = 0;
    std::int64_t weights = -1;  // that others wait for too
    [[nodiscard]] bool operator>(const Fetch& other) const {
      return std::tie(end, sm) > std::tie(other.end, other.sm);
    }
  };
  struct Sm {
    MoeTask task;
    int missing = 0;  // its own fetch, weights that another fetches, its products
    double taken = 0;
    double ready = 0;
  };
  struct Weights {
    bool is_asked = false;
    bool is_there = false;
    std::vector<std::size_t> waiting;  // SMs
  };

  // When rows are where their experts are.
  double routed() {
    const std::int64_t tokens = num_parts(shape_.tokens, static_cast<std::int64_t>(sms_.size()));
    const auto all = static_cast<double>(shape_.tokens);
    const auto topk = static_cast<double>(shape_.topk);
    const auto row = static_cast<double>(element_ * shape_.hidden);
    const auto shared = static_cast<double>(shape_.shared);
    const double taken = rows_.sent;
    const double moved = (all * (1 + shared) + taken) * row;
    const auto others = static_cast<double>(shape_.ranks - 1);
    const auto near = static_cast<double>(ranks_of_host_ - 1);
    const double remote = rows_.remote >= 0
                              ? rows_.remote * row
                              : taken * row * near / static_cast<double>(shape_.ranks);
    const double counted =
        times_.launch.value() + times_.per_expert.value() * static_cast<double>(shape_.experts) +
        times_.per_token.value() * static_cast<double>(tokens) +
        times_.per_choice.value() * static_cast<double>(tokens) * topk +
        times_.per_round.value() * static_cast<double>(num_parts(tokens, kWarps)) * topk +
        times_.per_rank.value() * others;
    const double sent = std::max(moved / times_.send.value(), remote / times_.links.value());
    if (!nic_) return counted + sent;
    const Seconds heard = Seconds(counted) + latency_;
    const std::int64_t far = std::llround(taken) * (shape_.ranks - ranks_of_host_);
    Seconds there = heard + Seconds(sent);
    for (std::int64_t i = 0; i < num_parts(far, shape_.ranks); ++i) {
      there = std::max(there, nic_->post(heard, Bytes(row)).there);
    }
    return there.value();
  }

  [[nodiscard]] const MoeGemm& gemm_of(const MoeTask& task) const {
    return gemms_[static_cast<std::size_t>(task.layer)];
  }
  [[nodiscard]] const MoeExpertTiles& expert_of(const MoeTask& task) const {
    return rows_.experts[static_cast<std::size_t>(task.expert)];
  }
  [[nodiscard]] std::size_t tile_of(const MoeTask& task) const {
    return static_cast<std::size_t>(expert_of(task).first_tile + task.tile);
  }
  [[nodiscard]] std::int64_t weights_of(const MoeTask& task) const {
    return task.expert * gemm_of(task).tasks() + task.column;
  }

  void add(double time, What what, std::size_t sm) {
    events_.push({.time = time, .number = ++num_events_, .what = what, .sm = sm});
  }
  [[nodiscard]] bool is_ready(const MoeTask& task) const {
    return task.layer == 0 || (missing_[tile_of(task)] == 0 && ready_[tile_of(task)] <= now_);
  }
  // Of those that nobody has taken, where the next one is.
  [[nodiscard]] std::size_t next_task() {
    while (is_taken_[next_]) ++next_;
    if (order_ != MoeTileOrder::kReadyFirst) return next_;
    for (std::size_t i = next_; i < tasks_.size(); ++i) {
      if (!is_taken_[i] && is_ready(tasks_[i])) return i;
    }
    return next_;
  }
  void take(std::size_t index) {
    if (num_taken_ == tasks_.size()) return;
    if (num_taken_ == tasks_.size() / 2 && !is_bulk_) resumed_ = now_ + stall_;
    ++num_taken_;
    const std::size_t next = next_task();
    is_taken_[next] = true;
    Sm& sm = sms_[index];
    sm.task = tasks_[next];
    sm.taken = now_;
    const std::size_t tile = tile_of(sm.task);
    if (sm.task.layer == 1 && missing_[tile] > 0) {
      waiting_[tile].push_back(index);
      return;
    }
    sm.ready = std::max(now_, resumed_);
    double begun = sm.ready + times_.begin.value();
    if (sm.task.layer == 1) {
      sm.ready = std::max(sm.ready, ready_[tile]);
      begun = std::max(begun, ready_[tile]);
    }
    add(begun, What::kBegun, index);
  }
  // Its products, and what they need.
  void begin(std::size_t index) {
    Sm& sm = sms_[index];
    const MoeGemm& gemm = gemm_of(sm.task);
    const auto width = static_cast<double>(expert_of(sm.task).width);
    const auto steps = static_cast<double>(gemm.steps());
    const double products = steps * (times_.step.value() + times_.step_row.value() * width);
    add(now_ + products, What::kMultiplied, index);
    worked_ += products;
    const std::int64_t id = weights_of(sm.task);
    Weights& weights =
        weights_[static_cast<std::size_t>(sm.task.layer)][static_cast<std::size_t>(id)];
    const double bytes = gemm.weight_bytes(sm.task.column);
    const double of_x = times_.x_bytes * kMoeStepBytes * steps * width;
    sm.missing = 2;
    if (!weights.is_asked) {
      weights.is_asked = true;
      fetches_.push({.end = served_ + bytes + of_x, .sm = index, .weights = id});
      return;
    }
    fetches_.push({.end = served_ + times_.l2_bytes * bytes + of_x, .sm = index});
    if (weights.is_there) return;
    weights.waiting.push_back(index);
    ++sm.missing;
  }
  void has(std::size_t index) {
    Sm& sm = sms_[index];
    if (--sm.missing > 0) return;
    const double writing =
        gemm_of(sm.task).write_row * static_cast<double>(expert_of(sm.task).width);
    worked_ += writing;
    add(now_ + writing, What::kWritten, index);
  }
  void written(std::size_t index) {
    const MoeTask task = sms_[index].task;
    last_ = now_;
    if (keeps_tasks_) keep(index);
    if (task.layer == 0) {
      if (--missing_[tile_of(task)] == 0) become_ready(task);
    } else {
      give_back(task);
      if (nic_ && accepted_ > now_) return add(accepted_, What::kSent, index);
    }
    take(index);
  }
  void keep(std::size_t index) {
    const Sm& sm = sms_[index];
    const double quantized = sm.task.layer == 0 ? quantizing(sm.task) : 0;
    spans_.push_back(
        {.sm = static_cast<std::int32_t>(index),
         .layer = sm.task.layer + 1,
         .expert = sm.task.expert,
         .tile = static_cast<std::int32_t>(tile_of(sm.task)),
         .column = sm.task.column * static_cast<std::int32_t>(gemm_of(sm.task).columns),
         .taken = Seconds(sm.taken),
         .ready = Seconds(sm.ready),
         .end = Seconds(now_),
         .counted = Seconds(now_ + quantized)});
  }
  [[nodiscard]] double quantizing(const MoeTask& task) const {
    if (!shape_.is_fp8) return 0;
    return times_.quantize_row.value() * static_cast<double>(expert_of(task).width);
  }
  // Rows between the layers are there, as fp8 where the second layer takes that.
  void become_ready(const MoeTask& task) {
    const double ready = ready_[tile_of(task)] = now_ + quantizing(task);
    for (const std::size_t sm : waiting_[tile_of(task)]) {
      sms_[sm].ready = std::max(ready, resumed_) + times_.hop.value();
      add(sms_[sm].ready, What::kBegun, sm);
    }
  }
  void give_back(const MoeTask& task) {
    const MoeExpertTiles& expert = expert_of(task);
    const std::int64_t rows = std::min(expert.rows - task.tile * expert.width, expert.width);
    const double bytes = kResult * static_cast<double>(kMoeTileColumns * rows);
    const double added = task.expert < shape_.shared ? bytes : rows_.sums_of_row * bytes;
    if (is_bulk_) {
      kept_ += added;
      if (task.expert < shape_.shared) return;
      sent_ += bytes;
      if (nic_) kept_tasks_.push_back(task);
      return;
    }
    double there = now_;
    const bool goes_to_others = task.expert >= shape_.shared;
    if (shape_.ranks > 1 && goes_to_others) {
      const auto near = static_cast<double>(ranks_of_host_ - 1);
      returned_ = std::max(returned_, now_) +
                  bytes * near / static_cast<double>(shape_.ranks) / times_.returned.value();
      there = returned_;
    }
    if (nic_ && goes_to_others) there = std::max(there, post_results(task, now_));
    summed_ = std::max(summed_, there) + added / times_.sums.value();
  }

  // To ranks on other hosts, a message for each that the tile has rows of; this is a rank of the
  // first host. When the last is there.
  double post_results(const MoeTask& task, double time) {
    const MoeExpertTiles& expert = expert_of(task);
    const std::int64_t begin = task.tile * expert.width;
    const std::int64_t end = std::min(begin + expert.width, expert.rows);
    Seconds there(time);
    accepted_ = time;
    for (std::int64_t rank = ranks_of_host_; rank < shape_.ranks; ++rank) {
      const std::int64_t first = std::max(begin, rank * expert.rows / shape_.ranks);
      const std::int64_t rows = std::min(end, (rank + 1) * expert.rows / shape_.ranks) - first;
      if (rows <= 0) continue;
      const Bytes bytes(kResult * static_cast<double>(kMoeTileColumns * rows));
      const NicQueue::Message message = nic_->post(Seconds(time), bytes);
      accepted_ = message.accepted.value();
      there = message.there;
    }
    return there.value();
  }
  void exchange_results() {
    const double begin = last_ + stall_;
    const auto near = static_cast<double>(ranks_of_host_ - 1);
    returned_ = begin + sent_ * near / static_cast<double>(shape_.ranks) / times_.returned.value();
    for (const MoeTask& task : kept_tasks_)
      returned_ = std::max(returned_, post_results(task, begin));
    summed_ = returned_ + kept_ / times_.sums.value();
  }

  // Bytes that each fetching SM gets a second.
  [[nodiscard]] double rate() const {
    const auto fetching = static_cast<double>(fetches_.size());
    return 1 / (1 / times_.sm.value() + fetching / times_.hbm.value());
  }
  void advance(double time) {
    if (!fetches_.empty()) served_ += (time - now_) * rate();
    now_ = time;
  }
  bool step() {
    double fetched = kNever;
    if (!fetches_.empty()) fetched = now_ + std::max(0.0, fetches_.top().end - served_) / rate();
    if (!events_.empty() && events_.top().time <= fetched) {
      const Event event = events_.top();
      events_.pop();
      advance(event.time);
      handle(event);
      return true;
    }
    if (fetched == kNever) return false;
    const Fetch fetch = fetches_.top();
    advance(fetched);
    served_ = fetch.end;
    fetches_.pop();
    if (fetch.weights >= 0) {
      const auto layer = static_cast<std::size_t>(sms_[fetch.sm].task.layer);
      Weights& weights = weights_[layer][static_cast<std::size_t>(fetch.weights)];
      weights.is_there = true;
      for (const std::size_t sm : weights.waiting) has(sm);
    }
    has(fetch.sm);
    return true;
  }
  void handle(const Event& event) {
    switch (event.what) {
      case What::kMultiplied:
        return has(event.sm);
      case What::kWritten:
        return written(event.sm);
      case What::kBegun:
        return begin(event.sm);
      case What::kSent:
        return take(event.sm);
    }
  }

  const FusedMoeShape& shape_;
  const MoeTileTimes& times_;
  std::array<MoeGemm, 2> gemms_;
  MoeRankRows rows_;
  std::vector<MoeTask> tasks_;
  MoeTileOrder order_;
  bool is_bulk_ = false;
  double stall_ = 0;
  std::int64_t element_ = 2;  // bytes of a value of x and of w
  bool keeps_tasks_ = false;
  std::vector<MoeTaskSpan> spans_;
  double resumed_ = 0;  // tasks are taken again
  std::int64_t ranks_of_host_ = 1;
  Seconds latency_;
  std::optional<NicQueue> nic_;  // of several hosts
  double accepted_ = 0;          // the last message of a task
  std::vector<MoeTask> kept_tasks_;
  double kept_ = 0;             // bytes of results that are added up behind the exchange
  double sent_ = 0;             // and that it sends to other ranks
  std::vector<bool> is_taken_;  // of the tasks
  std::size_t next_ = 0;        // none before it is left
  std::size_t num_taken_ = 0;
  std::vector<Sm> sms_;
  std::vector<std::int64_t> missing_;              // by tile, tasks of the first layer
  std::vector<double> ready_;                      // by tile, from when the second layer may begin
  std::vector<std::vector<std::size_t>> waiting_;  // by tile, SMs
  std::vector<std::vector<Weights>> weights_;      // by layer, then expert and columns
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::priority_queue<Fetch, std::vector<Fetch>, std::greater<>> fetches_;
  std::int64_t num_events_ = 0;
  double now_ = 0;
  double served_ = 0;
  double last_ = 0;      // something written
  double returned_ = 0;  // the link is free
  double summed_ = 0;    // what has come is added up
  double worked_ = 0;
};

// The longest of delays by rank.
Seconds last_of(const char* name, const std::map<std::int64_t, Seconds>& delays,
                std::int64_t ranks) {
  Seconds last;
  for (const auto& [rank, delay] : delays) {
    if (rank < 0 || rank >= ranks) {
      throw std::invalid_argument("tiles of fused_moe: " + std::string(name) + " of rank " +
                                  std::to_string(rank) + ", expected 0 to " +
                                  std::to_string(ranks - 1));
    }
    if (!(delay >= Seconds(0)) || !std::isfinite(delay.value())) {
      throw std::invalid_argument("tiles of fused_moe: " + std::string(name) + " of rank " +
                                  std::to_string(rank) + " is late by " +
                                  std::to_string(delay.value()) + " s, expected at least 0");
    }
    last = std::max(last, delay);
  }
  return last;
}

void require_choices(const FusedMoeShape& shape, const MoeTileOptions& options) {
  if (options.choices.empty()) return;
  const bool are_parts = std::ranges::all_of(
      options.choices, [](double chosen) { return chosen >= 0 && chosen <= 1; });
  if (!are_parts || std::ssize(options.choices) != shape.experts) {
    throw std::invalid_argument("tiles of fused_moe: " + std::to_string(options.choices.size()) +
                                " choices of " + std::to_string(shape.experts) +
                                " experts, expected one from 0 to 1 for each");
  }
  if (options.network.hosts == 1) return;
  throw std::invalid_argument("tiles of fused_moe: choices that prefer some experts on " +
                              std::to_string(options.network.hosts) +
                              " hosts, expected one host, or no choices");
}

}  // namespace

std::string_view to_text(MoeTileOrder order) { return kOrders.at(static_cast<std::size_t>(order)); }

MoeTileOrder parse_moe_tile_order(std::string_view text) {
  const auto* const found = std::ranges::find(kOrders, text);
  if (found == kOrders.end()) {
    throw std::invalid_argument("order of tiles is \"" + std::string(text) +
                                "\", expected behind, by_layer, longest_first or ready_first");
  }
  return static_cast<MoeTileOrder>(found - kOrders.begin());
}

MoeLayerTime simulate_moe_tiles(const FusedMoeShape& shape, const MoeTileTimes& times,
                                const MoeTileOptions& options) {
  const bool is_whole = shape.tokens > 0 && shape.hidden > 0 && shape.ffn > 0 &&
                        shape.experts > 0 && shape.topk > 0 && shape.ranks > 0;
  if (!is_whole || shape.experts % shape.ranks != 0 || options.num_sms < 1) {
    throw std::invalid_argument("tiles of fused_moe: " + std::to_string(shape.tokens) +
                                " tokens, " + std::to_string(shape.experts) + " experts on " +
                                std::to_string(shape.ranks) + " ranks of " +
                                std::to_string(options.num_sms) +
                                " SMs; expected some of each, and as many experts on each rank");
  }
  const std::int64_t hosts = options.network.hosts;
  if (hosts < 1 || shape.ranks % hosts != 0) {
    throw std::invalid_argument("tiles of fused_moe: " + std::to_string(shape.ranks) +
                                " ranks on " + std::to_string(hosts) +
                                " hosts, expected as many on each");
  }
  for (const BytesPerSecond rate :
       {times.send, times.links, times.hbm, times.sm, times.returned, times.sums}) {
    if (!(rate.value() > 0)) {
      throw std::invalid_argument("tiles of fused_moe: a rate of " + std::to_string(rate.value()) +
                                  " bytes a second, expected more than 0");
    }
  }
  const Seconds begin = last_of("begin", options.delays.begin, shape.ranks);
  const Seconds longest = last_of("stall", options.delays.stall, shape.ranks);
  require_choices(shape, options);
  MoeLayerTime found;
  const auto take_slower = [&](std::int64_t rank, Seconds stall) {
    const MoeLayerTime one = Layer(shape, times, options, rank, stall).run();
    if (one.duration > found.duration) found = one;
  };
  const std::int64_t unlike = options.choices.empty() ? 1 : shape.ranks;
  for (std::int64_t rank = 0; rank < unlike; ++rank) {
    take_slower(rank, Seconds(0));
    if (longest > Seconds(0)) take_slower(rank, longest);
  }
  found.duration += begin;
  found.routed += begin;
  found.tiles += begin;
  for (MoeTaskSpan& task : found.tasks) {
    for (Seconds* const time : {&task.taken, &task.ready, &task.end, &task.counted}) *time += begin;
  }
  return found;
}

}  // namespace orrery
