#pragma once

// One layer of routed experts whose tokens are data-parallel and gathered whole (expert_comm:
// tokens), as engines do that gather over data-parallel ranks before experts.
//
//   0 router, on the rank's own T tokens
//   2 tokens.all_gather    [T, D] and scores [T, E] -> [P T, D], [P T, E] over the P ranks of a
//                          data-parallel group
//   0 shared, part 1       beside it
//   0 shuffle, gather, experts, scatter: tokens of all ranks, experts of the rank's block
//   2 tokens.reduce_scatter    [P T, D] -> [T, D]
//   0 shared, part 2       beside it, then the sum of both
//
// Without a shared expert all is on stream 0. A rank receives (P - 1) T tokens whatever they
// choose, where `graph` receives a row for each choice that its data-parallel group may compute.

#include <string>

#include "sim/parallel/flow_writer.h"
#include "sim/parallel/rewrite.h"
#include "sim/parallel/routed_layer.h"

namespace orrery {

class TokenExchange {
 public:
  // All outlive it; `write` has begun the layer.
  TokenExchange(const Plan& source, const Mesh& mesh, Rewrite& rewrite, FlowWriter& write,
                const RoutedLayer& layer, const ExpertGrid& grid);

  // Writes the layer from its shuffle on. Throws std::invalid_argument when it has no scatter of
  // its own.
  void run();

 private:
  [[nodiscard]] const Op& op_at(OpId id) const {
    return source_.ops()[static_cast<std::size_t>(id)];
  }
  // A tensor like `id` with the tokens of all data-parallel ranks.
  TensorId add_of_all(TensorId id);
  void gather_tokens();
  void place_shared(std::size_t first, std::size_t last);
  // `op` of the source with the tokens of all ranks and the experts of a block.
  [[nodiscard]] Op on_all_tokens(OpId id) const;
  void compute();
  void collect(TensorId base);

  const Plan& source_;
  const Mesh& mesh_;
  Rewrite& rewrite_;
  FlowWriter& write_;
  const RoutedLayer& layer_;
  const ExpertGrid& grid_;
  int stream_;  // of the collectives
  TensorId scores_;
  TensorId tokens_;
  TensorId output_;
  TensorId all_scores_ = -1;
  TensorId all_tokens_ = -1;
  TensorId all_outputs_ = -1;
  TensorId routed_ = -1;  // what is added up of them for the rank's own tokens
};

}  // namespace orrery
