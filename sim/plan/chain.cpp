#include "sim/plan/chain.h"

#include <iterator>
#include <map>
#include <set>
#include <utility>

namespace orrery {

Plan chained(const Plan& layer, int count) {
  if (count == 1) return layer;
  Plan repeated = layer;
  const auto num_ops = static_cast<OpId>(layer.ops().size());
  repeated.add_repeat({.first = 0, .last = num_ops, .count = count});
  const Plan apart = unroll(repeated);
  Plan result;
  for (GroupId group = 0; group < apart.num_groups(); ++group) {
    const auto ranks = apart.ranks(group);
    result.add_group({ranks.begin(), ranks.end()});
  }
  for (const Split& split : apart.splits()) result.add_split(split);
  for (const Tensor& tensor : apart.tensors()) result.add_tensor(tensor);
  std::map<GroupId, OpId> ends;             // of the layer ahead: the last op of the ranks
  std::map<GroupId, OpId> latest;           // of this one
  std::set<std::pair<GroupId, int>> begun;  // ranks and streams
  for (Op op : apart.ops()) {
    if (std::ssize(result.ops()) % num_ops == 0) {
      ends = latest;
      begun.clear();
    }
    const bool is_first = begun.insert({op.ranks, op.stream}).second;
    if (is_first && ends.contains(op.ranks)) op.after.push_back(ends.at(op.ranks));
    latest[op.ranks] = static_cast<OpId>(result.ops().size());
    result.add_op(std::move(op));
  }
  return result;
}

std::string chained_name(const std::string& name, int layer, int count) {
  return count == 1 ? name : name + "#" + std::to_string(layer);
}

}  // namespace orrery
