#include "sim/serve/step_templates.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "sim/serve/fast_forward.h"
#include "sim/serve/step_corrections.h"

namespace orrery {
namespace {

constexpr int kTokenBits = 7;
constexpr int kAttentionBits = 8;  // of attention
constexpr int kSampleBits = 6;     // of LM head and sampling
// Rows of the smallest GEMM tile worth following: times jump at its multiples, so that no cell of
// token counts may reach over one.
constexpr std::int64_t kTileTokens = 128;
constexpr std::int64_t kPaddingParts = 32;
constexpr std::int64_t kMany = 4096;  // tokens of a rank in a large step

bool has_dim(const KernelOp& op, std::string_view name) {
  return std::ranges::find(op.dims, name, &Dim::name) != op.dims.end();
}

// Attention of one new token of each sequence.
bool is_decode_attention(const KernelOp& op) {
  return has_dim(op, "batch") && has_dim(op, "context") && !has_dim(op, "query");
}

// Whether an op after the layers works on one row per sampled token: all that it writes has the
// axis `seqs`.
bool is_sampled(const Plan& plan, OpId id) {
  const Op& op = plan.ops()[static_cast<std::size_t>(id)];
  const bool is_after_layers = plan.repeats().empty() || id >= plan.repeats().back().last;
  return is_after_layers && !op.writes.empty() &&
         std::ranges::all_of(op.writes, [&](TensorId written) {
           const auto& axes = plan.tensors()[static_cast<std::size_t>(written)].axes;
           return std::ranges::find(axes, axis::kSeqs, &Axis::name) != axes.end();
         });
}

// The chain without the steps of `tail`, which are moved there.
void split_tail(const Plan& plan, const PricedPlan& priced, Chain& chain,
                std::vector<ChainStep>& tail, BasisSeconds& tail_basis) {
  std::vector<ChainStep> kept;
  for (ChainSection& section : chain.sections) {
    const auto first = static_cast<std::int32_t>(kept.size());
    for (std::int32_t i = section.first; i < section.last; ++i) {
      const ChainStep& step = chain.steps[static_cast<std::size_t>(i)];
      if (!is_sampled(plan, step.op)) {
        kept.push_back(step);
        continue;
      }
      tail.push_back(step);
      of_basis(tail_basis, priced.times[static_cast<std::size_t>(step.op)].basis) += step.time;
    }
    section.first = first;
    section.last = static_cast<std::int32_t>(kept.size());
  }
  chain.steps = std::move(kept);
}

std::int64_t ways_of(const Mesh& mesh) {
  return static_cast<std::int64_t>(mesh.dp) * mesh.num_micro_batches;
}

// Sections after their steps have got other times.
void sum_sections(Chain& chain) {
  for (ChainSection& section : chain.sections) {
    section.time = Seconds(0);
    section.has_gpu_only = true;
    for (std::int32_t i = section.first; i < section.last; ++i) {
      const ChainStep& step = chain.steps[static_cast<std::size_t>(i)];
      section.time += step.time;
      section.has_gpu_only = section.has_gpu_only && step.kind == ChainStep::Kind::kGpu;
    }
  }
}

// Sum of a member over the steps of a chain, repeats counted.
template <typename Amount>
Amount total(const Chain& chain, Amount ChainStep::* member) {
  Amount sum;
  for (const ChainSection& section : chain.sections) {
    for (std::int32_t i = section.first; i < section.last; ++i) {
      sum += chain.steps[static_cast<std::size_t>(i)].*member * static_cast<double>(section.count);
    }
  }
  return sum;
}

// Steps of `chain` moved by `share` of the way to those of `other`.
void blend(Chain& chain, const Chain& other, double share) {
  for (std::size_t i = 0; i < chain.steps.size(); ++i) {
    ChainStep& step = chain.steps[i];
    const ChainStep& towards = other.steps[i];
    for (Seconds ChainStep::* time :
         {&ChainStep::time, &ChainStep::limited, &ChainStep::arithmetic}) {
      step.*time = (step.*time) * (1 - share) + (towards.*time) * share;
    }
    step.energy = step.energy * (1 - share) + towards.energy * share;
  }
}

// Where between the ends of its cell a number of tokens lies, in [0, 1].
double share_of(const TokenCell& cell, std::int64_t tokens) {
  if (cell.first == cell.last) return 0;
  return static_cast<double>(tokens - cell.first) / static_cast<double>(cell.last - cell.first);
}

// Whether ranks have even parts of the step's tokens, whatever rows their own sequences have.
bool has_even_rows(const Mesh& mesh) { return mesh.dp_rows == DpRows::kBalanced; }

// Tokens of all ranks: eight cells an octave, whatever a tile takes, since only experts see them.
TokenCell coarse_cell(std::int64_t tokens) {
  constexpr int kBits = 4;
  const int width = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(tokens)));
  if (width <= kBits) return {.first = tokens, .last = tokens};
  const std::int64_t step = std::int64_t{1} << (width - kBits);
  const std::int64_t first = tokens / step * step;
  return {.first = first, .last = first == tokens ? first : first + step};
}

// Tokens of all ranks, of which even parts are rows as those of a rank are.
TokenCell step_cell(std::int64_t tokens, const Mesh& mesh) {
  if (!has_even_rows(mesh)) return coarse_cell(tokens);
  const std::int64_t ways = ways_of(mesh);
  const TokenCell even = token_cell((tokens + ways - 1) / ways);
  return {.first = even.first * ways, .last = even.last * ways};
}

}  // namespace

std::int64_t round_bits(std::int64_t value, int bits) {
  const int width = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(value)));
  if (width <= bits) return value;
  const std::int64_t step = std::int64_t{1} << (width - bits);
  // Not value + step / 2, which may be too large.
  return value / step * step + (value % step >= step - step / 2 ? step : 0);
}

TokenCell token_cell(std::int64_t tokens) {
  const int width = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(tokens - 1)));
  if (width <= kTokenBits) return {.first = tokens, .last = tokens};
  const std::int64_t step = std::min(std::int64_t{1} << (width - kTokenBits), kTileTokens);
  const std::int64_t below = (tokens - 1) / step * step;
  return {.first = below + 1, .last = below + step};
}

StepTemplates::StepTemplates(StepSetup setup)
    : setup_(std::move(setup)), runs_(layer_runs(setup_.model.layers)) {
  const Mesh& mesh = setup_.mesh;
  const bool varies = mesh.two_batch_overlap || mesh.moe_chunks > 1;  // ops with the rows
  if (mesh.cp > 1 || varies || mesh.ffn_instances > 0) return;
  const std::int64_t ways = ways_of(setup_.mesh);
  const auto is_one_chain = [&](const Key& key) {
    const Plan plan =
        step_plan(setup_.model, shape_of(key, Variant::kBase), setup_.lowering, setup_.mesh);
    const PricedPlan priced = price(plan, *setup_.cost);
    return priced.is_chain && priced.chains.size() == 1;
  };
  // Of many tokens, too: skewed experts give ranks other numbers of rows where there are enough.
  apply_ =
      is_one_chain({.tokens = ways, .rows = 1, .has_decodes = true}) &&
      is_one_chain({.tokens = 2 * ways, .rows = 2, .has_prefill = true, .has_decodes = true}) &&
      is_one_chain(
          {.tokens = kMany * ways, .rows = kMany, .has_prefill = true, .has_decodes = true}) &&
      is_level_without_effect();
  if (!apply_) return;
  // Prompts alone may be another structure after cached tokens although beside decodes they are
  // not.
  is_cached_apart_ = std::ranges::any_of(std::array{false, true}, [&](bool has_decodes) {
    Key key{.tokens = 2 * ways, .rows = 2, .has_prefill = true, .has_decodes = has_decodes};
    const Asked fresh = ask(key);
    key.has_cached = true;
    const Asked cached = ask(key);
    return fresh.dims.ops != cached.dims.ops || fresh.is_varied != cached.is_varied;
  });
}

// A chain takes as long at every level unless its collectives share links, which the levels of
// SimGrid alone see.
bool StepTemplates::is_level_without_effect() const {
  if (setup_.level == StepLevel::kClosedForm || setup_.level == StepLevel::kHeap) return true;
  const std::int64_t ways = ways_of(setup_.mesh);
  const StepShape probe =
      shape_of({.tokens = kMany * ways, .rows = kMany, .has_prefill = true, .has_decodes = true},
               Variant::kBase);
  StepSetup closed = setup_;
  closed.level = StepLevel::kClosedForm;
  const double expected = step_time(closed, probe).duration.value();
  return std::abs(step_time(setup_, probe).duration.value() - expected) <= 1e-9 * expected;
}

bool StepTemplates::is_uneven(const StepShape& shape) const {
  if (shape.rank_rows > 0 || !has_even_rows(setup_.mesh)) return shape.rank_rows > 0;
  const RankRows rank(setup_.mesh, shape);
  return shape.prefill_tokens > 0 || rank.rows * rank.ways != rank.tokens;
}

StepTemplates::Key StepTemplates::key_of(const StepShape& shape, std::int64_t tokens,
                                         std::int64_t rows) const {
  return {.tokens = tokens,
          .rows = rows,
          .is_uneven = is_uneven(shape),
          .has_prefill = shape.prefill_tokens > 0,
          .has_decodes = shape.num_decodes > 0,
          .has_cached = is_cached_apart_ && shape.prefill_cached > 0,
          .has_decode_cached = shape.decode_context > shape.decode_query,
          .decode_query = shape.num_decodes > 0 ? shape.decode_query : 1,
          .padding = padding_parts(shape)};
}

std::int64_t StepTemplates::padding_parts(const StepShape& shape) const {
  const bool takes_rows =
      setup_.model.num_experts > 0 && setup_.lowering.moe_design != MoeDesign::kFused;
  if (!takes_rows || shape.tokens == 0) return 0;
  return std::llround(static_cast<double>(kPaddingParts * shape.padding) /
                      static_cast<double>(shape.tokens));
}

StepShape StepTemplates::shape_of(const Key& key, Variant variant) const {
  const std::int64_t context = variant == Variant::kShort ? 3 : 1024;
  const std::int64_t more = variant == Variant::kLong ? 1 : 0;
  const std::int64_t ways = ways_of(setup_.mesh);
  const std::int64_t query = key.decode_query;
  StepShape shape{.tokens = key.tokens,
                  .rank_rows = key.is_uneven ? key.rows : 0,
                  .decode_query = query,
                  .padding = std::min(key.tokens * key.padding / kPaddingParts, key.tokens - 1)};
  if (key.has_decodes) {
    shape.decode_context = key.has_decode_cached ? query - 1 + context * (1 + more) : query;
  }
  if (!key.has_prefill) {
    const std::int64_t rows = key.is_uneven ? key.rows * ways : key.tokens;
    shape.seqs = rows;
    shape.decode_rows = rows;
    shape.num_decodes = (rows + query - 1) / query + more * ways;
    return shape;
  }
  const std::int64_t rank_decodes = key.has_decodes ? 1 + more : 0;
  shape.num_decodes = rank_decodes * ways;
  const std::int64_t rank_decode_rows = rank_decodes * query;
  shape.decode_rows = rank_decode_rows * ways;
  shape.seqs = shape.decode_rows;
  shape.prefill_batch = (1 + more) * ways;
  shape.prefill_query = variant == Variant::kShort
                            ? 1
                            : std::max<std::int64_t>(key.rows - rank_decode_rows, 1) + more;
  const std::int64_t of_prompts = key.is_uneven
                                      ? (key.rows - rank_decode_rows) * key.tokens / key.rows
                                      : key.tokens - shape.decode_rows;
  shape.prefill_tokens = std::max<std::int64_t>(of_prompts, 1);
  shape.prefill_cached = key.has_cached ? context * ways * (1 + more) : 0;
  shape.prefill_context = key.has_cached ? context * (1 + more) : more;
  return shape;
}

StepTemplates::Asked StepTemplates::ask(const Key& key) const {
  Asked asked;
  auto& [dims, is_varied] = asked;
  attention_dims(setup_.model, runs_, shape_of(key, Variant::kBase), setup_.lowering, true, dims);
  is_varied.resize(dims.sizes.size());
  for (const Variant variant : {Variant::kLong, Variant::kShort}) {
    AttentionDims other;
    attention_dims(setup_.model, runs_, shape_of(key, variant), setup_.lowering, false, other);
    if (other.sizes.size() != dims.sizes.size()) {
      throw std::logic_error("steps of one structure have different attention");
    }
    for (std::size_t i = 0; i < is_varied.size(); ++i) {
      is_varied[i] = is_varied[i] || dims.sizes[i] != other.sizes[i];
    }
  }
  return asked;
}

// Ops of attention blocks whose dims other steps of the key have otherwise.
std::vector<StepTemplates::Shaped> StepTemplates::find_shaped(const Plan& plan,
                                                              const Key& key) const {
  const auto& [dims, is_varied] = ask(key);
  std::map<std::string_view, OpId> by_name;
  for (OpId id = 0; id < static_cast<OpId>(plan.ops().size()); ++id) {
    by_name.emplace(plan.ops()[static_cast<std::size_t>(id)].name, id);
  }
  const RankRows rows(setup_.mesh, shape_of(key, Variant::kBase));
  std::vector<Shaped> shaped;
  std::size_t first = 0;
  for (const std::string& name : dims.ops) {
    const OpId id = by_name.at(name);
    Shaped found{.op = std::get<KernelOp>(plan.ops()[static_cast<std::size_t>(id)].body),
                 .step = id,
                 .count = static_cast<double>(plan.multiplicity(id))};
    bool is_changed = false;
    for (std::size_t i = 0; i < found.op.dims.size(); ++i) {
      const std::size_t at = first + i;
      // A size that tensor parallelism has split is no number of rows.
      const bool is_of_rows =
          found.op.dims[i].size == rows.of(found.op.dims[i].axis, dims.sizes[at]);
      found.source.push_back(is_of_rows ? static_cast<std::int32_t>(at) : -1);
      is_changed = is_changed || is_varied[at];
    }
    first += found.op.dims.size();
    if (is_changed) shaped.push_back(std::move(found));
  }
  return shaped;
}

StepTemplates::Template StepTemplates::make(const Key& key) const {
  const Plan plan =
      step_plan(setup_.model, shape_of(key, Variant::kBase), setup_.lowering, setup_.mesh);
  const PricedPlan priced = price(plan, *setup_.cost);
  if (!priced.is_chain || priced.chains.size() != 1) {
    throw std::logic_error("a step is no single chain: " + priced.why_not_chain);
  }
  Template result{.chain = priced.chains.front(), .shaped = find_shaped(plan, key)};
  split_tail(plan, priced, result.chain, result.tail.steps, result.tail.basis);
  for (std::size_t i = 0; i < result.chain.steps.size(); ++i) {
    const ChainStep& step = result.chain.steps[i];
    const auto own = std::ranges::find(result.shaped, step.op, &Shaped::step);
    if (own == result.shaped.end()) {
      of_basis(result.basis, priced.times[static_cast<std::size_t>(step.op)].basis) +=
          step.time * static_cast<double>(plan.multiplicity(step.op));
    }
  }
  // Until here their steps are the plan's ops.
  for (Shaped& shaped : result.shaped) {
    shaped.step = static_cast<std::int32_t>(
        std::ranges::find(result.chain.steps, shaped.step, &ChainStep::op) -
        result.chain.steps.begin());
  }
  return result;
}

const StepTemplates::Template& StepTemplates::find(const Key& key) {
  {
    const std::shared_lock lock(mutex_);
    const auto found = templates_.find(key);
    if (found != templates_.end()) return found->second;
  }
  Template made = make(key);
  const std::unique_lock lock(mutex_);
  return templates_.try_emplace(key, std::move(made)).first->second;
}

const StepTemplates::Tail& StepTemplates::tail(std::int64_t num_sampled) {
  {
    const std::shared_lock lock(mutex_);
    const auto found = tails_.find(num_sampled);
    if (found != tails_.end()) return found->second;
  }
  const std::int64_t ways = ways_of(setup_.mesh);
  Tail made = make({.tokens = num_sampled,
                    .rows = (num_sampled + ways - 1) / ways,
                    .has_decodes = true,
                    .has_decode_cached = true})
                  .tail;
  const std::unique_lock lock(mutex_);
  return tails_.try_emplace(num_sampled, std::move(made)).first->second;
}

void StepTemplates::price_shaped(const Template& base, const StepShape& shape, Chain& chain,
                                 BasisSeconds& basis) const {
  AttentionDims dims;
  attention_dims(setup_.model, runs_, shape, setup_.lowering, false, dims);
  const RankRows rows(setup_.mesh, shape);
  for (const Shaped& shaped : base.shaped) {
    KernelOp op = shaped.op;
    for (std::size_t i = 0; i < op.dims.size(); ++i) {
      if (shaped.source[i] < 0) continue;
      op.dims[i].size =
          rows.of(op.dims[i].axis, dims.sizes[static_cast<std::size_t>(shaped.source[i])]);
    }
    const Estimate estimate = setup_.has_uneven_decodes && is_decode_attention(op)
                                  ? between_powers_of_two(*setup_.cost, std::move(op))
                                  : setup_.cost->kernel(op);
    of_basis(basis, estimate.basis) += estimate.time * shaped.count;
    ChainStep& step = chain.steps[static_cast<std::size_t>(shaped.step)];
    step.time = estimate.time;
    step.limited = estimate.limited;
    step.arithmetic = estimate.arithmetic;
    step.energy = estimate.energy;
  }
}

StepTemplates::Mix StepTemplates::mixed(const Template& base, const Template& last,
                                        double share) const {
  Mix mix{.chain = base.chain, .basis = orrery::mix(base.basis, last.basis, share)};
  if (share > 0) blend(mix.chain, last.chain, share);
  return mix;
}

// Experts take in the tokens of all ranks, the rest of a layer the rows of one: both are
// interpolated.
StepTemplates::Mix StepTemplates::uneven(const StepShape& shape, const RankRows& rank) {
  const TokenCell rows = token_cell(rank.rows);
  const TokenCell tokens = step_cell(shape.tokens, setup_.mesh);
  const auto at = [&](std::int64_t step_tokens) {
    const auto key = [&](std::int64_t rank_rows) {
      return key_of(shape, std::max(step_tokens, rank_rows), rank_rows);
    };
    return mixed(find(key(rows.first)), find(key(rows.last)), share_of(rows, rank.rows));
  };
  Mix low = at(tokens.first);
  const double share = share_of(tokens, std::max(shape.tokens, tokens.first));
  if (share == 0) return low;
  const Mix high = at(tokens.last);
  blend(low.chain, high.chain, share);
  low.basis = orrery::mix(low.basis, high.basis, share);
  return low;
}

DeviceTime StepTemplates::time(const StepShape& exact) {
  const bool has_prefill = exact.prefill_tokens > 0;
  const bool is_uneven = this->is_uneven(exact);
  const RankRows rank(setup_.mesh, exact);
  // Decode batches have captured sizes, few enough to keep each.
  const TokenCell cell = has_prefill || is_uneven
                             ? token_cell(rank.rows)
                             : TokenCell{.first = rank.rows, .last = rank.rows};
  StepShape shape = exact;
  const auto key = [&](std::int64_t rows) {
    if (is_uneven)
      return key_of(shape, std::max(step_cell(shape.tokens, setup_.mesh).first, rows), rows);
    if (!has_prefill) return key_of(shape, shape.tokens, rows);
    const std::int64_t tokens = round_bits(shape.tokens, kTokenBits);
    return key_of(shape, std::clamp(tokens, rows, rows * rank.ways), rows);
  };
  const Template& base = find(key(cell.first));
  auto [chain, basis] = is_uneven ? uneven(shape, rank)
                                  : mixed(base, find(key(cell.last)), share_of(cell, rank.rows));
  if (has_prefill) {
    shape.prefill_query = round_bits(shape.prefill_query, kAttentionBits);
    shape.prefill_context = round_bits(shape.prefill_context, kAttentionBits);
    shape.decode_context = round_bits(shape.decode_context, kAttentionBits);
  }
  DeviceTime result{.basis = basis};
  price_shaped(base, shape, chain, result.basis);
  if (shape.seqs > 0) {
    const bool is_kept = !has_prefill && !is_uneven && shape.seqs == shape.tokens;
    const Tail& end = is_kept ? base.tail : tail(round_bits(shape.seqs, kSampleBits));
    chain.steps.insert(chain.steps.end(), end.steps.begin(), end.steps.end());
    chain.sections.back().last = static_cast<std::int32_t>(chain.steps.size());
    result.basis = sum(result.basis, end.basis);
  }
  sum_sections(chain);
  result.duration = closed_form(chain, *setup_.cost);
  result.limited = result.duration;
  result.energy = total(chain, &ChainStep::energy) * chain.num_ranks;
  if (setup_.cost->options().power.acts()) {
    result.arithmetic = total(chain, &ChainStep::arithmetic);
    for (ChainStep& step : chain.steps) step.time = step.limited;
    sum_sections(chain);
    result.limited = closed_form(chain, *setup_.cost);
  }
  return result;
}

}  // namespace orrery
