#pragma once

// How a communication op of a plan becomes launches on one of its ranks.

#include <span>

#include "kernels/binding/bind_context.h"
#include "kernels/binding/bind_resources.h"
#include "kernels/execute/communicators.h"
#include "kernels/execute/row_moves.h"
#include "kernels/execute/side_layout.h"
#include "sim/plan/plan.h"

namespace orrery {

// How ranks of two sides reach each other's memory.
struct SideAccess {
  const SideWorkspace* workspace = nullptr;  // null: NCCL moves the rows
  const SideLayout* layout = nullptr;
  Task task;
};

struct EvenTables;  // kernels/execute/even_exchange.h
class RankTeam;     // kernels/execute/rank_team.h

struct CollectiveContext {
  const Plan& plan;
  const Op& op;  // with a CommOp
  int rank = 0;
  std::span<const Operand> reads;  // null data where the tensor is not on this rank
  std::span<const Operand> writes;
  const CommGroup& group;
  BindResources& resources;         // of this rank's stream
  BindResources& kernel_resources;  // of the stream of its kernels
  SideAccess sides;
  const RankTeam& team;  // whose threads launch the op
  // Of the op's micro-batch, and the layer of the rank's cache that it reads; -1: none.
  const StepTables& tables;
  const KvPool& kv;
  std::int64_t kv_layer = -1;
  // Of data-parallel ranks with even parts of all ranks' rows; null: the plan has none.
  RowMove move = RowMove::kNone;
  const EvenTables* even = nullptr;
};

// all_reduce by our own kernels where choose_all_reduce() says so and the group has receive areas,
// everything else by NCCL.
//   all_gather      along the one axis in which what is read and what is written differ; shares
//                   that are padded (n shares are longer than the whole) are cut. fp8 with its row
//                   scales. Of tokens into sampled rows, those of each rank.
//   reduce_scatter  of rows, the last share padded, or of columns
//   send_recv       from the rank on which what is read is present (side_exchange.h)
//   broadcast       from the first rank on which what is read is present
//   all_to_all      equal parts; or, of rows with counts of what is sent and received ([experts] or
//                   [ranks, experts] i32, in the order of the ranks, that a d2h_sync op has
//                   copied), as many rows from and to each rank as these say, without gaps, by
//                   NCCL or copy engines (copied_exchange.h); or,
//                   between two sides, rows from the one to the other (side_exchange.h); or
//                   columns, [rows, columns] into [ranks, rows, columns / ranks], or back,
//                   [ranks * rows, columns / ranks] into [rows, columns]
// reduce_scatter along columns where the share is narrower than the whole. all_gather and
// reduce_scatter may read counts besides (how many rows matter), all_gather and all_to_all into
// columns that are split send the rank's own columns of what they read. all_gather and all_to_all
// take several tensors, each into one of its own; all_gather puts parts one behind the other too
// where the whole has one more axis in front, [ranks, ...]. Of a cache, and of heads into all rows
// of prompts: context_exchange.h. Of rows that data-parallel ranks have even parts of:
// even_exchange.h. Throws std::invalid_argument for tensors that do not fit the
// kind.
Launch bind_collective(const CollectiveContext& context);
// Whether our own kernel serves it.
bool is_own_all_reduce(const CollectiveContext& context);

}  // namespace orrery
