#include "kernels/execute/host_counts.h"

#include <stdexcept>
#include <string>

#include "kernels/execute/collective_operands.h"

namespace orrery {
namespace {

HostCounts host_counts(const CollectiveContext& context, const Operand& counts,
                       const Operand& rows) {
  const std::int64_t size = std::ssize(context.group.ranks);
  const std::int64_t count = num_elements(*counts.tensor);
  const std::string named = "\"" + counts.tensor->name + "\"";
  if (counts.tensor->dtype != DType::kInt32 || count % size != 0) {
    refuse(context, "by counts " + named + ", " + std::to_string(count) + " of " +
                        std::string(to_text(counts.tensor->dtype)) +
                        "; expected i32, as many for each of " + std::to_string(size) + " ranks");
  }
  if (counts.host == nullptr) {
    refuse(context, "by counts " + named +
                        " that the host has not read; expected a d2h_sync op of them before it");
  }
  return {.counts = counts.host, .per_rank = count / size, .most = rows_of(*rows.tensor)};
}

}  // namespace

std::vector<std::int64_t> HostCounts::rows(int ranks, const char* what) const {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(ranks));
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < per_rank * ranks; ++i) {
    const std::int64_t count = counts[i];
    sum += count;
    if (count < 0 || sum > most) {
      throw std::runtime_error("all_to_all " + std::string(what) + " " + std::to_string(sum) +
                               " rows by its counts, expected 0 to " + std::to_string(most));
    }
    rows[static_cast<std::size_t>(i / per_rank)] += count;
  }
  return rows;
}

CountedRows counted_rows(const CollectiveContext& context) {
  const Operand input = context.reads[0];
  const Operand output = context.writes[0];
  if (input.data == nullptr || output.data == nullptr) {
    refuse(context, "of rows that are not on all ranks");
  }
  const std::int64_t bytes = bytes_in(*input.tensor) / rows_of(*input.tensor);
  if (bytes != bytes_in(*output.tensor) / rows_of(*output.tensor)) {
    refuse(context, "into rows of another size");
  }
  return {.input = input,
          .output = output,
          .row_bytes = bytes,
          .sent = host_counts(context, context.reads[1], input),
          .received = host_counts(context, context.reads[2], output)};
}

}  // namespace orrery
