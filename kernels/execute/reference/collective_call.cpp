#include "kernels/execute/reference/collective_call.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/comm/collectives/reference.h"
#include "kernels/execute/rank_program.h"

namespace orrery::reference {
namespace {

using Ranks = std::vector<std::vector<double>>;

// A tensor as [outer, split, inner] around one axis.
struct AxisView {
  std::int64_t outer = 1;
  std::int64_t split = 1;
  std::int64_t inner = 1;
};

// Around the axis in which `a` and `b` differ; the first if in none.
AxisView around_difference(const Tensor& tensor, const Tensor& a, const Tensor& b) {
  std::size_t at = 0;
  for (std::size_t i = 0; i < a.axes.size(); ++i) {
    if (a.axes[i].size != b.axes[i].size) at = i;
  }
  AxisView view{.split = tensor.axes[at].size};
  for (std::size_t i = 0; i < tensor.axes.size(); ++i) {
    if (i < at) view.outer *= tensor.axes[i].size;
    if (i > at) view.inner *= tensor.axes[i].size;
  }
  return view;
}

// Copies rank `rank`'s part between the part and the whole; what lies beyond the whole is left.
template <typename Copy>
void for_part(const AxisView& part, const AxisView& whole, std::int64_t rank, const Copy& copy) {
  const std::int64_t first = rank * part.split;
  const std::int64_t count = std::clamp<std::int64_t>(whole.split - first, 0, part.split);
  for (std::int64_t i = 0; i < part.outer; ++i) {
    copy(i * part.split * part.inner, (i * whole.split + first) * whole.inner, count * part.inner);
  }
}

Ranks gather(const AxisView& part, const AxisView& whole, const Ranks& inputs) {
  std::vector<double> result(static_cast<std::size_t>(whole.outer * whole.split * whole.inner));
  for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
    for_part(part, whole, static_cast<std::int64_t>(rank),
             [&](std::int64_t from, std::int64_t to, std::int64_t count) {
               std::copy_n(inputs[rank].begin() + from, count, result.begin() + to);
             });
  }
  return Ranks(inputs.size(), result);
}

Ranks scatter(const AxisView& part, const AxisView& whole, const std::vector<double>& sum,
              std::size_t num_ranks) {
  Ranks results;
  for (std::size_t rank = 0; rank < num_ranks; ++rank) {
    std::vector<double> result(static_cast<std::size_t>(part.outer * part.split * part.inner));
    for_part(part, whole, static_cast<std::int64_t>(rank),
             [&](std::int64_t to, std::int64_t from, std::int64_t count) {
               std::copy_n(sum.begin() + from, count, result.begin() + to);
             });
    results.push_back(std::move(result));
  }
  return results;
}

Ranks side_by_side(const Tensor& input, const Tensor& output, const Ranks& blocks) {
  const std::int64_t rows = output.axes.front().size;
  const std::int64_t columns = output.axes.back().size;
  const std::int64_t of_block = input.axes.back().size;
  Ranks results;
  for (const std::vector<double>& own : blocks) {
    std::vector<double>& result = results.emplace_back(static_cast<std::size_t>(rows * columns));
    for (std::int64_t first = 0; first < columns; first += of_block) {
      for (std::int64_t row = 0; row < rows; ++row) {
        std::copy_n(own.begin() + first * rows + row * of_block,
                    std::min(of_block, columns - first), result.begin() + row * columns + first);
      }
    }
  }
  return results;
}

}  // namespace

Ranks run_collective(const std::string& name, CollectiveKind kind, const Tensor& input,
                     const Tensor& output, const Ranks& inputs) {
  if (brings_columns(kind, input, output, std::ssize(inputs))) {
    return side_by_side(input, output, collective(kind, inputs));
  }
  if (kind == CollectiveKind::kAllToAll) return collective(kind, inputs);
  if (kind == CollectiveKind::kAllGather && input.axes.size() + 1 == output.axes.size()) {
    return collective(kind, inputs);
  }
  if (kind == CollectiveKind::kReduceScatter && output.axes.size() + 1 == input.axes.size()) {
    return collective(kind, inputs);
  }
  if (input.axes.size() != output.axes.size()) {
    throw std::invalid_argument("op \"" + name + "\" reads and writes tensors of other axes");
  }
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return collective(kind, inputs);
    case CollectiveKind::kAllGather:
      return gather(around_difference(input, input, output),
                    around_difference(output, input, output), inputs);
    case CollectiveKind::kReduceScatter:
      return scatter(around_difference(output, input, output),
                     around_difference(input, input, output),
                     collective(CollectiveKind::kAllReduce, inputs).front(), inputs.size());
    case CollectiveKind::kSendRecv:
    case CollectiveKind::kAllToAll:
    case CollectiveKind::kBroadcast:
      break;
  }
  throw std::invalid_argument("op \"" + name + "\": " + std::string(to_text(kind)) +
                              " has no reference that runs plans");
}

std::vector<double> column_slice(const std::vector<double>& rows, std::int64_t width,
                                 std::int64_t count, std::int64_t first) {
  std::vector<double> slice;
  for (std::int64_t at = first; at < std::ssize(rows); at += width) {
    slice.insert(slice.end(), rows.begin() + at, rows.begin() + at + count);
  }
  return slice;
}

namespace {

// Rows for or from each of `ranks`.
std::vector<std::int64_t> rows_by_rank(const std::vector<double>& counts, std::size_t ranks) {
  std::vector<std::int64_t> rows(ranks);
  const std::size_t each = counts.size() / ranks;
  for (std::size_t i = 0; i < each * ranks; ++i) {
    rows[i / each] += static_cast<std::int64_t>(counts[i]);
  }
  return rows;
}

}  // namespace

Ranks all_to_all_v(const std::string& name, const Tensor& output, const Ranks& rows,
                   const Ranks& sent, const Ranks& received) {
  const std::int64_t columns = output.axes.back().size;
  Ranks results(rows.size(), std::vector<double>(static_cast<std::size_t>(num_elements(output))));
  std::vector<std::int64_t> filled(rows.size());  // rows that have arrived
  for (std::size_t from = 0; from < rows.size(); ++from) {
    std::int64_t at = 0;
    const std::vector<std::int64_t> parts = rows_by_rank(sent[from], rows.size());
    for (std::size_t to = 0; to < rows.size(); ++to) {
      const std::int64_t expected = rows_by_rank(received[to], rows.size())[from];
      const std::int64_t room = num_elements(output) / columns - filled[to];
      if (parts[to] != expected || expected > room) {
        throw std::invalid_argument(
            "op \"" + name + "\": rank " + std::to_string(from) + " sends " +
            std::to_string(parts[to]) + " rows to rank " + std::to_string(to) + ", which expects " +
            std::to_string(expected) + " and has room for " + std::to_string(room));
      }
      std::copy_n(rows[from].begin() + at * columns, expected * columns,
                  results[to].begin() + filled[to] * columns);
      at += expected;
      filled[to] += expected;
    }
  }
  return results;
}

}  // namespace orrery::reference
