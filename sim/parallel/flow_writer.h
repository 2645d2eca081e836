#pragma once

// Tensors and ops that dispatching and combining routed rows adds to a layer
// (sim/parallel/expert_flows.cpp): kernels that differ between ranks, and collectives across and
// inside tensor-parallel groups.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/parallel/rewrite.h"

namespace orrery {

class FlowWriter {
 public:
  using Ids = TensorViews;
  using Size = std::pair<std::string_view, std::int64_t>;  // axis of a dim, its size
  using SizesOf = std::function<std::vector<Size>(int rank)>;
  using BytesOf = std::function<Bytes(int rank)>;

  FlowWriter(Rewrite& rewrite, const Mesh& mesh) : rewrite_(rewrite), mesh_(mesh) {}

  // Names from now on start with `prefix`, tensors and ops are on `ranks` of the new plan, rows
  // have `hidden` columns.
  void begin_layer(std::string prefix, GroupId ranks, std::int64_t hidden);

  // The columns of a row, or those of the slice at a rank's place in tp where ways is tp.
  [[nodiscard]] Axis hidden(std::int64_t ways) const;
  [[nodiscard]] Axis peers() const { return {.name = "peers", .size = mesh_.dp}; }
  static Axis rows(std::int64_t size) {
    return {.name = std::string(axis::kRoutedRows), .size = size};
  }
  static Axis experts(std::int64_t size) {
    return {.name = std::string(axis::kExperts), .size = size};
  }
  TensorId add(std::string_view name, DType dtype, std::vector<Axis> axes);
  // A new tensor like `id` with 1 / tp of its columns.
  TensorId add_slice(std::string_view name, TensorId id);
  [[nodiscard]] Bytes row_bytes(DType dtype, std::int64_t ways) const;
  [[nodiscard]] Bytes whole(TensorId id) const { return bytes_of(rewrite_.tensor(id)); }

  // The kernel op once for each set of sizes that ranks have, on those ranks, its dims of these
  // axes set; returns the ops. Names get the first rank where there are several. A size below what
  // the kernel takes is raised to that.
  std::vector<OpId> place(const Op& op, const SizesOf& sizes_of);
  // The same for what stands for op `id` of the source.
  std::vector<OpId> place(OpId id, const Op& op, const SizesOf& sizes_of);

  // A collective for each data-parallel group (equal tp rank), perhaps by copy engines, or each
  // tensor-parallel group; bytes_of(first rank of the group). Return the ops.
  std::vector<OpId> across(std::string_view name, CollectiveKind kind, const BytesOf& bytes,
                           const Ids& reads, const Ids& writes, int stream, bool is_copied = false);
  std::vector<OpId> inside(std::string_view name, CollectiveKind kind, const BytesOf& bytes,
                           const Ids& reads, const Ids& writes, int stream);

 private:
  void set_sizes(KernelOp& kernel, const std::vector<Size>& sizes) const;
  std::vector<OpId> collectives(std::string_view name, CollectiveKind kind,
                                const std::vector<GroupId>& groups, const BytesOf& bytes,
                                const Ids& reads, const Ids& writes, int stream,
                                bool is_copied = false);

  Rewrite& rewrite_;
  const Mesh& mesh_;
  std::string prefix_;
  GroupId ranks_ = 0;
  std::int64_t hidden_ = 1;
};

}  // namespace orrery
