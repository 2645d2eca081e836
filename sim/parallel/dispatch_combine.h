#pragma once

// One layer of routed experts whose tokens are data-parallel: the ops of the source with the
// dispatch and combine in between (sim/parallel/expert_flows.h draws it).

#include <string>
#include <string_view>
#include <vector>

#include "sim/parallel/flow_writer.h"
#include "sim/parallel/rewrite.h"
#include "sim/parallel/routed_layer.h"
#include "sim/parallel/token_chunks.h"

namespace orrery {

// What happens between ranks.
struct DispatchKind {
  bool is_graph = false;
  bool is_dedup = false;
  bool is_copied = false;  // rows and results, by copy engines
};
DispatchKind dispatch_kind(const Mesh& mesh);

// Sizes of dims that differ between ranks: rows of a rank's tokens; rows and experts of a rank's
// block.
std::vector<FlowWriter::Size> sent_sizes(const ExpertGrid& grid, int rank);
std::vector<FlowWriter::Size> computed_sizes(const ExpertGrid& grid, int rank);

class DispatchCombine {
 public:
  // All outlive it; `write` has begun the layer. With dedup there is one chunk.
  DispatchCombine(const Plan& source, const Mesh& mesh, Rewrite& rewrite, FlowWriter& write,
                  const RoutedLayer& layer, const std::vector<TokenChunk>& chunks);

  // Writes everything after the shuffles, the last of which is `shuffle_op` of the new plan. Throws
  // std::invalid_argument when the layer has no scatter of its own.
  void run(OpId shuffle_op, const std::string& prefix);

  // With dedup: the output of which ranks have slices now, and the slice; else -1.
  [[nodiscard]] TensorId output() const { return output_; }
  [[nodiscard]] TensorId output_slice() const { return output_slice_; }

 private:
  using Ids = FlowWriter::Ids;
  using Size = FlowWriter::Size;

  // A chunk of the layer's tokens and what there is of it so far.
  struct Flow {
    const TokenChunk& chunk;
    TensorId counts = -1;
    TensorId num_rows = -1;
    TensorId rows = -1;
    TensorId recv_counts = -1;
    TensorId received = -1;
    TensorId results = -1;
    TensorId split = -1;
    TensorId returned = -1;
    std::vector<OpId> split_ops;
  };

  [[nodiscard]] const Op& op_at(OpId id) const {
    return source_.ops()[static_cast<std::size_t>(id)];
  }
  [[nodiscard]] static std::string named(std::string_view name, const Flow& flow) {
    return std::string(name) + flow.chunk.suffix;
  }
  [[nodiscard]] static double computed_rows(const Flow& flow, int rank);
  [[nodiscard]] Bytes travelling(const Flow& flow, int rank, DType dtype) const;
  // Rows that a rank may receive from all.
  [[nodiscard]] std::int64_t bound(const Flow& flow) const {
    return flow.chunk.grid.block_bound() * mesh_.dp;
  }
  // Op `id` of the layer on the chunk.
  void place(const Flow& flow, OpId id, const Op& op, const FlowWriter::SizesOf& sizes);

  void send_counts();
  void gather(const Flow& flow);
  void wait_for_counts(const std::string& prefix);
  void dispatch(Flow& flow);
  void dispatch_exact(Flow& flow);
  void dispatch_padded(Flow& flow);
  void place_shared_part_1(OpId shuffle_op);
  void place_shared_part_2();
  void place_shared(OpId id, const std::vector<OpId>& after);
  [[nodiscard]] Op shuffling(const std::string& name, std::string_view kernel, DType dtype,
                             Ids reads, Ids writes) const;
  void compute(Flow& flow, const std::string& prefix);
  void collect(Flow& flow);
  void scatter(const Flow& flow);
  void slice_columns(Op& op);

  const Plan& source_;
  const Mesh& mesh_;
  Rewrite& rewrite_;
  FlowWriter& write_;
  const RoutedLayer& layer_;
  DispatchKind kind_;
  bool carries_counts_;  // rows and counts travel together
  int stream_;           // of the collectives: 0 where nothing runs beside them
  int ways_;             // in how many slices a row travels
  GroupId ranks_;        // of the new plan
  DType rows_dtype_;
  std::vector<Flow> flows_;
  std::vector<OpId> counts_ops_;
  TensorId output_ = -1;
  TensorId output_slice_ = -1;
};

}  // namespace orrery
