#include "kernels/execute/even_exchange.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/comm/collectives/collective.h"
#include "kernels/execute/collective_operands.h"
#include "kernels/rows/embedding/embedding.h"

namespace orrery {
namespace {

using cuda::Communicator;
using cuda::nccl;
using cuda::Stream;

// Contiguous rows, or the scales of fp8 ones.
struct Rows {
  std::byte* data = nullptr;
  std::int64_t count = 0;
  std::int64_t bytes = 0;  // of a row
  [[nodiscard]] std::byte* at(std::int64_t row) const { return data + row * bytes; }
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(count * bytes); }
};

// What an operand has: its rows, then their scales, if any.
std::vector<Rows> rows_in(const CollectiveContext& context, const Operand& operand) {
  if (operand.data == nullptr) refuse(context, "of rows that are not on all ranks");
  const std::int64_t count = rows_of(*operand.tensor);
  std::vector<Rows> rows{{bytes_at(operand), count, bytes_in(*operand.tensor) / count}};
  if (operand.scales != nullptr) {
    rows.push_back({reinterpret_cast<std::byte*>(operand.scales), count, sizeof(float)});
  }
  return rows;
}

void copy_rows(const Stream& stream, const std::byte* from, const Rows& to, std::int64_t row,
               std::int64_t count) {
  ORRERY_CUDA(cudaMemcpyAsync(to.at(row), from, static_cast<std::size_t>(count * to.bytes),
                              cudaMemcpyDeviceToDevice, stream.get()));
}

// Columns of rows that lie `stride` bytes apart, one behind the other.
struct Packing {
  const std::byte* from = nullptr;
  std::int64_t stride = 0;
  Rows to;
};
void pack(const Stream& stream, const Packing& packing) {
  const Rows& to = packing.to;
  const auto width = static_cast<std::size_t>(to.bytes);
  ORRERY_CUDA(cudaMemcpy2DAsync(
      to.data, width, packing.from, static_cast<std::size_t>(packing.stride), width,
      static_cast<std::size_t>(to.count), cudaMemcpyDeviceToDevice, stream.get()));
}

// Rows of all ranks, and those of them that the rank takes.
struct GatherAndPick {
  Rows share;
  Rows all;
  const std::int32_t* sources = nullptr;
  Rows taken;
};
void gather(const Stream& stream, const Communicator& communicator, const GatherAndPick& call) {
  nccl_collective(communicator, stream,
                  {.kind = CollectiveKind::kAllGather,
                   .dtype = DType::kInt8,
                   .count = static_cast<std::int64_t>(call.all.size()),
                   .input = call.share.data,
                   .output = call.all.data});
}
void pick(const Stream& stream, const GatherAndPick& call) {
  constexpr std::int64_t kElement = sizeof(bf16);
  embedding(stream, call.sources, reinterpret_cast<const bf16*>(call.all.data),
            reinterpret_cast<bf16*>(call.taken.data), call.taken.count, call.taken.bytes / kElement,
            call.all.count);
}
void check(const CollectiveContext& context, const GatherAndPick& call) {
  const std::int64_t ranks = context.group.communicator(context.rank).size();
  if (call.share.count * ranks != call.all.count) {
    refuse(context, "of " + std::to_string(call.share.count) + " rows on each of " +
                        std::to_string(ranks) + " ranks into " + std::to_string(call.all.count));
  }
  if (call.share.bytes != call.all.bytes || call.share.bytes != call.taken.bytes ||
      call.share.bytes % sizeof(bf16) != 0) {
    refuse(context, "of rows of " + std::to_string(call.share.bytes) + " bytes into rows of " +
                        std::to_string(call.taken.bytes) + ", expected as many, and even");
  }
}

Launch bind_gathers(const CollectiveContext& context, std::vector<Packing> packings,
                    std::vector<GatherAndPick> calls) {
  for (const GatherAndPick& call : calls) check(context, call);
  return [packings = std::move(packings), calls = std::move(calls),
          &communicator = context.group.communicator(context.rank)](const Stream& stream) {
    for (const Packing& packing : packings) pack(stream, packing);
    ORRERY_NCCL(nccl().group_start());
    for (const GatherAndPick& call : calls) gather(stream, communicator, call);
    ORRERY_NCCL(nccl().group_end());
    for (const GatherAndPick& call : calls) pick(stream, call);
  };
}

// Of each tensor all ranks' rows, in the second half of what is written, then in the first half
// those that the rank takes.
Launch bind_gathered(const CollectiveContext& context, const std::int32_t* sources) {
  const std::size_t count = context.reads.size();
  if (context.writes.size() != 2 * count) {
    refuse(context, "of even parts, expected a tensor to take and one of all rows for each");
  }
  std::vector<Packing> packings;
  std::vector<GatherAndPick> calls;
  for (std::size_t i = 0; i < count; ++i) {
    const Operand& view = context.reads[i];
    std::vector<Rows> shares = rows_in(context, view);
    if (view.num_columns > 0) {
      Rows& whole = shares.front();
      const std::int64_t element = whole.bytes / view.tensor->axes.back().size;
      Rows packed{.count = whole.count, .bytes = element * view.num_columns};
      packed.data =
          context.resources.scratch("columns of rows " + std::to_string(i), packed.size());
      packings.push_back(
          {.from = whole.data + element * view.first_column, .stride = whole.bytes, .to = packed});
      whole = packed;
    }
    const std::vector<Rows> all = rows_in(context, context.writes[count + i]);
    const std::vector<Rows> taken = rows_in(context, context.writes[i]);
    if (all.size() != shares.size() || taken.size() != shares.size()) {
      refuse(context, "of even parts into rows of another format");
    }
    for (std::size_t at = 0; at < shares.size(); ++at) {
      calls.push_back(
          {.share = shares[at], .all = all[at], .sources = sources, .taken = taken[at]});
    }
  }
  return bind_gathers(context, std::move(packings), std::move(calls));
}

// What a rank has of one tensor, or of several whose rows follow each other, and what it gets.
struct Returned {
  std::vector<Rows> parts;
  Rows to;
  [[nodiscard]] std::int64_t count() const {
    std::int64_t rows = 0;
    for (const Rows& part : parts) rows += part.count;
    return rows;
  }
  // Runs lie in one of the tensors: prompts are in the first, decodes in the second.
  [[nodiscard]] const std::byte* at(std::int64_t row) const {
    auto part = parts.begin();
    for (; row >= part->count; ++part) row -= part->count;
    return part->at(row);
  }
};

std::vector<Returned> returned(const CollectiveContext& context) {
  if (context.writes.size() != 1) refuse(context, "of own rows, expected them in one tensor");
  std::vector<Returned> result;
  for (const Rows& to : rows_in(context, context.writes.front())) {
    result.push_back({.parts = {}, .to = to});
  }
  for (const Operand& read : context.reads) {
    const std::vector<Rows> rows = rows_in(context, read);
    if (read.num_columns > 0 || rows.size() != result.size()) {
      refuse(context, "of own rows, expected whole ones of the same format");
    }
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].bytes != result[i].to.bytes) refuse(context, "of own rows of another size");
      result[i].parts.push_back(rows[i]);
    }
  }
  return result;
}

// Rows behind those that come are padding.
void zero_padding(const Stream& stream, const Rows& to, const std::vector<RowRun>& runs, int own) {
  std::int64_t count = 0;
  for (const RowRun& run : runs) count += run.to == own ? run.count : 0;
  if (count == to.count) return;
  ORRERY_CUDA(cudaMemsetAsync(
      to.at(count), 0, static_cast<std::size_t>((to.count - count) * to.bytes), stream.get()));
}

void exchange(const Stream& stream, const Communicator& communicator, const Returned& tensor,
              const std::vector<RowRun>& runs, int own) {
  for (const RowRun& run : runs) {
    const auto bytes = static_cast<std::size_t>(run.count * tensor.to.bytes);
    if (run.from == own && run.to != own) {
      ORRERY_NCCL(nccl().send(tensor.at(run.from_row), bytes, ncclInt8, run.to, communicator.get(),
                              stream.get()));
    }
    if (run.to == own && run.from != own) {
      ORRERY_NCCL(nccl().recv(tensor.to.at(run.to_row), bytes, ncclInt8, run.from,
                              communicator.get(), stream.get()));
    }
  }
}

Launch bind_runs(const CollectiveContext& context, const std::vector<RowRun>& runs,
                 std::vector<Returned> tensors) {
  return [tensors = std::move(tensors), &runs, own = context.group.place(context.rank),
          &communicator = context.group.communicator(context.rank)](const Stream& stream) {
    for (const Returned& tensor : tensors) {
      zero_padding(stream, tensor.to, runs, own);
      for (const RowRun& run : runs) {
        if (run.from != own || run.to != own) continue;
        copy_rows(stream, tensor.at(run.from_row), tensor.to, run.to_row, run.count);
      }
    }
    ORRERY_NCCL(nccl().group_start());
    for (const Returned& tensor : tensors) exchange(stream, communicator, tensor, runs, own);
    ORRERY_NCCL(nccl().group_end());
  };
}

}  // namespace

Launch bind_even_exchange(const CollectiveContext& context) {
  const EvenTables& tables = *context.even;
  const bool is_to_even = context.move == RowMove::kToEven;
  if (std::get<CommOp>(context.op.body).kind == CollectiveKind::kAllGather) {
    if (context.move == RowMove::kToOwn) return bind_gathered(context, tables.own_sources);
    return bind_gathered(context, is_to_even ? tables.even_sources : tables.sampled_sources);
  }
  if (tables.is_captured) {
    refuse(context,
           "of as many rows as change ranks in a step that is captured, expected eager mode, or "
           "decodes alone");
  }
  std::vector<Returned> tensors = returned(context);
  const Returned& rows = tensors.front();
  const std::int64_t given = is_to_even ? tables.own.tokens : tables.rows;
  const std::int64_t taken = is_to_even ? tables.rows : tables.own.seqs;
  if (rows.count() != given || rows.to.count != taken) {
    refuse(context, "of " + std::to_string(rows.count()) + " rows into " +
                        std::to_string(rows.to.count) + ", expected " + std::to_string(given) +
                        " and " + std::to_string(taken));
  }
  return bind_runs(context, is_to_even ? tables.to_even : tables.to_sampled, std::move(tensors));
}

}  // namespace orrery
