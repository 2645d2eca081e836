#pragma once

// Expert parallelism of design shuffling (the MetaShuffling runtimes, PyTorch blog, 2025-05-12).
// Tokens are data-parallel, experts lie on blocks of ranks (ExpertGrid). A rank routes its own
// tokens and sorts their rows by expert, which is the order of the ranks that own them.
//
// T tokens on each rank, K choices, E experts of the range, L of them on a rank, P = dp ranks of a
// data-parallel group. Streams: 0 the routed path, 1 the shared expert (if the plan has it there),
// 2 the collectives.
//
//   eager                                            graph
//   0 shuffle                                        0 shuffle
//   2 counts.all_to_all   [E] -> [P, L]              2 counts.all_gather    [E] -> [P, E]
//   0 gather                                         0 gather
//   1 shared, part 1                                 2 dispatch.all_gather  [B, D] -> [P, B, D]
//     sync: counts of both directions to the host    1 shared, part 1
//   2 dispatch.all_to_all [B, D] -> [P C, D], exact  0 combine, padded: its slice of the experts
//   0 combine, experts, split                        0 experts, split, padded
//   2 return.all_to_all   [P C, D] -> [B, D], exact  2 return.all_to_all    [P, C, D] -> [P, C, D]
//   1 shared, part 2                                 1 shared, part 2
//   0 scatter                                        0 scatter, padded
//
// Without a shared expert nothing runs beside the collectives of `graph`: it is on stream 0, and
// one all_gather takes rows and counts.
//
// Memory is bounded by what routing may do: a group of N experts gets at most min(N, K) rows of a
// token, so B = T min(E, K) and C = T min(L, K). Kernels compute the rows that are there, by counts
// on the device. The all_to_alls of `eager` read the counts too: op.reads = {rows, counts of what
// is sent, counts of what is received}, each [.., P x L] in the order of the ranks, sums over L
// being the rows to or from a rank; `bytes_per_rank` is what is expected (of the rank that sends or
// receives most, in terms of an all_to_all of equal parts).
//
// `copies` is `eager` but for who moves rows and results: copy engines (CommOp::is_copied), so that
// no exchange waits for SMs or takes some. Counts are an all_to_all of kernels all the same.
//
// The shared expert is split by its ops: part 1 is all but its last GEMM (two thirds of the work),
// part 2 that GEMM. Halves by tokens would read all weights twice, halves by columns would need
// another addition of [T, D]; this reads and computes nothing more, and launches no more.
//
// With mesh.moe_chunks all from the shuffle on is done for one part of the tokens after the other
// (sim/parallel/token_chunks.h).
//
// Dedup: the ranks of a tp group are a node and hold the same tokens, the ranks of a data-parallel
// group lie on different nodes, and ep == dp, so all ranks of a node need the same rows and each
// leaves a part of the sum of their results. Then only a slice of D / tp columns of each row goes
// from rank to rank, and the rest is done inside the node:
//
//   dispatch.all_to_all | all_gather   [.., D] -> [.., D / tp]   slice tp_rank of the columns
//   dispatch.columns    all_gather     [.., D / tp] -> [.., D]   within tp
//   return.columns      reduce_scatter [.., D] -> [.., D / tp]   within tp, along columns
//   return.all_to_all                  [.., D / tp] -> [.., D / tp]
//   shared.columns      reduce_scatter [T, D] -> [T, D / tp]
//   scatter             on D / tp columns
//   scatter.columns     all_gather     [T, D / tp] -> [T, D]     in place of the tp all_reduce
//
// A collective whose output is narrower than its input along the last axis (all_to_all, all_gather)
// sends the slice at tp_rank; all_gather and reduce_scatter of whole tensors that differ in the
// last axis work on columns. Where such an op reads counts (eager), rows beyond their sum need not
// travel. All ranks of a node sort rows alike since index_shuffling is deterministic: no broadcast
// of the order is needed.

#include "sim/parallel/parallel.h"
#include "sim/plan/plan.h"
#include "sim/plan/streams.h"

namespace orrery {

// Applied by expert_pass to plans that have_shuffling. Ops of ranks that compute different amounts
// (mesh.expert_load) become one op for each amount, on the ranks that have it. With dp 1 nothing
// travels: each rank takes the rows of its experts. Throws std::invalid_argument when the mesh has
// an expert_comm of the fused op, dedup without dp > 1, tp > 1 and ep == dp, a grouped gemm that
// adds to tokens which are elsewhere, or as check_moe_chunks, ExpertGrid and routed_layer do.
Plan expert_flows_pass(const Plan& plan, const Mesh& mesh);

}  // namespace orrery
