#pragma once

// Where a traced launch of fused_moe writes when its blocks did what (trace.h), and what stands in
// its place where nothing is traced: nothing, of which no instruction is left.

#include <cstdint>

#include "kernels/experts/fused_moe/parts_sm90.cuh"
#include "kernels/experts/fused_moe/trace.h"

namespace orrery::fused_moe {

struct NoTrace {
  __device__ void begin() const {}
  __device__ void mark(Mark /*end_of*/) const {}
  __device__ void asks() const {}
  __device__ void takes(unsigned /*ticket*/, const Task& /*task*/) const {}
  __device__ void is_ready() const {}
  __device__ void finds_none() const {}
  __device__ void multiplies() const {}
  __device__ void has_written() const {}
  __device__ void has_counted() const {}
  __device__ void takes_rows() const {}
  __device__ void has_rows() const {}
  __device__ void leaves_rows(bool /*writes*/, RowsOf /*what*/, int /*tile*/) const {}
  __device__ void end() const {}
};

// In device memory, of all blocks.
struct TraceBuffers {
  BlockRecord* blocks;
  TaskRecord* tasks;
  RowsRecord* rows;
  std::int32_t most_tasks;  // of a block
  std::int32_t most_rows;
};

// Of one thread, which knows its part: thread 0 routing and the tasks that it hands out, the first
// of a warpgroup the tasks that this multiplies, any warp its rows.
class BlockTrace {
 public:
  __device__ explicit BlockTrace(const TraceBuffers& to)
      : block_(to.blocks + blockIdx.x),
        tasks_(to.tasks + static_cast<std::int64_t>(blockIdx.x) * to.most_tasks),
        rows_(to.rows + static_cast<std::int64_t>(blockIdx.x) * to.most_rows),
        most_tasks_(to.most_tasks),
        most_rows_(to.most_rows) {}

  __device__ void begin() {
    if (threadIdx.x != 0) return;
    block_->first = clocks();
    block_->begin = clock64();
    unsigned sm = 0;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    block_->sm = static_cast<std::int32_t>(sm);
  }
  __device__ void mark(Mark end_of) {
    if (threadIdx.x == 0) block_->marks[static_cast<int>(end_of)] = clock64();
  }
  // The producer's next ticket is on its way, and is the task's.
  __device__ void asks() { asked_ = clock64(); }
  __device__ void takes(unsigned ticket, const Task& task) {
    if (num_tasks_ < most_tasks_) {
      TaskRecord& record = tasks_[num_tasks_];
      record.taken = asked_;
      record.turn = clock64();
      record.ticket = static_cast<std::int32_t>(ticket);
      record.layer = task.step == Step::kFirst ? 1 : 2;
      record.expert = task.group;
      record.tile = task.tile;
      record.column = task.column;
      record.rows = task.rows;
    }
    ++num_tasks_;
  }
  __device__ void is_ready() {
    if (num_tasks_ <= most_tasks_) tasks_[num_tasks_ - 1].ready = clock64();
  }
  __device__ void finds_none() {
    block_->no_task = clock64();
    block_->num_tasks = num_tasks_;
  }
  // A warpgroup, in the order in which the producer hands tasks out.
  __device__ void multiplies() {
    if (is_first_of_group() && num_tasks_ < most_tasks_) {
      tasks_[num_tasks_].begin[group()] = clock64();
    }
  }
  __device__ void has_written() {
    if (is_first_of_group() && num_tasks_ < most_tasks_) {
      tasks_[num_tasks_].end[group()] = clock64();
    }
    ++num_tasks_;
  }
  // The task before the next one.
  __device__ void has_counted() {
    if (num_tasks_ <= most_tasks_) tasks_[num_tasks_ - 1].counted[group()] = clock64();
  }
  __device__ void takes_rows() { asked_ = clock64(); }
  __device__ void has_rows() { had_ = clock64(); }
  __device__ void leaves_rows(bool writes, RowsOf what, int tile) {
    if (!writes) return;
    const int at = atomicAdd(&block_->num_rows, 1);
    if (at >= most_rows_) return;
    rows_[at] = {.taken = asked_, .ready = had_, .end = clock64(), .what = what, .tile = tile};
  }
  // Behind all threads.
  __device__ void end() {
    if (threadIdx.x != 0) return;
    block_->end = clock64();
    block_->last = clocks();
  }

 private:
  // When the GPU's clock goes on.
  __device__ static ClockPair clocks() {
    const std::uint64_t before = now();
    std::uint64_t ns = now();
    std::int64_t cycles = clock64();
    while (ns == before) {
      ns = now();
      cycles = clock64();
    }
    return {.cycles = cycles, .ns = static_cast<std::int64_t>(ns)};
  }
  __device__ static int group() { return static_cast<int>(threadIdx.x) / 128 - 1; }
  __device__ static bool is_first_of_group() { return threadIdx.x % 128 == 0; }

  BlockRecord* block_;
  TaskRecord* tasks_;
  RowsRecord* rows_;
  std::int32_t most_tasks_;
  std::int32_t most_rows_;
  std::int32_t num_tasks_ = 0;
  std::int64_t asked_ = 0;
  std::int64_t had_ = 0;
};

}  // namespace orrery::fused_moe
