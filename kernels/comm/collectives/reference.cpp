#include "kernels/comm/collectives/reference.h"

#include <stdexcept>
#include <string>

namespace orrery::reference {
namespace {

using Ranks = std::vector<std::vector<double>>;

std::vector<double> sum(const Ranks& inputs) {
  std::vector<double> total(inputs.front().size());
  for (const std::vector<double>& input : inputs) {
    for (std::size_t i = 0; i < total.size(); ++i) total[i] += input[i];
  }
  return total;
}

std::vector<double> part(const std::vector<double>& whole, std::size_t index, std::size_t parts) {
  const auto size = static_cast<std::ptrdiff_t>(whole.size() / parts);
  const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(index) * size;
  return {begin, begin + size};
}

void append(std::vector<double>& to, const std::vector<double>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

std::vector<double> output(CollectiveKind kind, const Ranks& inputs, std::size_t rank) {
  const std::size_t n = inputs.size();
  std::vector<double> result;
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return sum(inputs);
    case CollectiveKind::kReduceScatter:
      return part(sum(inputs), rank, n);
    case CollectiveKind::kBroadcast:
      return inputs[0];
    case CollectiveKind::kSendRecv:
      return rank == 1 ? inputs[0] : result;
    case CollectiveKind::kAllGather:
      for (const std::vector<double>& input : inputs) append(result, input);
      return result;
    case CollectiveKind::kAllToAll:
      for (const std::vector<double>& input : inputs) append(result, part(input, rank, n));
      return result;
  }
  return result;
}

}  // namespace

Ranks collective(CollectiveKind kind, const Ranks& inputs) {
  const bool divides = kind == CollectiveKind::kReduceScatter || kind == CollectiveKind::kAllToAll;
  for (const std::vector<double>& input : inputs) {
    if (input.size() != inputs.front().size() || (divides && input.size() % inputs.size() != 0)) {
      throw std::invalid_argument("a rank of " + std::to_string(inputs.size()) + " has " +
                                  std::to_string(input.size()) + " elements");
    }
  }
  Ranks outputs;
  for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
    outputs.push_back(output(kind, inputs, rank));
  }
  return outputs;
}

}  // namespace orrery::reference
