#pragma once

// Passes Plan -> Plan over named axes. A pass knows no model and no topology: it shards axes, grows
// rank sets and inserts the collectives that its sharding implies.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/model/expert_load.h"
#include "sim/model/model.h"
#include "sim/plan/plan.h"

namespace orrery {

// How tokens reach routed experts on other data-parallel ranks, and how results come back.
// Of the fused `moe` op:
//   kAllToAll    dispatch and combine of tokens * topk rows; needs ep == dp * tp
//   kAllGather   all_gather of all tokens over dp, reduce_scatter of the results; also what a mesh
//                with ep < dp * tp does, whose ranks each hold a slice of their experts' columns
//   kDeepEp      dispatch and combine by DeepEP's kernels, as its tables have them; needs
//                ep == dp * tp
// Of design shuffling (sim/parallel/expert_flows.h says what is sent):
//   kEager       all_to_all of counts, of rows and of results, in the sizes that the host has read;
//                one d2h_sync for each layer
//   kGraph       all_gather of counts and rows, all_to_all of results, in sizes that hold any
//                routing; no sync, so that a graph can hold the layer
//   kDedup, kDedupGraph
//                the same where the ranks of a tp group are a node and hold the same rows: each
//                sends its slice of their columns to other nodes, and all gather inside. ep == dp
//   kTokens      all_gather of tokens, not of a row for each choice, and of the router's scores;
//                each rank sorts the tokens of all, and a reduce_scatter adds up their results; no
//                sync
//   kCopies      as kEager, rows and results by the GPUs' copy engines, which take no SMs, into the
//                memory of the rank that gets them; between GPUs of one host
enum class ExpertComm : std::uint8_t {
  kAllToAll,
  kAllGather,
  kEager,
  kGraph,
  kDedup,
  kDedupGraph,
  kDeepEp,
  kTokens,
  kCopies
};
// Entry i names the enumerator of value i.
inline constexpr std::array<std::string_view, 9> kExpertCommNames{
    "all_to_all",  "all_gather", "eager",  "graph", "dedup",
    "dedup_graph", "deepep",     "tokens", "copies"};

// Where the weights of an expert that all tokens share lie: columns over tp, whose sums are reduced
// with those of routed experts (Megatron-LM), or all of them on each tp rank.
enum class SharedExpert : std::uint8_t { kSplit, kReplicated };
inline constexpr std::array<std::string_view, 2> kSharedExpertNames{"split", "replicated"};

// Where sequence parallelism, and data-parallel ranks with even parts of all rows, gather the
// tokens of a latent-attention block: behind its norm, or behind the projections down to the
// latents, which then work on a rank's part of the tokens.
enum class AttentionGather : std::uint8_t { kNorm, kProjected };
inline constexpr std::array<std::string_view, 2> kAttentionGatherNames{"norm", "projected"};

// Where it gathers those of a block of routed experts: behind its norm, or behind router and
// quantisation, which then work on 1 / tp of the tokens.
enum class MoeGather : std::uint8_t { kNorm, kRouted };
inline constexpr std::array<std::string_view, 2> kMoeGatherNames{"norm", "routed"};

// Where the weights of attention's output projections lie: rows over tp with an all_reduce of the
// sums; all of them on each tp rank, to which the heads are gathered; or rows over tp and columns
// over dp, gathered in each layer while its attention runs (ZeRO, arXiv 1910.02054).
enum class OProjection : std::uint8_t { kSplit, kReplicated, kSharded };
inline constexpr std::array<std::string_view, 3> kOProjectionNames{"split", "replicated",
                                                                   "sharded"};

// Where the LM head lies: vocabulary over tp; all of it on each rank; or over dp and tp, with the
// sampled rows of all dp ranks joined into one GEMM.
enum class LmHead : std::uint8_t { kSplit, kReplicated, kJoined };
inline constexpr std::array<std::string_view, 3> kLmHeadNames{"split", "replicated", "joined"};

// Where the weights behind attention (output projection, FFN, experts, vocabulary) lie in a mesh
// with cp: over tp * cp ranks, whose attention is over tp heads and cp parts of the context (Helix,
// arXiv 2507.07120); or over tp, each of the cp ranks with all of them.
enum class CpWeights : std::uint8_t { kSplit, kReplicated };
inline constexpr std::array<std::string_view, 2> kCpWeightsNames{"split", "replicated"};

// How queries of a prompt meet the keys and values of other context-parallel ranks: those are
// gathered before attention, or pairs of ranks exchange theirs while attention over what is there
// runs.
enum class CpPrefill : std::uint8_t { kAllGather, kRing };
inline constexpr std::array<std::string_view, 2> kCpPrefillNames{"all_gather", "ring"};

// Which decodes' rows a context-parallel rank has: those of all, or its part, as data-parallel
// ranks have theirs. Then queries, new keys and new values of a rank go to all others, each attends
// with all queries to the tokens that it has, and results go back to the rows' rank: data-parallel
// ranks with one page table over them.
enum class CpDecodes : std::uint8_t { kAll, kDealt };
inline constexpr std::array<std::string_view, 2> kCpDecodesNames{"all", "dealt"};

// Which rows of a step a data-parallel rank has where no sequence is looked at: those of its own
// sequences, or an even part of all ranks' rows. Then what attention needs is gathered, a rank
// attends to its own sequences, and results go back to the even parts
// (sim/parallel/balanced_rows.cpp).
enum class DpRows : std::uint8_t { kOwn, kBalanced };
inline constexpr std::array<std::string_view, 2> kDpRowsNames{"own", "balanced"};

// How micro-batches follow each other where attention and FFNs lie on different ranks: all are
// under way, each at another place (MegaScale-Infer's ping-pong, StepMesh's three stages), or one
// goes from attention to FFNs and back before the next begins.
enum class FfnSchedule : std::uint8_t { kPipelined, kLock };
inline constexpr std::array<std::string_view, 2> kFfnScheduleNames{"pipelined", "lock"};

// How many ways each strategy splits one instance of a model. Attention runs on dp x tp x cp ranks
// (sp inside them), routed experts on ep x (dp*tp*cp/ep) ranks of the same stage; pp stages follow
// each other. ranks = dp * tp * cp * pp. Rank order, slowest first: pp, dp, tp, cp.
//
//   dp=2 tp=2 pp=2:   stage 0 | dp 0: rank 0 1 | dp 1: rank 2 3 |
//                     stage 1 | dp 0: rank 4 5 | dp 1: rank 6 7 |     tp groups 01 23 45 67
//   tp=2 cp=2:        heads 0 | context 0: rank 0, 1: rank 1 | heads 1 | rank 2, rank 3 |
//
// With ffn_instances, FFNs and experts lie on ffn_instances * ffn_tp ranks of their own behind
// those (attention-FFN disaggregation, sim/parallel/afd.cpp); ep is over them. Step-3's 3A2F:
//
//   dp=24 ep=2 ffn_instances=2 ffn_tp=8:   attention 0 .. 23 | experts 0: 24 .. 31 | 1: 32 .. 39 |
struct Mesh {
  int dp = 1;
  int tp = 1;
  int cp = 1;
  int ep = 1;
  int pp = 1;
  bool sp = false;  // shard norms over tp along tokens (all_reduce -> reduce_scatter + all_gather)
  DpRows dp_rows = DpRows::kOwn;                 // dp only
  CpWeights cp_weights = CpWeights::kSplit;      // cp only
  CpPrefill cp_prefill = CpPrefill::kAllGather;  // cp only
  CpDecodes cp_decodes = CpDecodes::kAll;        // cp only
  int num_micro_batches = 1;                     // pp, or ffn_instances
  int ffn_instances = 0;                         // 0: FFNs lie where attention does
  int ffn_tp = 1;                                // ranks of an FFN instance
  FfnSchedule ffn_schedule = FfnSchedule::kPipelined;
  ExpertComm expert_comm = ExpertComm::kAllToAll;  // dp > 1 with routed experts only
  // In how many parts a layer's tokens go through routed experts: one computes while the next is
  // dispatched and the last is combined (sim/parallel/token_chunks.h).
  int moe_chunks = 1;
  // The last op of a shared expert beside the way back of routed rows, not beside the way there.
  bool split_shared_expert = true;
  SharedExpert shared_expert = SharedExpert::kSplit;
  AttentionGather attention_gather = AttentionGather::kNorm;  // sp, or balanced dp_rows
  MoeGather moe_gather = MoeGather::kNorm;                    // sp only
  OProjection o_proj = OProjection::kSplit;
  LmHead lm_head = LmHead::kSplit;
  // Without sp: each all_reduce over tp as a reduce_scatter along tokens and an all_gather.
  bool split_all_reduce = false;
  // A step in two halves of its rows that take turns on the GPU: one computes while the collectives
  // of the other run (sim/parallel/two_batch.cpp). pp 1 only.
  bool two_batch_overlap = false;
  // Copies of hot experts, so that ep divides the experts in all (DeepSeek-V3 report,
  // section 3.4.2: 256 + 64 on 320 ranks). Their choices count as those of experts of their own.
  int num_redundant_experts = 0;
  // How tokens spread over experts and copies, in the order in which they lie on ranks (designs
  // other than the fused one; sim/parallel/expert_placement.h); empty: evenly.
  ExpertLoad expert_load;
  // Which expert each slot of the ranks holds, in that order (ExpertPlacement); empty: experts in
  // order, without copies. Times depend on expert_load alone; GPUs have weights by it.
  std::vector<std::int64_t> expert_of_slot;
  bool operator==(const Mesh&) const = default;
};
[[nodiscard]] int num_ranks(const Mesh& mesh);
// Of these, the ranks of FFN instances, which are the last.
[[nodiscard]] int num_ffn_ranks(const Mesh& mesh);

// Throws std::invalid_argument when the mesh cannot hold the model: says which divisibility rule
// failed (heads % tp, experts % ep, layers >= pp, ...) and the nearest legal values.
void check_mesh(const ModelConfig& model, const Mesh& mesh);

// Throws std::invalid_argument when rows cannot be dispatched as mesh.expert_comm says (dp > 1): of
// the fused op, or of design shuffling; dedup without two levels; shuffling with dp that does not
// divide ep; copies of rows that are dealt to ranks otherwise, or that stay (dp 1).
void check_expert_comm(const Mesh& mesh, bool is_fused);

// Throws std::invalid_argument, saying what would do, when the tokens of a layer of this design
// cannot go through its experts in mesh.moe_chunks parts.
void check_moe_chunks(const Mesh& mesh, MoeDesign design);
inline constexpr int kMostMoeChunks = 64;

// Throws std::invalid_argument, saying what would do, when a layer of experts as one kernel (design
// persistent) cannot lie on the mesh.
void check_persistent_mesh(const Mesh& mesh);
inline constexpr int kMostPersistentRanks = 8;

struct ParallelPass {
  std::string_view name;
  std::string_view summary;
  // Whether the pass changes this plan; `parallelize` skips those that do not.
  bool (*applies)(const Plan& plan, const Mesh& mesh);
  Plan (*apply)(const Plan& plan, const Mesh& mesh);
  // Whether it tells ranks of cp from those of tp and dp; else it gets weights_mesh (rewrite.h).
  bool knows_cp = false;
};
// In the order in which they apply.
std::span<const ParallelPass> parallel_passes();

// All passes for the mesh over a plan of one rank. The batch lowered into `plan` is that of the
// whole instance; the data pass gives each dp rank its (rounded up) share. Throws
// std::invalid_argument when an axis does not divide (check_mesh says it better).
// `fullest_rows`: tokens of the dp rank (and micro-batch) that has most; 0: as the plan's attention
// shows them, which sparse attention does not.
Plan parallelize(const Plan& plan, const Mesh& mesh, std::int64_t fullest_rows = 0);

// Bytes that one cached sequence of `context` tokens takes on the rank that holds most of it: its
// stage's layers, its share of the KV heads (whole latents for MLA), 1 / cp of the tokens.
Bytes kv_bytes_per_rank(const ModelConfig& model, const Mesh& mesh, DType kv_dtype,
                        std::int64_t context);
// Bytes of the states of one sequence on the rank that holds most of them: its stage's layers,
// their heads over tp.
Bytes state_bytes_per_rank(const ModelConfig& model, const Mesh& mesh);

}  // namespace orrery
