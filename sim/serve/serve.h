#pragma once

// A simulated service: requests arrive, a router picks a replica, each replica's scheduler forms
// batches (continuous batching with chunked prefill, as vLLM v1), steps take the time that a
// StepBackend says, and every request's times are recorded.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/serve/expert_balance.h"
#include "sim/serve/kv_tier_config.h"
#include "sim/serve/load.h"
#include "sim/serve/slo.h"
#include "sim/serve/speculation.h"
#include "sim/serve/step_backend.h"
#include "sim/units/energy.h"
#include "sim/units/units.h"

namespace orrery {

struct Request {
  std::int64_t id = 0;
  Seconds arrival;
  std::int64_t prompt_tokens = 0;  // >= 1
  std::int64_t output_tokens = 0;  // >= 1
  // Identity of each full prefix block of `Workload::hash_block_tokens` prompt tokens, and of a
  // turn of a session of prompt and output tokens; may be empty.
  std::vector<std::uint64_t> block_hashes;
};

// A request as part of a conversation (sim/serve/sessions.h).
struct Turn {
  std::int64_t session = 0;
  std::int64_t turn = 0;  // of the session, from 0
  Seconds wait;           // from the answer of the turn before until this one is sent
  bool operator==(const Turn&) const = default;
};

struct Workload {
  std::vector<Request> requests;             // ascending arrival; ignored arrivals when closed_loop
  std::int64_t closed_loop_concurrency = 0;  // > 0: next request is sent when one completes
  // Of each request where they are turns of sessions, else empty: those of a session in a row, by
  // turn. The first of a session is sent when it arrives, or in a closed loop, whose clients have
  // one session after the other, when the one before has ended; another one at its arrival or when
  // `wait` has passed since the answer before, whichever is later.
  std::vector<Turn> turns;
  std::int64_t hash_block_tokens = 0;
  std::int64_t warmup_requests = 0;  // first requests, which no metric counts (ServingMetrics)
  std::int64_t drain_requests = 0;   // last requests, which keep the service full; likewise
  bool is_cold = false;              // no warm-up came before the first request
  bool is_offline = false;           // requests come from the engine's own process: no front end
  // All prompts in one step whatever the token budget, then decodes until the last has ended.
  bool is_static_batch = false;
  std::vector<std::string> notes;  // what a reader of results should know of these requests
};

// What a step is made of when both decodes and prompts could run.
enum class SchedulerPolicy : std::uint8_t {
  kMixed,        // decodes, and prompts in the token budget that they leave (vLLM, TensorRT-LLM)
  kPrefillFirst  // prompts alone while any can run, else decodes alone (SGLang)
};
// Here and below, entry i names the enumerator of value i.
inline constexpr std::array<std::string_view, 2> kSchedulerPolicyNames{"mixed", "prefill_first"};

// Which KV blocks must be free for a waiting request to be admitted.
enum class KvAdmission : std::uint8_t {
  kPrompt,      // those of its prompt (vLLM)
  kFullLength,  // those of its prompt and whole output, beside the same of all that run: nothing is
                // ever preempted (TensorRT-LLM, GUARANTEED_NO_EVICT)
  kEstimated  // those of its prompt and whole output, beside new_token_ratio of the tokens that the
              // decoding ones may still make (SGLang)
};
inline constexpr std::array<std::string_view, 3> kKvAdmissionNames{"prompt", "full_length",
                                                                   "estimated"};

// Which data-parallel rank of a replica a request goes to when the engine comes to know of it.
enum class DpRouter : std::uint8_t {
  kRoundRobin,    // ranks in turn (SGLang)
  kLeastTokens,   // the one with the fewest tokens left to compute
  kLeastRequests  // by 4 * waiting + running requests (vLLM v1)
};
inline constexpr std::array<std::string_view, 3> kDpRouterNames{"round_robin", "least_tokens",
                                                                "least_requests"};

// Of what the share `gpu_memory_utilization` is.
enum class MemoryFraction : std::uint8_t {
  kTotal,           // of the device, for everything (vLLM)
  kFree,            // of what everything else leaves, for the KV cache (TensorRT-LLM)
  kWeightsAndCache  // of the device, for these two; the rest is for everything else (SGLang)
};
inline constexpr std::array<std::string_view, 3> kMemoryFractionNames{"total", "free",
                                                                      "weights_and_cache"};

// vLLM v1 names and defaults. Limits hold for each data-parallel rank of an instance.
struct EngineConfig {
  std::int64_t max_num_seqs = 256;
  std::int64_t max_num_batched_tokens = 8192;
  std::int64_t block_size = 16;
  double gpu_memory_utilization = 0.9;
  MemoryFraction memory_fraction = MemoryFraction::kTotal;
  bool enable_chunked_prefill = true;
  bool enable_prefix_caching = false;
  // Admit a request only when blocks for all its tokens so far are free, not just for its first
  // chunk (as vLLM 0.19 does by default).
  bool scheduler_reserve_full_isl = true;
  std::int64_t max_model_len = 0;  // 0: the model's
  // Batch k+1 is fixed when step k begins: a request that arrives during step k runs in step k+2 at
  // the earliest, and the seat and the blocks of a sequence that ends with step k are free for step
  // k+2. An idle engine starts at once.
  bool async_scheduling = false;
  SchedulerPolicy scheduler_policy = SchedulerPolicy::kMixed;
  KvAdmission kv_admission = KvAdmission::kPrompt;
  double new_token_ratio = 0;  // kEstimated only; in [0, 1]
  // A request's first token is sent at once, later ones this many in a message (TensorRT-LLM from
  // 2025-07 on, pull request 5836; SGLang and vLLM).
  std::int64_t stream_interval = 1;
  // Beside decodes, prompts are held back for at most so many steps (0: never), or until they and
  // the decodes have this share of max_num_batched_tokens (TensorRT-LLM, py_executor.py,
  // _waiting_requests).
  std::int64_t batch_wait_timeout_iters = 0;
  double batch_wait_max_tokens_ratio = 1;
  // A step that has prompts takes another only if that is shorter than what they and the decodes
  // leave of this (0: no such bound), and does not cut it to fit: max_num_batched_tokens alone cuts
  // (SGLang, schedule_policy.py, PrefillAdder.add_one_req, 0.5.6 to 0.5.12).
  std::int64_t max_prefill_tokens = 0;
  DpRouter dp_router = DpRouter::kRoundRobin;
  // While all data-parallel ranks decode, prompts wait at most so many steps (0: never) until all
  // ranks have some, and then so many for more of them (TensorRT-LLM, attention_dp_config:
  // timeout_iters and batching_wait_iters).
  std::int64_t dp_balance_timeout_iters = 0;
  std::int64_t dp_balance_batching_wait_iters = 0;
  Speculation speculation;
  bool operator==(const EngineConfig&) const = default;
};

// What lies between clients and the engine of one replica: one serial server through which each
// request passes before the engine sees it (HTTP, tokenizing), and the way back of tokens.
struct FrontEndConfig {
  Seconds per_request;
  Seconds per_prompt_token;
  Seconds per_output_token;  // of the server that sends messages out, one after the other
  Seconds stream_latency;    // from then until clients have them
  // Before the first request of a server that has served none (Workload::is_cold).
  Seconds cold_start;
};

class StepStore;

enum class RouterKind : std::uint8_t {
  kRoundRobin,
  kLeastLoaded,
  kPrefixAware,
  kSessionAffinity,
  kCacheAware,
  kWeightedScores
};

// Of replicas that can take requests, what an autoscaler looks at.
enum class ScalingMetric : std::uint8_t {
  kQueuedRequests,    // in no step yet
  kRunningRequests,   // in steps
  kInFlightRequests,  // both (Knative and KServe: concurrency)
  kKvUtilisation      // share of the KV blocks in use
};
inline constexpr std::array<std::string_view, 4> kScalingMetricNames{
    "queued_requests", "running_requests", "in_flight_requests", "kv_utilisation"};

// Replicas come and go as Kubernetes' horizontal pod autoscaler has them (sim/serve/autoscaler.h).
struct AutoscalingConfig {
  int min_replicas = 1;
  int max_replicas = 1;
  ScalingMetric metric = ScalingMetric::kQueuedRequests;
  double target = 1;              // of the metric, the mean of a replica
  Seconds interval{15};           // between decisions
  Seconds start_up{0};            // until a replica takes requests
  Seconds scale_down_delay{300};  // the most replicas asked for in this time stay
  double tolerance = 0.1;         // no change while the metric is this near to its target
  bool operator==(const AutoscalingConfig&) const = default;
};

struct ServiceConfig {
  EngineConfig engine;
  FrontEndConfig front_end;
  int num_replicas = 1;  // with autoscaling, at the start
  std::optional<AutoscalingConfig> autoscaling;
  RouterKind router = RouterKind::kRoundRobin;
  // Ranks of a replica that each have requests, KV blocks and a queue of their own and step
  // together.
  int num_dp_ranks = 1;
  std::int64_t num_kv_blocks = 0;  // per replica, over its data-parallel ranks
  std::int64_t state_blocks = 0;   // that a sequence takes beside those of its tokens
  KvTiersConfig kv_tiers;          // behind these blocks
  int num_threads = 1;             // replicas behind a load-blind router run side by side
  bool record_steps = true;
  // Takes the steps in place of ServiceResult::steps. Shared: results are copied, their steps are
  // not.
  std::shared_ptr<StepStore> step_store;
};

struct RequestRecord {
  std::int64_t id = 0;
  std::int64_t session = -1;  // that it is a turn of; -1: of none
  std::int64_t turn = 0;
  int replica = 0;
  int dp_rank = 0;  // of the replica
  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;
  std::int64_t cached_tokens = 0;  // prompt tokens found in the prefix cache at first admission
  std::int64_t loaded_tokens = 0;  // of them, from a tier behind the GPU's blocks
  int num_preemptions = 0;
  bool is_measured = true;  // neither of the warm-up nor of the drain
  Seconds arrival;          // sent by the client
  Seconds first_scheduled;  // in the engine
  Seconds first_token;      // at the client
  Seconds finish;           // at the client
  // Where prompts and decodes have replicas of their own (sim/serve/disaggregated.h), of requests
  // with a second token; `replica` is then the one of the prompt.
  int decode_replica = -1;
  int decode_dp_rank = 0;
  Bytes transfer_bytes;      // over all ranks
  Seconds prefill_end;       // in the engine, as are those below: the first token was made
  Seconds transfer_start;    // first byte of the KV cache left
  Seconds transfer_end;      // last byte came
  Seconds decode_start;      // of the first step that decodes it
  Seconds second_token;      // was made
  Seconds exposed_transfer;  // by how much decode_start would be earlier if transfers took no time
};

// One record per fast-forward: `num_steps` equal batches.
struct StepRecord {
  int replica = 0;
  Seconds start;
  Seconds duration;  // of all num_steps
  std::int64_t num_steps = 1;
  std::int64_t prefill_tokens = 0;  // per step
  std::int64_t num_prefills = 0;
  std::int64_t num_decodes = 0;
  std::int64_t decode_context = 0;  // at the first step
  std::int64_t num_waiting = 0;
  // At the end, before requests that finish give theirs back.
  std::int64_t kv_blocks_used = 0;
  // How long data-parallel ranks wait for the slowest, over all num_steps.
  Seconds mean_wait;
  Seconds longest_wait;
  double token_balance = 1;        // of their tokens, mean over most
  double time_balance = 1;         // of their times, mean over slowest
  std::vector<Seconds> rank_wait;  // of each; empty of one rank, or where it is not known
};

struct Quantiles {
  double mean = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0, max = 0;
};

// Of one kind of replicas.
struct SideMetrics {
  int num_replicas = 0;
  double busy = 0;  // share of the time from first arrival to last finish that steps take
  double kv_utilisation_mean = 0;  // over the time in steps
  double kv_utilisation_max = 0;
  std::int64_t num_steps = 0;
  double mean_batch = 0;
  Joules work_energy;  // its part of ServingMetrics::work_energy
};

struct DisaggregationMetrics {
  std::int64_t num_transfers = 0;
  Bytes transferred;
  Quantiles transfer_s;      // first byte to last byte
  Quantiles wait_s;          // first token to first byte
  Quantiles second_token_s;  // first token to second token
  Quantiles exposed_s;
  double exposed_share = 0;  // of the time of all transfers, what requests waited for
  SideMetrics prefill;
  SideMetrics decode;
};

// Of sessions of which all turns are measured.
struct SessionMetrics {
  std::int64_t num_sessions = 0;
  double mean_turns = 0;
  Quantiles duration_s;           // first turn sent to last answer
  Quantiles first_ttft_s;         // of first turns
  Quantiles later_ttft_s;         // of later turns
  double sessions_per_s = 0;      // from the first one's first turn to the last one's last answer
  double later_cached_share = 0;  // of the prompt tokens of later turns
};

// How many replicas there are from `time` on.
struct ReplicaCount {
  Seconds time;
  int ready = 0;
  int starting = 0;
  int draining = 0;  // they take no new requests
  bool operator==(const ReplicaCount&) const = default;
};

// Of a service with autoscaling, from time 0 to the last answer.
struct AutoscalingMetrics {
  std::vector<ReplicaCount> counts;  // by time, one for each change
  Seconds replica_time;              // of all replicas, from the begin of their start-up
  Seconds time;
  int most_replicas = 0;  // at once
  std::int64_t num_starts = 0;
  std::int64_t num_stops = 0;
  [[nodiscard]] double mean_replicas() const {
    return time > Seconds(0) ? replica_time / time : counts.empty() ? 0 : counts.front().ready;
  }
};

// Data-parallel ranks that wait for each other.
struct RankMetrics {
  double balance = 1;         // of the time of ranks in steps, mean over slowest
  std::vector<Seconds> wait;  // of each rank, the mean of a step
};

// Decodes that draft tokens and verify them, of measured requests.
struct SpeculationMetrics {
  double acceptance_length = 0;  // tokens that a verification makes, the mean; 1 to drafts + 1
  Seconds draft;                 // in steps, of the passes that draft
  double draft_share = 0;        // of the time of steps
};

// All figures are of the measured requests, those after the warm-up and before the drain: request
// by request, and where a figure is of steps (num_steps, mean_batch, KV utilisation, basis, busy)
// of the steps that compute at least one token of a measured request.
struct ServingMetrics {
  std::int64_t num_requests = 0;
  std::int64_t output_tokens = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;
  // TPOT = (e2e - ttft) / (output - 1), requests with >= 2. ITL: each time between two tokens.
  Quantiles ttft_s, tpot_s, itl_s, e2e_s;
  Seconds duration;  // first arrival to last finish
  // Rates are over `duration`; where a drain follows, over the time in which the measured requests
  // come: that of a service which stays full.
  double output_tokens_per_s = 0;
  double requests_per_s = 0;
  double goodput_requests_per_s = 0;  // requests that meet the limits of each request, per second
  double slo_attainment = 0;          // share of requests that do
  double kv_utilisation_mean = 0;     // over the time of steps
  double kv_utilisation_max = 0;
  std::int64_t num_preemptions = 0;
  std::int64_t num_steps = 0;
  double mean_batch = 0;  // sequences per step
  double busy = 0;        // share of replicas' time, first arrival to last finish, in steps
  BasisShares basis;
  Joules work_energy;  // of the work of the steps (sim/cost/energy.h); 0: not known
  LoadMetrics load;
  std::vector<SloCheck> slo;
  std::optional<DisaggregationMetrics> disaggregation;
  std::optional<RankMetrics> ranks;       // where replicas have more than one
  std::optional<KvTierMetrics> kv_tiers;  // where there are some
  std::optional<SpeculationMetrics> speculation;
  std::optional<SessionMetrics> sessions;
  std::optional<AutoscalingMetrics> autoscaling;
  // Where experts' load changes or they are placed anew.
  std::optional<ExpertMetrics> experts;
};

struct ServiceResult {
  std::vector<RequestRecord> requests;  // by id
  std::vector<StepRecord> steps;        // by (start, replica); empty with a store
  std::shared_ptr<const StepStore> step_store;
  ServingMetrics metrics;
};

// The steps by (start, replica), wherever they are.
void for_each_step(const ServiceResult& result,
                   const std::function<void(const StepRecord&)>& visit);

// One call at a time, from whichever thread finished the request.
using Progress = std::function<void(std::int64_t done, std::int64_t total)>;

// Whether requests come at times of their own: not in a closed loop, nor all at the start.
bool arrives_by_itself(const Workload& workload);

// Metrics of sessions, and of the load where requests come at times of their own.
void add_load_metrics(const Workload& workload, std::span<const ReplicaTotals* const> totals,
                      ServiceResult& result);

// What the workload asks of the service instead of what `config` says: no front end when it is
// offline, room for all of a static batch. Throws as `serve` does.
ServiceConfig checked_config(const ServiceConfig& config, const Workload& workload);
// Records of requests that have not been sent yet, by id.
std::vector<RequestRecord> new_records(const Workload& workload);

// `make_backend(replica)` is called once per replica. Throws std::invalid_argument for a request
// that can never run (longer than max_model_len or than the whole KV cache), a zero-length prompt
// or output, arrivals that are unsorted or not finite: the message names the request.
ServiceResult serve(const Workload& workload, const ServiceConfig& config, const Slo& slo,
                    const std::function<std::unique_ptr<StepBackend>(int replica)>& make_backend,
                    const Progress& progress = {});

}  // namespace orrery
