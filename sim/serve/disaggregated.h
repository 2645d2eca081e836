#pragma once

// Prefill and decode on replicas of their own (prefill-decode disaggregation):
//
//   client --> router --> prefill replica: prompt, first token
//                              | the KV blocks of the prompt, once the decode replica has set as
//                              v many aside; the prefill replica keeps its own until then
//   client <------------- decode replica: all other tokens, batching continuously
//
// A transfer runs beside the steps of both sides. No prompt stands in a step of a decode replica,
// unless it preempted a request, which it then computes again itself.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "sim/serve/serve.h"
#include "sim/serve/transfer.h"
#include "sim/units/units.h"

namespace orrery {

struct DisaggregatedConfig {
  // Each side's replicas, engine and KV blocks; block_size is the same. `prefill.router` chooses
  // among prefill replicas and `decode.router`, which is not prefix_aware, among decode replicas,
  // when the first token has been made. Decode replicas have no prefix cache.
  ServiceConfig prefill;
  ServiceConfig decode;
  // [prefill ranks, decode ranks], the data-parallel ones of all replicas of a side in order.
  std::vector<TransferLink> links;
  Bytes kv_block_per_gpu;  // of one KV block on the GPU that sends or receives most
  Bytes kv_block;          // of all that move
  // Above 0: layers move while later ones are computed, so many layers of equal bytes. A decode
  // replica is then chosen, and sets blocks aside, as the step begins that ends the prompt.
  std::int64_t num_moved_layers = 0;
};

// Throws std::invalid_argument for what cannot be served so, naming the side where it is one's.
void check_disaggregated(const Workload& workload, const ServiceConfig& prefill,
                         const ServiceConfig& decode);

// Whole blocks of the prompt move, and its states.
[[nodiscard]] std::int64_t transferred_blocks(const DisaggregatedConfig& config,
                                              const Request& request);

// Prefill replicas are numbered from 0, decode replicas follow. `make_backend(replica)` is called
// once for each. Requests with one output token end on their prefill replica. The result does not
// depend on any num_threads. Throws std::invalid_argument as serve() does, naming the side, and for
// a static batch or an offline workload.
ServiceResult serve_disaggregated(
    const Workload& workload, const DisaggregatedConfig& config, const Slo& slo,
    const std::function<std::unique_ptr<StepBackend>(int replica)>& make_backend,
    const Progress& progress = {});

}  // namespace orrery
