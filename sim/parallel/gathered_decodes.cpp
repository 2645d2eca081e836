#include "sim/parallel/gathered_decodes.h"

#include <string>

namespace orrery {

GatheredDecodes::GatheredDecodes(Rewrite& rewrite, const ContextRows& rows, int cp)
    : rewrite_(rewrite), rows_(rows), cp_(cp) {}

TensorId GatheredDecodes::add_tensor(const TensorView& own) {
  const Axis& columns = rewrite_.tensor(own).axes.back();
  const Axis viewed = own.is_whole() ? columns : Axis{columns.name, own.num_columns};
  const std::string suffix = own.is_whole() ? "" : std::to_string(own.first_column);
  return rewrite_.add_tensor_like(
      own, ".decodes" + suffix, {{std::string(axis::kDecodes), rows_.gathered_decodes()}, viewed});
}

void GatheredDecodes::gather(const Op& op, TensorViews& reads) {
  TensorViews own;
  TensorViews all;
  Bytes bytes;
  for (TensorView& read : reads) {
    if (rewrite_.tensor(read).role == TensorRole::kKvCache) continue;
    const auto [known, is_new] = known_.try_emplace({read.tensor, read.first_column}, -1);
    if (is_new) {
      known->second = add_tensor(read);
      own.push_back(read);
      all.emplace_back(known->second);
      bytes += bytes_of(rewrite_.tensor(known->second)) / cp_;
    }
    read = known->second;
  }
  if (own.empty()) return;
  rewrite_.insert_collectives(op.name + ".all_gather",
                              {.kind = CollectiveKind::kAllGather,
                               .dtype = rewrite_.tensor(all.front()).dtype,
                               .bytes_per_rank = bytes},
                              rewrite_.groups_of(rewrite_.group(op.ranks), cp_, 1), own, all);
}

}  // namespace orrery
