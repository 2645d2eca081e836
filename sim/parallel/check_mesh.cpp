#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>

#include "sim/model/layer_runs.h"
#include "sim/parallel/parallel.h"
#include "sim/parallel/rewrite.h"

namespace orrery {
namespace {

// Larger meshes than any machine here (100,000 GPUs) are typing errors; products stay in 64 bits.
constexpr std::int64_t kMaxWays = 1 << 20;

class MeshCheck {
 public:
  MeshCheck(const ModelConfig& model, const Mesh& mesh)
      : model_(model), mesh_(mesh), weights_tp_(weights_mesh(mesh).tp) {}

  void run() const {
    check_sizes();
    check_ffn_instances();
    check_context();
    check_dp_rows();
    check_shared_expert();
    check_gather();
    check_output_projection();
    check_lm_head();
    check_split_all_reduce();
    check_two_batch_overlap();
    check_tensor();
    check_experts();
    check_pipeline();
  }

 private:
  [[noreturn]] void fail(const std::string& message) const {
    throw std::invalid_argument("model \"" + model_.name + "\": " + message);
  }

  // `is_legal` for values from 1 to `most`: the ones next to `found`.
  static std::string nearest_legal(std::string_view name, std::int64_t found, std::int64_t most,
                                   const std::function<bool(std::int64_t)>& is_legal) {
    std::string text = "; nearest legal " + std::string(name) + ": ";
    std::int64_t below = std::min(found - 1, most);
    while (below > 0 && !is_legal(below)) --below;
    std::int64_t above = found + 1;
    while (above <= most && !is_legal(above)) ++above;
    const bool has_below = below > 0;
    const bool has_above = above <= most;
    if (has_below) text += std::to_string(below);
    if (has_below && has_above) text += " or ";
    if (has_above) text += std::to_string(above);
    return has_below || has_above ? text : "";
  }

  void check_sizes() const {
    const struct {
      std::string_view name;
      int size;
    } sizes[] = {{"dp", mesh_.dp},        {"tp", mesh_.tp},
                 {"cp", mesh_.cp},        {"ep", mesh_.ep},
                 {"pp", mesh_.pp},        {"num_micro_batches", mesh_.num_micro_batches},
                 {"ffn_tp", mesh_.ffn_tp}};
    for (const auto& entry : sizes) {
      if (entry.size >= 1 && entry.size <= kMaxWays) continue;
      fail(std::string(entry.name) + " is " + std::to_string(entry.size) + ", expected 1 to " +
           std::to_string(kMaxWays));
    }
    if (mesh_.ffn_instances < 0 || mesh_.ffn_instances > kMaxWays) {
      fail("ffn_instances is " + std::to_string(mesh_.ffn_instances) + ", expected 0 to " +
           std::to_string(kMaxWays));
    }
    const double total = static_cast<double>(mesh_.dp) * mesh_.tp * mesh_.cp * mesh_.pp +
                         static_cast<double>(mesh_.ffn_instances) * mesh_.ffn_tp;
    if (total > static_cast<double>(kMaxWays)) {
      fail("dp * tp * cp * pp is more than " + std::to_string(kMaxWays) + " ranks");
    }
    if (mesh_.sp && mesh_.tp == 1) {
      fail(
          "sp is on with tp 1, expected tp >= 2: sequence parallelism splits tokens over tp ranks");
    }
  }

  void check_context() const {
    const bool is_split = mesh_.cp_weights == CpWeights::kSplit;
    const bool is_ring = mesh_.cp_prefill == CpPrefill::kRing;
    if (mesh_.cp_decodes == CpDecodes::kDealt) check_dealt();
    if (mesh_.cp == 1) {
      if (!is_split) fail("cp_weights is replicated with cp 1, expected split, or cp >= 2");
      if (is_ring) fail("cp_prefill is ring with cp 1, expected all_gather, or cp >= 2");
      return;
    }
    check_attends_to_all();
    if (mesh_.sp) fail("sp is on with cp, whose ranks split tokens otherwise; expected sp false");
    if (mesh_.o_proj != OProjection::kSplit) {
      fail("o_proj is " + std::string(kOProjectionNames[static_cast<std::size_t>(mesh_.o_proj)]) +
           " with cp, whose merged heads lie over tp * cp; expected split");
    }
    if (is_ring && mesh_.cp % 2 != 0) {
      fail("cp_prefill is ring with cp " + std::to_string(mesh_.cp) +
           ", whose ranks do not pair up" +
           nearest_legal("cp", mesh_.cp, kMaxWays, [](auto value) { return value % 2 == 0; }) +
           "; or all_gather");
    }
    if (is_ring && model_.kv_lora_rank > 0) {
      fail(
          "cp_prefill is ring, but the model caches latents, which are gathered and expanded on "
          "each rank; expected all_gather");
    }
    if (!is_split) check_replicated();
    const auto is_legal = [&](std::int64_t value) { return is_legal_tp_of_weights(value); };
    if (!is_split || is_legal(mesh_.cp)) return;
    fail("cp " + std::to_string(mesh_.cp) + " with tp " + std::to_string(mesh_.tp) + " is " +
         std::to_string(weights_tp_) +
         " ways for the weights behind attention, which do not divide " +
         std::to_string(model_.num_attention_heads) + " heads and the columns of each FFN" +
         nearest_legal("cp", mesh_.cp, model_.num_attention_heads, is_legal) +
         "; or cp_weights replicated");
  }
  // FFNs on ranks of their own, which tp and ep of FFNs are over.
  void check_ffn_instances() const {
    const bool is_pipelined = mesh_.ffn_schedule == FfnSchedule::kPipelined;
    if (mesh_.ffn_instances == 0) {
      if (mesh_.ffn_tp > 1) {
        fail("ffn_tp is " + std::to_string(mesh_.ffn_tp) +
             " without ffn_instances, so that attention has no partner; expected ffn_tp 1, or "
             "nearest legal ffn_instances: 1");
      }
      if (!is_pipelined) {
        fail(
            "ffn_schedule is lock without ffn_instances; expected pipelined, or nearest legal "
            "ffn_instances: 1");
      }
      return;
    }
    const auto alone = [&](bool is_on, const std::string& found, const std::string& expected) {
      if (!is_on) return;
      fail(found + " with ffn_instances " + std::to_string(mesh_.ffn_instances) +
           ", which is not simulated; expected " + expected + ", or ffn_instances 0");
    };
    alone(mesh_.pp > 1, "pp is " + std::to_string(mesh_.pp), "pp 1");
    alone(mesh_.cp > 1, "cp is " + std::to_string(mesh_.cp), "cp 1");
    alone(mesh_.sp, "sp is on", "sp false");
    alone(mesh_.two_batch_overlap, "two_batch_overlap is on", "two_batch_overlap false");
    alone(mesh_.split_all_reduce, "split_all_reduce is on", "split_all_reduce false");
    alone(mesh_.o_proj == OProjection::kSharded, "o_proj is sharded", "split");
    alone(mesh_.lm_head == LmHead::kJoined, "lm_head is joined", "split");
    alone(has_whole_shared_expert(), "shared_expert is replicated", "split");
    alone(model_.has_shared_expert_gate, "the model's shared expert has a gate",
          "a model without one");
    check_ffn_columns();
  }
  // Columns of dense FFNs and shared experts over all FFN ranks.
  void check_ffn_columns() const {
    const auto is_legal_count = [&](std::int64_t instances, std::int64_t tp) {
      return std::ranges::all_of(
          ffn_columns(), [&](std::int64_t columns) { return columns % (instances * tp) == 0; });
    };
    const std::int64_t instances = mesh_.ffn_instances;
    const std::int64_t tp = mesh_.ffn_tp;
    for (const std::int64_t columns : ffn_columns()) {
      if (columns % (instances * tp) == 0) continue;
      fail("ffn_instances " + std::to_string(instances) + " of ffn_tp " + std::to_string(tp) +
           " do not divide the " + std::to_string(columns) +
           " columns of intermediate_size (dense layers or shared experts)" +
           nearest_legal("ffn_instances", instances, columns,
                         [&](auto value) { return is_legal_count(value, tp); }) +
           nearest_legal("ffn_tp", tp, columns,
                         [&](auto value) { return is_legal_count(instances, value); }));
    }
  }

  // What cp splits is the context that a token sees.
  void check_attends_to_all() const {
    const auto refuse = [&](const std::string& what) {
      fail("cp is " + std::to_string(mesh_.cp) + ", but " + what + "; nearest legal cp: 1");
    };
    for (const LayerConfig& layer : model_.layers) {
      if (layer.sliding_window > 0) {
        refuse("layers attend to a sliding window of " + std::to_string(layer.sliding_window) +
               " tokens, which lie on few ranks");
      }
      if (layer.state_bytes > 0) refuse("layers keep states, which have no context to split");
    }
    if (model_.index_topk > 0) refuse("attention picks its tokens (index_topk)");
    if (model_.attn_output_gate) refuse("attention's output has gates (attn_output_gate)");
  }
  // Ranks of cp are those that data-parallel ranks would be.
  void check_dealt() const {
    const auto alone = [&](std::string_view name, int found) {
      if (found == 1) return;
      fail("cp_decodes is dealt with " + std::string(name) + " " + std::to_string(found) +
           ", which is not simulated; expected " + std::string(name) + " 1, or cp_decodes all");
    };
    if (mesh_.cp == 1) {
      fail("cp_decodes is dealt with cp 1, expected all, or nearest legal cp: 2");
    }
    if (mesh_.cp_weights != CpWeights::kReplicated) {
      fail(
          "cp_decodes is dealt with cp_weights split, whose ranks share the rows of a step; "
          "expected cp_weights replicated, or cp_decodes all");
    }
    alone("dp", mesh_.dp);
    alone("tp", mesh_.tp);
    alone("pp", mesh_.pp);
    alone("num_micro_batches", mesh_.num_micro_batches);
  }
  // Even parts of all data-parallel ranks' rows.
  void check_dp_rows() const {
    if (mesh_.dp_rows == DpRows::kOwn) return;
    const auto refuse = [&](const std::string& what, std::string_view expected) {
      fail("dp_rows is balanced with " + what + "; expected " + std::string(expected) +
           ", or dp_rows own");
    };
    if (mesh_.dp == 1) fail("dp_rows is balanced with dp 1, expected own, or nearest legal dp: 2");
    if (mesh_.cp > 1) {
      refuse("cp " + std::to_string(mesh_.cp) + ", whose ranks have even parts by cp_decodes dealt",
             "cp 1");
    }
    if (mesh_.sp) refuse("sp, which divides the rows of a rank once more", "sp false");
    if (mesh_.ffn_instances > 0) {
      refuse("ffn_instances, on which FFNs have other rows than attention anyway",
             "ffn_instances 0");
    }
    if (mesh_.num_micro_batches > 1) {
      refuse("num_micro_batches " + std::to_string(mesh_.num_micro_batches) +
                 ", each of them a part of a rank's own sequences",
             "num_micro_batches 1");
    }
    if (mesh_.two_batch_overlap) {
      refuse("two_batch_overlap, whose halves are of a rank's own sequences",
             "two_batch_overlap false");
    }
    if (mesh_.o_proj == OProjection::kReplicated) {
      refuse("o_proj replicated, which gathers the heads of a rank's own rows",
             "o_proj split or sharded");
    }
    if (model_.index_topk > 0) {
      fail(
          "dp_rows is balanced, but the model's sparse attention (index_topk) has an index of its "
          "own over sequences; expected own");
    }
    const auto has_states = [](const LayerConfig& layer) { return layer.state_bytes > 0; };
    if (std::ranges::any_of(model_.layers, has_states)) {
      fail(
          "dp_rows is balanced, but layers of the model keep states, whose ops walk through "
          "sequences; expected own");
    }
  }
  // Each of the cp ranks has the model of a rank without cp.
  void check_replicated() const {
    if (model_.num_experts == 0 || mesh_.cp_decodes == CpDecodes::kDealt) return;
    if (mesh_.tp == 1 && mesh_.dp == 1 && mesh_.ep == 1) return;
    fail("cp_weights is replicated with dp " + std::to_string(mesh_.dp) + ", tp " +
         std::to_string(mesh_.tp) + " and ep " + std::to_string(mesh_.ep) +
         ", over which routed experts would lie; expected 1 of each, or cp_weights split");
  }
  // Of a cp: heads and FFN columns over tp * cp.
  [[nodiscard]] bool is_legal_tp_of_weights(std::int64_t cp) const {
    const std::int64_t ways = mesh_.tp * cp;
    return model_.num_attention_heads % ways == 0 &&
           std::ranges::all_of(ffn_columns(),
                               [&](std::int64_t columns) { return columns % ways == 0; });
  }

  // Key and value heads of layers that have some are split, or replicated when there are fewer than
  // ranks.
  [[nodiscard]] bool fits_kv_heads(std::int64_t tp) const {
    const std::int64_t kv_heads = model_.num_key_value_heads;
    const auto has_no_heads = [](const LayerConfig& layer) {
      return layer.attention == AttentionKind::kMla || !layer.caches_tokens();
    };
    return (!model_.layers.empty() && std::ranges::all_of(model_.layers, has_no_heads)) ||
           kv_heads % tp == 0 || tp % kv_heads == 0;
  }
  // Whether the weights of shared experts lie whole on each rank.
  [[nodiscard]] bool has_whole_shared_expert() const {
    return mesh_.shared_expert == SharedExpert::kReplicated;
  }
  void check_shared_expert() const {
    if (!has_whole_shared_expert()) return;
    const auto refuse = [&](const std::string& why) {
      fail("shared_expert is replicated, but " + why + "; expected split");
    };
    if (model_.shared_expert_intermediate_size == 0) refuse("the model has no shared expert");
    if (weights_tp_ == 1) refuse("tp is 1, so that every rank has all of it");
    if (mesh_.sp && mesh_.moe_gather != MoeGather::kRouted) {
      fail(
          "shared_expert is replicated with sp, whose ranks add results of 1 / tp of the tokens; "
          "expected split, or moe_gather routed");
    }
  }

  // Where sequence parallelism gathers tokens.
  void check_gather() const {
    const auto needs_sp = [&](std::string_view option, std::string_view otherwise) {
      if (mesh_.sp) return;
      fail(std::string(option) + " without sp, expected norm, or sp: true with tp >= 2" +
           std::string(otherwise));
    };
    if (mesh_.attention_gather == AttentionGather::kProjected) {
      if (mesh_.dp_rows == DpRows::kOwn) {
        needs_sp("attention_gather is projected", ", or dp_rows: balanced with dp >= 2");
      }
      if (model_.q_lora_rank == 0) {
        fail(
            "attention_gather is projected, but queries of the model come from hidden states, not "
            "from latents (q_lora_rank); expected norm");
      }
      if (model_.index_topk > 0) {
        fail(
            "attention_gather is projected, but the model's sparse attention has an index of its "
            "own to compute from hidden states; expected norm");
      }
    }
    if (mesh_.moe_gather == MoeGather::kRouted) {
      needs_sp("moe_gather is routed", "");
      if (model_.num_experts == 0) {
        fail("moe_gather is routed, but the model has no routed experts; expected norm");
      }
    }
  }

  void check_output_projection() const {
    const auto refuse = [&](const std::string& why) { fail("o_proj is " + why); };
    if (mesh_.o_proj == OProjection::kReplicated) {
      if (mesh_.tp == 1)
        refuse("replicated, but tp is 1, so that every rank has all of it; expected split");
      if (mesh_.sp) {
        refuse(
            "replicated with sp, whose ranks add results of 1 / tp of the tokens; expected "
            "split or sharded");
      }
    }
    if (mesh_.o_proj != OProjection::kSharded) return;
    if (mesh_.dp == 1)
      refuse("sharded, but dp is 1, so that there is nothing to shard over; expected split");
    if (model_.hidden_size % mesh_.dp != 0) {
      refuse("sharded over dp " + std::to_string(mesh_.dp) +
             ", which does not divide hidden_size " + std::to_string(model_.hidden_size) +
             nearest_legal("dp", mesh_.dp, model_.hidden_size,
                           [&](std::int64_t value) { return model_.hidden_size % value == 0; }) +
             "; or expected split");
    }
  }

  void check_split_all_reduce() const {
    if (!mesh_.split_all_reduce) return;
    if (weights_tp_ == 1)
      fail("split_all_reduce is on with tp 1, which has no all_reduce; expected false");
    if (mesh_.sp) {
      fail("split_all_reduce is on with sp, which splits each all_reduce already; expected false");
    }
  }

  void check_two_batch_overlap() const {
    if (!mesh_.two_batch_overlap) return;
    if (mesh_.cp > 1) {
      fail("two_batch_overlap is on with cp " + std::to_string(mesh_.cp) +
           ", whose ranks split tokens otherwise; expected cp 1, or two_batch_overlap false");
    }
    if (mesh_.pp > 1) {
      fail("two_batch_overlap is on with pp " + std::to_string(mesh_.pp) +
           ", whose micro-batches follow each other through the stages; expected pp 1, or "
           "two_batch_overlap false");
    }
    if (mesh_.tp > 1 || mesh_.ep > 1) return;
    fail(
        "two_batch_overlap is on with tp 1 and ep 1, which have no collectives to hide; expected "
        "false, or nearest legal tp: 2" +
        std::string(model_.num_experts > 0 ? " or ep: 2" : ""));
  }

  void check_lm_head() const {
    if (mesh_.lm_head == LmHead::kSplit) return;
    const bool is_joined = mesh_.lm_head == LmHead::kJoined;
    const auto refuse = [&](const std::string& why) {
      fail(std::string("lm_head is ") + (is_joined ? "joined" : "replicated") + ", but " + why +
           "; expected split");
    };
    if (is_joined && mesh_.dp == 1) refuse("dp is 1, so that there are no other rows to join");
    if (!is_joined && weights_tp_ == 1) refuse("tp is 1, so that every rank has all of it");
    if (model_.tie_word_embeddings) {
      refuse("the model's embedding has the same weights (tie_word_embeddings), which lie over tp");
    }
  }

  // FFN columns that tp splits: of dense layers and of shared experts.
  [[nodiscard]] std::set<std::int64_t> ffn_columns() const {
    std::set<std::int64_t> columns;
    for (const LayerConfig& layer : model_.layers) {
      if (layer.ffn != FfnKind::kMoe) {
        columns.insert(layer.intermediate_size);
      } else if (!has_whole_shared_expert()) {
        columns.insert(model_.shared_expert_intermediate_size);
      }
    }
    columns.erase(0);
    return columns;
  }
  // Columns that tp of attention's ranks splits.
  [[nodiscard]] std::set<std::int64_t> own_ffn_columns() const {
    return mesh_.ffn_instances > 0 ? std::set<std::int64_t>() : ffn_columns();
  }
  [[nodiscard]] bool is_legal_tp(std::int64_t tp) const {
    return model_.num_attention_heads % tp == 0 && model_.linear_num_key_heads % tp == 0 &&
           fits_kv_heads(tp) && std::ranges::all_of(own_ffn_columns(), [&](std::int64_t columns) {
             return columns % tp == 0;
           });
  }

  void check_tensor() const {
    const std::int64_t tp = mesh_.tp;
    const auto legal = [&] {
      return nearest_legal("tp", tp, model_.num_attention_heads,
                           [&](std::int64_t value) { return is_legal_tp(value); });
    };
    if (model_.num_attention_heads % tp != 0) {
      fail("tp " + std::to_string(tp) + " does not divide num_attention_heads " +
           std::to_string(model_.num_attention_heads) + legal());
    }
    if (model_.linear_num_key_heads % tp != 0) {
      const bool has_groups = std::ranges::find(model_.layers, AttentionKind::kMamba2,
                                                &LayerConfig::attention) != model_.layers.end();
      fail("tp " + std::to_string(tp) + " does not divide " +
           (has_groups ? "the groups of Mamba heads, " : "linear_num_key_heads ") +
           std::to_string(model_.linear_num_key_heads) + legal());
    }
    if (!fits_kv_heads(tp)) {
      fail("tp " + std::to_string(tp) + " neither divides num_key_value_heads " +
           std::to_string(model_.num_key_value_heads) + " nor is a multiple of it" + legal());
    }
    for (const std::int64_t columns : own_ffn_columns()) {
      if (columns % tp == 0) continue;
      fail("tp " + std::to_string(tp) + " does not divide the " + std::to_string(columns) +
           " columns of intermediate_size (dense layers or shared experts)" + legal());
    }
  }

  void check_experts() const {
    const std::int64_t ep = mesh_.ep;
    const bool has_instances = mesh_.ffn_instances > 0;
    const std::int64_t ranks =
        has_instances ? num_ffn_ranks(mesh_)
                      : static_cast<std::int64_t>(weights_mesh(mesh_).dp) * weights_tp_;
    const std::string product = has_instances   ? "ffn_instances * ffn_tp"
                                : mesh_.cp == 1 ? "dp * tp"
                                                : "dp * tp * cp";
    const std::int64_t columns = model_.moe_intermediate_size;
    const std::int64_t redundant = mesh_.num_redundant_experts;
    const std::int64_t experts = model_.num_experts + redundant;
    if (redundant < 0 || redundant > kMaxWays || (redundant > 0 && ep == 1)) {
      fail("num_redundant_experts is " + std::to_string(redundant) + " with ep " +
           std::to_string(ep) + ", expected 0, or at least 1 with ep >= 2");
    }
    if (model_.num_experts == 0) {
      if (ep == 1) return;
      fail("ep is " + std::to_string(ep) + ", but the model has no routed experts; expected 1");
    }
    const auto are_legal = [&](std::int64_t of_ranks, std::int64_t value) {
      return of_ranks % value == 0 && experts % value == 0 && columns % (of_ranks / value) == 0;
    };
    std::string legal =
        nearest_legal("ep", ep, ranks, [&](std::int64_t value) { return are_legal(ranks, value); });
    if (legal.empty()) {  // no ep lies over so many ranks
      legal = nearest_legal(product, ranks, 2 * ranks, [&](std::int64_t of_ranks) {
        return are_legal(of_ranks, std::gcd(of_ranks, experts));
      });
    }
    if (ranks % ep != 0) {
      fail("ep " + std::to_string(ep) + " does not divide " + product + " = " +
           std::to_string(ranks) + legal);
    }
    if (experts % ep != 0) {
      fail("ep " + std::to_string(ep) + " does not divide the " +
           std::to_string(model_.num_experts) + " routed and " + std::to_string(redundant) +
           " redundant experts" + legal + "; or num_redundant_experts: " +
           std::to_string((model_.num_experts + ep - 1) / ep * ep - model_.num_experts));
    }
    if (columns % (ranks / ep) != 0) {
      fail(product + " / ep = " + std::to_string(ranks / ep) +
           " does not divide moe_intermediate_size " + std::to_string(columns) + legal);
    }
  }

  void check_pipeline() const {
    const auto num_layers = static_cast<std::int64_t>(model_.layers.size());
    if (mesh_.pp > num_layers) {
      fail("pp " + std::to_string(mesh_.pp) + " is more than the " + std::to_string(num_layers) +
           " layers; nearest legal pp: " + std::to_string(num_layers));
    }
    std::int64_t num_units = 0;
    for (const LayerRun& run : layer_runs(model_.layers)) num_units += run.count;
    if (mesh_.pp > num_units) {
      fail("pp " + std::to_string(mesh_.pp) + " is more than the " + std::to_string(num_units) +
           " groups in which unlike layers repeat; nearest legal pp: " + std::to_string(num_units));
    }
    if (mesh_.pp == 1 && mesh_.ffn_instances == 0 && mesh_.num_micro_batches > 1) {
      fail("num_micro_batches is " + std::to_string(mesh_.num_micro_batches) +
           " with pp 1 and no ffn_instances, expected 1: micro-batches fill the stages of a "
           "pipeline, or attention and FFN ranks");
    }
  }

  const ModelConfig& model_;
  const Mesh& mesh_;
  std::int64_t weights_tp_;  // ways in which weights behind attention are split
};

}  // namespace

void check_mesh(const ModelConfig& model, const Mesh& mesh) { MeshCheck(model, mesh).run(); }

}  // namespace orrery
