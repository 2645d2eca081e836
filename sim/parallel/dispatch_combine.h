#pragma once

// One layer of routed experts whose tokens are data-parallel: the ops of the source with the
// dispatch and combine in between (sim/parallel/expert_flows.h draws it).

#include <string>
#include <string_view>
#include <vector>

#include "sim/parallel/flow_writer.h"
#include "sim/parallel/rewrite.h"
#include "sim/parallel/routed_layer.h"

namespace orrery {

// What happens between ranks.
struct DispatchKind {
  bool is_graph = false;
  bool is_dedup = false;
};
DispatchKind dispatch_kind(const Mesh& mesh);

// Sizes of dims that differ between ranks: rows of a rank's tokens; rows and experts of a rank's
// block.
std::vector<FlowWriter::Size> sent_sizes(const ExpertGrid& grid, int rank);
std::vector<FlowWriter::Size> computed_sizes(const ExpertGrid& grid, int rank);

class DispatchCombine {
 public:
  // All outlive it; `write` has begun the layer.
  DispatchCombine(const Plan& source, const Mesh& mesh, Rewrite& rewrite, FlowWriter& write,
                  const RoutedLayer& layer, const ExpertGrid& grid);

  // Writes everything after the shuffle, `shuffle_op` of the new plan. Throws std::invalid_argument
  // when the layer has no scatter of its own.
  void run(OpId shuffle_op, const std::string& prefix);

  // With dedup: the output of which ranks have slices now, and the slice; else -1.
  [[nodiscard]] TensorId output() const { return output_; }
  [[nodiscard]] TensorId output_slice() const { return output_slice_; }

 private:
  using Ids = FlowWriter::Ids;
  using Size = FlowWriter::Size;

  [[nodiscard]] const Op& op_at(OpId id) const {
    return source_.ops()[static_cast<std::size_t>(id)];
  }
  [[nodiscard]] double computed_rows(int rank) const;
  [[nodiscard]] Bytes travelling(int rank, DType dtype) const;

  void send_counts();
  void dispatch_exact(const std::string& prefix);
  void dispatch_padded();
  void place_shared_part_1(OpId shuffle_op);
  void place_shared_part_2();
  void place_shared(OpId id, const std::vector<OpId>& after);
  [[nodiscard]] Op shuffling(const std::string& name, std::string_view kernel, DType dtype,
                             Ids reads, Ids writes) const;
  void compute(const std::string& prefix);
  void collect();
  void scatter();
  void slice_columns(Op& op);

  const Plan& source_;
  const Mesh& mesh_;
  Rewrite& rewrite_;
  FlowWriter& write_;
  const RoutedLayer& layer_;
  const ExpertGrid& grid_;
  DispatchKind kind_;
  bool is_alone_;       // nothing runs beside the collectives
  int stream_;          // of the collectives
  int ways_;            // in how many slices a row travels
  GroupId ranks_;       // of the new plan
  std::int64_t bound_;  // rows that a rank may receive from all
  DType rows_dtype_;
  std::vector<OpId> counts_ops_;
  std::vector<OpId> split_ops_;
  TensorId counts_;
  TensorId num_rows_;
  TensorId rows_;
  TensorId recv_counts_ = -1;
  TensorId received_ = -1;
  TensorId results_ = -1;
  TensorId split_ = -1;
  TensorId returned_ = -1;
  TensorId output_ = -1;
  TensorId output_slice_ = -1;
};

}  // namespace orrery
