#pragma once

// Device time of one engine step without lowering its plan. Plans of two steps differ in the dims
// of few ops, so a plan is lowered once for a number of tokens and kept as a template:
//
//   ops whose dims follow from the number of tokens       their times are kept
// + ops of attention blocks whose dims do not             asked of the cost model for each shape
// + LM head and sampling, by the number of sampled rows   kept per number
//
// and the closed form of the chain of all of them is the time of the step. Which ops are of the
// second kind is found by asking the blocks for the dims of another shape of as many tokens, so no
// kernel is known here by its name.
//
// Token counts of steps with prefill are interpolated in cells of at most 1/64, which do not reach
// over a multiple of 128, where GEMMs take one more row of tiles and times jump; shapes of
// attention are rounded to 8 significant bits (0.2 %), sampled rows to 6, and with data-parallel
// ranks the tokens of the whole step to 7. Steps are within 1 % of their whole plan, those without
// prefill within 1e-9 (tests/scenario/step_law_test.cpp). The value for a shape does not depend on
// who asks first. Thread safe.

#include <compare>
#include <cstdint>
#include <map>
#include <shared_mutex>
#include <string>
#include <vector>

#include "sim/model/layer_runs.h"
#include "sim/parallel/rank_rows.h"
#include "sim/serve/step_time.h"

namespace orrery {

class StepTemplates {
 public:
  explicit StepTemplates(StepSetup setup);

  // Whether plans of the model on the mesh are one chain whose time is the same at all levels: then
  // `time` may be used, at every level. Not where stages of a pipeline or streams overlap, or where
  // collectives at once share links.
  [[nodiscard]] bool apply() const { return apply_; }

  // Of a shape as executed_shape gives it.
  DeviceTime time(const StepShape& shape);

 private:
  // An op that is asked for with each shape. Dim i of `op` is what the ranks have of entry
  // `source[i]` of AttentionDims; -1: as in `op`.
  struct Shaped {
    KernelOp op;
    std::vector<std::int32_t> source;
    std::int32_t step = 0;  // of the chain
    double count = 0;
  };
  // LM head and sampling, in order.
  struct Tail {
    std::vector<ChainStep> steps;
    BasisSeconds basis;
  };
  struct Template {
    Chain chain;  // all but the tail
    std::vector<Shaped> shaped;
    BasisSeconds basis;  // of the ops that are kept
    Tail tail;
  };
  // What a template is of. Plans of one structure have the same ops.
  struct Key {
    std::int64_t tokens = 0;  // of the whole step
    std::int64_t rows = 0;    // of the data-parallel rank
    bool is_uneven = false;   // `rows` are not what `tokens` say
    bool has_prefill = false;
    bool has_decodes = false;
    bool has_cached = false;         // before a chunk
    bool has_decode_cached = false;  // more than the new token
    std::int64_t decode_query = 1;   // of decodes
    std::int64_t padding = 0;        // parts of kPaddingParts of the tokens, of experts alone
    auto operator<=>(const Key&) const = default;
  };

  [[nodiscard]] bool is_uneven(const StepShape& shape) const;
  [[nodiscard]] std::int64_t padding_parts(const StepShape& shape) const;
  [[nodiscard]] Key key_of(const StepShape& shape, std::int64_t tokens, std::int64_t rows) const;
  // Shapes of a key: what depends on more than the key is other in each. Short ones are below the
  // tokens that sparse attention picks.
  enum class Variant : std::uint8_t { kBase, kLong, kShort };
  [[nodiscard]] StepShape shape_of(const Key& key, Variant variant) const;
  // What the attention blocks of a key say, and which sizes other steps of the key have otherwise.
  struct Asked {
    AttentionDims dims;
    std::vector<bool> is_varied;
  };
  [[nodiscard]] Asked ask(const Key& key) const;
  [[nodiscard]] bool is_level_without_effect() const;
  const Template& find(const Key& key);
  [[nodiscard]] Template make(const Key& key) const;
  [[nodiscard]] std::vector<Shaped> find_shaped(const Plan& plan, const Key& key) const;
  const Tail& tail(std::int64_t num_sampled);
  // Templates between whose rows, and tokens where ranks are uneven, a shape lies: their mix.
  struct Mix {
    Chain chain;
    BasisSeconds basis;
  };
  [[nodiscard]] Mix mixed(const Template& base, const Template& last, double share) const;
  // Of a shape with other rows on other ranks.
  Mix uneven(const StepShape& shape, const RankRows& rank);
  // Asks for the shaped ops; their basis is added to `basis`.
  void price_shaped(const Template& base, const StepShape& shape, Chain& chain,
                    BasisSeconds& basis) const;

  StepSetup setup_;
  std::vector<LayerRun> runs_;
  bool apply_ = false;
  // Whether blocks do otherwise where tokens are cached before a chunk; else one template is
  // enough.
  bool is_cached_apart_ = true;
  std::shared_mutex mutex_;
  std::map<Key, Template> templates_;
  std::map<std::int64_t, Tail> tails_;
};

// Token counts first ... last between which times are interpolated; one count where it is small.
struct TokenCell {
  std::int64_t first = 0;
  std::int64_t last = 0;
};
TokenCell token_cell(std::int64_t tokens);

// `value` rounded to `bits` significant bits; small values are kept.
std::int64_t round_bits(std::int64_t value, int bits);

}  // namespace orrery
