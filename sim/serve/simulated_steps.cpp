#include "sim/serve/simulated_steps.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>
#include <stdexcept>

#include "sim/parallel/rank_rows.h"
#include "sim/serve/fast_forward.h"

namespace orrery {
namespace {

constexpr double kStepsPerOctave = 8;      // grid of mean contexts
constexpr std::int64_t kFirstContext = 8;  // below, every context is a grid point
constexpr int kShapeBits = 6;              // significant bits of shapes whose whole plan is priced

std::int64_t grid_point(std::int64_t index) {
  if (index < kFirstContext) return index + 1;
  const double octaves = static_cast<double>(index - kFirstContext + 1) / kStepsPerOctave;
  return static_cast<std::int64_t>(
      std::llround(static_cast<double>(kFirstContext) * std::exp2(octaves)));
}

// Largest grid index whose point is at most `context` >= 1. Points rise by at least one: 8 *
// 2^(1/8) = 8.7 rounds to 9.
std::int64_t grid_index(double context) {
  auto index = static_cast<std::int64_t>(
      context < static_cast<double>(kFirstContext)
          ? context - 1
          : static_cast<double>(kFirstContext) - 1 +
                std::log2(context / static_cast<double>(kFirstContext)) * kStepsPerOctave);
  while (static_cast<double>(grid_point(index + 1)) <= context) ++index;
  while (index > 0 && static_cast<double>(grid_point(index)) > context) --index;
  return index;
}

// What attention alone depends on, within 0.8 %. Rows are kept, since times of GEMMs jump where a
// tile is full.
StepShape rounded(StepShape shape) {
  for (std::int64_t* value : {&shape.prefill_context, &shape.num_decodes, &shape.decode_context}) {
    *value = round_bits(*value, kShapeBits);
  }
  return shape;
}

template <typename Map, typename Key, typename Make>
DeviceTime remember(std::shared_mutex& mutex, Map& map, const Key& key, Make make) {
  {
    const std::shared_lock lock(mutex);
    const auto found = map.find(key);
    if (found != map.end()) return found->second;
  }
  const DeviceTime made = make();
  const std::unique_lock lock(mutex);
  return map.try_emplace(key, made).first->second;
}

StepSetup setup(const SimulatedStepsConfig& config, const CostModel* cost) {
  return {.model = config.model,
          .mesh = config.mesh,
          .lowering = config.lowering,
          .machine = config.machine,
          .cost = cost,
          .level = config.level,
          .has_uneven_decodes = config.uneven_attention.more > Seconds(0)};
}

}  // namespace

StepTimes::StepTimes(SimulatedStepsConfig config)
    : config_(std::move(config)),
      graph_(setup(config_, config_.graph_cost)),
      eager_(setup(config_, config_.eager_cost)) {
  if (config_.decode_piece_cost != nullptr) {
    decode_pieces_.emplace(setup(config_, config_.decode_piece_cost));
  }
  if (!config_.megakernel_batch_sizes.empty()) {
    StepSetup one_kernel = setup(config_, config_.graph_cost);
    one_kernel.megakernel = &config_.megakernel;
    one_kernel_.emplace(one_kernel);
  }
  if (config_.mixed_piece_cost != nullptr) {
    mixed_pieces_.emplace(setup(config_, config_.mixed_piece_cost));
  }
  if (!std::ranges::is_sorted(config_.graph_batch_sizes) ||
      (!config_.graph_batch_sizes.empty() && config_.graph_batch_sizes.front() < 1)) {
    throw std::invalid_argument("graph_batch_sizes must ascend and be at least 1");
  }
}

namespace {

// Of a step in pieces: its cost model's eager launch is the host's time of a layer's launches,
// which go on while the GPU runs the piece before.
DeviceTime at_least_host(DeviceTime time, const StepSetup& setup) {
  const double layers = static_cast<double>(setup.model.layers.size()) / setup.mesh.pp;
  time.duration = std::max(time.duration, setup.cost->options().host.eager_launch * layers);
  return time;
}

}  // namespace

StepTimes::Launched& StepTimes::launched(bool is_graph, bool has_prefill,
                                         std::int64_t rank_tokens) {
  if (is_graph) {
    const bool is_one_kernel = std::ranges::find(config_.megakernel_batch_sizes, rank_tokens) !=
                               config_.megakernel_batch_sizes.end();
    return is_one_kernel ? *one_kernel_ : graph_;
  }
  std::optional<Launched>& pieces = has_prefill ? mixed_pieces_ : decode_pieces_;
  return pieces && rank_tokens <= config_.max_piece_tokens ? *pieces : eager_;
}

namespace {

double exact_mean_context(const Batch& batch) {
  if (batch.num_decodes == 0) return 0;
  return static_cast<double>(batch.decode_context) / static_cast<double>(batch.num_decodes);
}

}  // namespace

StepTimes::View StepTimes::even_view(const Batch& batch) {
  const int dp = config_.mesh.dp;
  const std::optional<std::int64_t> padded = graph_rows(batch, dp, config_.graph_batch_sizes);
  const std::int64_t tokens = padded.value_or(num_tokens(batch));
  return {.shape = executed_shape(batch, config_.mesh, config_.graph_batch_sizes),
          .way = &launched(padded.has_value(), !batch.prefill.empty(), (tokens + dp - 1) / dp),
          .sequences = (num_sequences(batch) + dp - 1) / dp,
          .decode_context = exact_mean_context(batch),
          .has_prefill = !batch.prefill.empty()};
}

std::vector<StepTimes::View> StepTimes::rank_views(std::span<const Batch> ranks) {
  std::int64_t tokens = 0;
  std::int64_t most_tokens = 0;
  std::int64_t most_sequences = 0;
  bool has_prefill = false;
  for (const Batch& batch : ranks) {
    tokens += num_tokens(batch);
    most_tokens = std::max(most_tokens, num_tokens(batch));
    most_sequences = std::max(most_sequences, num_sequences(batch));
    has_prefill = has_prefill || !batch.prefill.empty();
  }
  // All ranks pad to the graph of the fullest, even parts to one of their own size.
  const auto& sizes = config_.graph_batch_sizes;
  const std::int64_t dp = config_.mesh.dp;
  const std::int64_t own_tokens = tokens;
  const auto size = std::ranges::lower_bound(sizes, most_tokens);
  const bool is_graph = !has_prefill && size != sizes.end();
  const std::int64_t padded = is_graph ? *size : 0;
  if (is_graph) {
    const bool is_balanced = config_.mesh.dp_rows == DpRows::kBalanced;
    const std::int64_t even = (std::max<std::int64_t>(tokens, 1) + dp - 1) / dp;
    tokens = (is_balanced ? *std::ranges::lower_bound(sizes, even) : padded) * dp;
  }
  Launched& way = launched(is_graph, has_prefill, is_graph ? padded : most_tokens);
  std::vector<View> views;
  views.reserve(ranks.size());
  for (const Batch& batch : ranks) {
    StepShape shape = rank_shape(batch, tokens, padded, most_sequences, config_.mesh);
    set_padding(shape, config_.mesh, own_tokens, dp * std::max(most_tokens, padded));
    views.push_back({.shape = shape,
                     .way = &way,
                     .sequences = num_sequences(batch),
                     .decode_context = std::max(exact_mean_context(batch), 1.0),
                     .has_prefill = has_prefill});
  }
  return views;
}

DeviceTime StepTimes::decode_time(const View& view, std::int64_t context) {
  const Decodes key{.num_decodes = view.shape.num_decodes,
                    .context = context,
                    .tokens = view.shape.tokens,
                    .rank_rows = view.shape.rank_rows,
                    .query = view.shape.decode_query,
                    .seqs = view.shape.seqs,
                    .padding = view.shape.padding};
  return remember(mutex_, decode_times_, key, [&] {
    StepShape shape = view.shape;
    shape.decode_context = std::max(context, shape.decode_query);
    Launched& way = *view.way;
    if (way.setup.megakernel != nullptr) return step_time(way.setup, shape);
    DeviceTime time =
        way.templates.apply() ? way.templates.time(shape) : step_time(way.setup, shape);
    if (decode_pieces_ && &way == &*decode_pieces_) time = at_least_host(time, way.setup);
    correct_device(config_, shape.num_decodes, time);
    return time;
  });
}

DeviceTime StepTimes::device_time(const Batch& batch) {
  const View view = even_view(batch);
  return step_time(view.way->setup, view.shape);
}

std::map<std::string, Seconds> StepTimes::deviations(const Batch& batch) {
  const View view = even_view(batch);
  return step_deviations(view.way->setup, view.shape);
}

DeviceTime StepTimes::even_mixed_time(const View& view) {
  Launched& way = *view.way;
  const bool is_pieces = mixed_pieces_ && &way == &*mixed_pieces_;
  DeviceTime time;
  if (way.templates.apply()) {
    time = way.templates.time(view.shape);
  } else {
    const StepShape key = rounded(view.shape);
    time = remember(mutex_, way.mixed_times, key, [&] { return step_time(way.setup, key); });
  }
  return is_pieces ? at_least_host(time, way.setup) : time;
}

StepTime StepTimes::step_of(const View& view, PowerBudget* budget, KnownToHost known,
                            std::vector<AppliedStepCorrection>* applied) {
  if (!view.has_prefill) {
    FastForward one = fast_forward_of(view, 1, nullptr, known, applied);
    return {.duration = one.first, .basis = one.basis, .energy = one.energy};
  }
  DeviceTime device = even_mixed_time(view);
  correct_device(config_, view.shape.num_decodes, device, applied);
  StepPrice price{.first = device.duration,
                  .basis = device.basis,
                  .limited = device.limited,
                  .arithmetic = device.arithmetic};
  correct_prefill(
      {.config = config_, .rank_sequences = view.sequences, .budget = budget, .known = known},
      price, applied);
  return {.duration = price.first,
          .basis = price.basis,
          .energy = within_limit(device.energy, price.first)};
}

// As the slowest rank sees it. What GPUs did before is taken to be the same for all.
StepTime StepTimes::step(std::span<const Batch> ranks, PowerBudget* budget, KnownToHost known) {
  if (ranks.size() == 1) return step_of(even_view(ranks.front()), budget, known);
  const std::vector<View> views = rank_views(ranks);
  std::vector<Seconds> times;
  times.reserve(views.size());
  Joules energy;
  for (const View& view : views) {
    std::optional<PowerBudget> left;
    if (budget != nullptr) left = *budget;
    const StepTime time = step_of(view, left ? &*left : nullptr, known);
    times.push_back(time.duration);
    energy += time.energy / static_cast<double>(views.size());
  }
  const auto slowest = std::ranges::max_element(times) - times.begin();
  StepTime step = step_of(views[static_cast<std::size_t>(slowest)], budget, known);
  step.energy = energy;
  step.ranks = std::move(times);
  return step;
}

std::vector<AppliedStepCorrection> StepTimes::explain(const Batch& batch, PowerBudget* budget,
                                                      KnownToHost known) {
  std::vector<AppliedStepCorrection> applied;
  const View view = even_view(batch);
  if (batch.prefill.empty()) {
    static_cast<void>(fast_forward_of(view, 1, budget, known, &applied));
  } else {
    static_cast<void>(step_of(view, budget, known, &applied));
  }
  return applied;
}

double StepTimes::arithmetic_share(const View& view) {
  const DeviceTime time = decode_time(view, grid_point(grid_index(view.decode_context)));
  return time.arithmetic / time.duration;
}

double StepTimes::arithmetic_share(std::span<const Batch> ranks) {
  if (power_limit() == nullptr) return 0;
  if (ranks.size() == 1) return arithmetic_share(even_view(ranks.front()));
  double most = 0;
  for (const View& view : rank_views(ranks)) most = std::max(most, arithmetic_share(view));
  return most;
}

StepTimes::Piece StepTimes::piece_at(const View& view) {
  const double context = view.decode_context;  // grows by 1 each step
  const std::int64_t index = grid_index(context);
  Piece piece{.low = decode_time(view, grid_point(index)),
              .high = decode_time(view, grid_point(index + 1)),
              .first_context = static_cast<double>(grid_point(index)),
              .last_context = static_cast<double>(grid_point(index + 1))};
  StepPrice& price = piece.price;
  price.slope =
      (piece.high.duration - piece.low.duration) / (piece.last_context - piece.first_context);
  price.first = piece.low.duration + price.slope * (context - piece.first_context);
  price.num_steps = static_cast<std::int64_t>(std::ceil(piece.last_context - context));
  return piece;
}

FastForward StepTimes::fast_forward_of(const View& view, std::int64_t max_steps,
                                       const PowerBudget* budget, KnownToHost known,
                                       std::vector<AppliedStepCorrection>* applied) {
  Piece piece = piece_at(view);
  StepPrice& price = piece.price;
  price.num_steps = std::clamp(price.num_steps, std::int64_t{1}, max_steps);
  std::optional<PowerBudget> left;
  if (budget != nullptr) left = *budget;
  const bool has_limit = left && power_limit() != nullptr;
  correct_decodes({.config = config_,
                   .rank_sequences = view.sequences,
                   .budget = left ? &*left : nullptr,
                   .known = known,
                   .arithmetic_share = has_limit ? arithmetic_share(view) : 0},
                  price, applied);
  FastForward fast{.num_steps = price.num_steps, .first = price.first, .slope = price.slope};
  const auto steps = static_cast<double>(fast.num_steps);
  // Linear in the context, so the steps of the fast-forward sum to as many of its middle.
  const double middle = (view.decode_context + (steps - 1) / 2 - piece.first_context) /
                        (piece.last_context - piece.first_context);
  const double longer = 1 + price.throttling + price.throttling_slope * (steps - 1) / 2;
  fast.basis = scaled(mix(piece.low.basis, piece.high.basis, middle), steps * longer);
  const Joules energy = piece.low.energy * (1 - middle) + piece.high.energy * middle;
  fast.energy = within_limit(energy * steps, fast_forward_duration(fast, fast.num_steps));
  return fast;
}

namespace {

// Steps until a rank whose time grows faster is the slower one; `least` at most.
std::int64_t steps_ahead(const FastForward& slowest, const FastForward& other, std::int64_t least) {
  if (other.slope <= slowest.slope) return least;
  const double steps = (slowest.first - other.first) / (other.slope - slowest.slope);
  return steps < static_cast<double>(least) ? static_cast<std::int64_t>(steps) + 1 : least;
}

}  // namespace

FastForward StepTimes::fast_forward(std::span<const Batch> ranks, std::int64_t max_steps,
                                    const PowerBudget* budget, KnownToHost known) {
  if (ranks.size() == 1) return fast_forward_of(even_view(ranks.front()), max_steps, budget, known);
  const std::vector<View> views = rank_views(ranks);
  std::vector<FastForward> times;
  times.reserve(views.size());
  for (const View& view : views) times.push_back(fast_forward_of(view, max_steps, budget, known));
  const auto is_faster = [](const FastForward& a, const FastForward& b) {
    return a.first != b.first ? a.first < b.first : a.slope < b.slope;
  };
  const auto slowest = std::ranges::max_element(times, is_faster);
  std::int64_t steps = slowest->num_steps;
  for (const FastForward& other : times) steps = steps_ahead(*slowest, other, steps);
  FastForward fast = fast_forward_of(views[static_cast<std::size_t>(slowest - times.begin())],
                                     std::max<std::int64_t>(steps, 1), budget, known);
  fast.energy = Joules(0);
  const auto taken = static_cast<double>(fast.num_steps);
  for (const FastForward& of : times) {
    fast.energy +=
        of.energy * (taken / static_cast<double>(of.num_steps)) / static_cast<double>(times.size());
    const Seconds own = fast_forward_duration(of, fast.num_steps);
    fast.ranks.push_back(std::min(own, fast_forward_duration(fast, fast.num_steps)));
  }
  return fast;
}

Joules StepTimes::within_limit(Joules energy, Seconds duration) const {
  const Device& device = config_.machine->device();
  if (!device.power || device.tdp <= device.power->waiting) return energy;
  return std::min(energy,
                  (device.tdp - device.power->waiting) * duration * num_ranks(config_.mesh));
}

SimulatedSteps::SimulatedSteps(StepTimes& times) : times_(&times) {
  if (times.power_limit() != nullptr) budget_.emplace(*times.power_limit());
}

void SimulatedSteps::spend() {
  if (!budget_ || now_ <= since_) return;
  const Seconds decoding = std::min(decoding_, now_ - since_);
  static_cast<void>(budget_->step(decoding, decoding * share_));
  budget_->rest(now_ - since_ - decoding);
  since_ = now_;
}

FastForward SimulatedSteps::fast_forward(std::span<const Batch> ranks, std::int64_t max_steps) {
  spend();
  KnownToHost known;
  if (times_->plans_attention()) {
    max_steps = 1;  // the next one has other keys
    known.attention = has_attended(ranks);
  }
  FastForward time = times_->fast_forward(ranks, max_steps, budget_ ? &*budget_ : nullptr, known);
  if (budget_) {
    decoding_ = fast_forward_duration(time, time.num_steps);
    share_ = times_->arithmetic_share(ranks);
  }
  return time;
}

bool SimulatedSteps::is_prepared(std::span<const Batch> ranks) {
  if (!times_->prepares()) return true;
  Rows rows{};
  for (const Batch& batch : ranks) {
    for (const PrefillChunk& chunk : batch.prefill) rows[0] += chunk.query;
    rows[1] += num_sampled(batch);
    rows[2] += batch.num_decodes;
  }
  if (rows[0] == 0) return true;
  const auto [entry, is_new] = prepared_.try_emplace(rows);
  entry->second = ++num_runs_;
  if (prepared_.size() > kMostPrepared) {
    prepared_.erase(
        std::ranges::min_element(prepared_, {}, [](const auto& known) { return known.second; }));
  }
  return !is_new;
}

bool SimulatedSteps::has_attended(std::span<const Batch> ranks) {
  if (!times_->plans_attention()) return true;
  const auto [queries, keys] = times_->attention_shape();
  const auto in_multiples = [](std::int64_t size, std::int64_t of) { return (size + of - 1) / of; };
  bool has = true;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const Batch& batch = ranks[rank];
    if (num_tokens(batch) == 0) continue;
    const bool is_new =
        attended_
            .insert({static_cast<std::int64_t>(rank), in_multiples(num_tokens(batch), queries),
                     in_multiples(num_keys(batch), keys)})
            .second;
    has = has && !is_new;
  }
  return has;
}

StepTime SimulatedSteps::run(std::span<const Batch> ranks) {
  const KnownToHost known{.rows = is_prepared(ranks), .attention = has_attended(ranks)};
  spend();
  StepTime time = times_->step(ranks, budget_ ? &*budget_ : nullptr, known);
  since_ = now_ + time.duration;
  decoding_ = Seconds(0);
  return time;
}

}  // namespace orrery
