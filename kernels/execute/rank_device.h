#pragma once

// What one rank holds for the life of an executor: streams, weights, KV cache, tables, the arena,
// and what its memory went to.

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/binding/bind_context.h"
#include "kernels/binding/bind_resources.h"
#include "kernels/binding/kv_pool.h"
#include "kernels/cuda/handles.h"
#include "kernels/cuda/order_event.h"
#include "kernels/execute/device_memory.h"
#include "kernels/execute/executor.h"
#include "kernels/execute/rank_error.h"
#include "kernels/execute/step_tables.h"
#include "kernels/execute/watch.h"
#include "kernels/execute/weights.h"

namespace orrery {

struct CommGroup;  // kernels/execute/communicators.h

class RankDevice {
 public:
  // Makes the context of the current device, where others held memory before; allocate() takes the
  // rest, in the same thread. `watch` is told where the rank is.
  RankDevice(const ExecutorSetup& setup, int rank, std::optional<HeldMemory> others, Watch& watch);
  // Weights, KV cache and tables. Throws std::invalid_argument for weights of a dtype that has no
  // kernel, RankError when there is less memory than these and the plan's activations take: how
  // much, and who has the rest.
  void allocate(const ExecutorSetup& setup);
  // allocate(), or anything that takes device memory; a RankError says who has it when it runs out.
  template <typename Work>
  void take_memory(const std::string& purpose, const Work& work) const {
    try {
      work();
    } catch (const cuda::Error& error) {
      if (error.code() != cudaErrorMemoryAllocation) throw;
      throw RankError(rank_, "", memory_shortage(std::nullopt, purpose, others_));
    }
  }

  // The op that the rank comes to, before it is enqueued: for the watch, and for the fault that the
  // setup asks for. True where what the op writes is to become NaN.
  bool reach(const ExecutorSetup& setup, const std::string& op, const cuda::Stream& on);
  [[nodiscard]] Watch& watch() const { return watch_; }

  // A weight of a plan of this deployment, found by its name. Throws std::invalid_argument when the
  // executor's plan does not have it in that shape.
  [[nodiscard]] Operand weight(const Tensor& tensor, std::int64_t copies, std::int32_t copy) const;
  // The arena, of at least so many bytes, zeroed when allocated. Shared, since graphs captured
  // before it grew keep the old one.
  std::shared_ptr<cuda::DeviceBuffer<std::byte>> arena(std::int64_t bytes);
  // The block of input tables, likewise.
  std::shared_ptr<cuda::DeviceBuffer<std::byte>> tables(std::int64_t bytes);
  // Where inputs are staged and results arrive; valid until the next call with more bytes, which
  // must not come while a step runs.
  std::byte* staging(std::int64_t bytes);
  std::int32_t* results(std::int64_t count);
  const cuda::Stream& stream(int number);
  BindResources& resources(int stream);
  [[nodiscard]] std::size_t workspace_bytes() const;
  // Whether no collective of the kind and about this size, a power of two, was asked of the group
  // before: NCCL chooses by size what it connects the ranks by. Of any until end_warm_up().
  bool sends_anew(const CommGroup& group, CollectiveKind kind, double bytes);
  void end_warm_up() { is_warm_ = true; }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] const KvPool& kv() const { return *kv_; }
  [[nodiscard]] const KvLayers& layers() const { return layers_; }
  [[nodiscard]] std::int64_t first_expert() const { return first_expert_; }
  [[nodiscard]] const CacheShape& cache() const { return cache_; }
  [[nodiscard]] const float* cosines() const { return cosines_->get(); }
  [[nodiscard]] const float* sines() const { return sines_->get(); }
  // The streams' timing of a step.
  cuda::Event start;
  cuda::Event end;
  cuda::OrderEvent done;
  cuda::OrderEvent fork;  // of the other streams from stream 0
  const cuda::OrderEvent& join(int stream) { return stream_entry(stream).join; }
  RankMemory memory;

  // Runs `allocate` and adds what it took to a term of `memory`.
  template <typename Allocate>
  void measure(Bytes RankMemory::* term, const Allocate& allocate) {
    const Bytes before = device_memory_in_use();
    allocate();
    memory.*term += device_memory_in_use() - before;
  }

 private:
  struct Weight {
    KeptWeight kept;
    std::int64_t stride = 0;  // bytes from copy to copy
    cuda::DeviceBuffer<std::byte> data;
    cuda::DeviceBuffer<float> scales;  // [copies, rows]; empty but for fp8
  };
  struct Stream {
    explicit Stream(cuda::Stream made) : stream(std::move(made)) {}
    cuda::Stream stream;
    BindResources resources{/*overlap_weights=*/true};
    cuda::OrderEvent join;
  };

  void require_memory(const ExecutorSetup& setup) const;
  [[nodiscard]] KvShape kv_shape(const ExecutorSetup& setup) const;
  void allocate_weights(const ExecutorSetup& setup);
  void allocate_tables(const ExecutorSetup& setup);
  Weight filled_weight(const KeptWeight& kept, std::uint64_t seed);
  Stream& stream_entry(int number);

  int rank_;
  std::optional<HeldMemory> others_;
  Watch& watch_;
  int times_at_fault_ = 0;
  CacheShape cache_;
  KvLayers layers_;  // of the executor's plan
  std::int64_t first_expert_;
  std::map<int, std::unique_ptr<Stream>> streams_;
  std::set<std::tuple<const CommGroup*, CollectiveKind, int>> sent_;
  bool is_warm_ = false;
  std::map<std::string, Weight> weights_;  // by name without the micro-batch
  std::unique_ptr<KvPool> kv_;
  std::shared_ptr<cuda::DeviceBuffer<std::byte>> arena_;
  std::shared_ptr<cuda::DeviceBuffer<std::byte>> tables_;
  std::unique_ptr<cuda::PinnedBuffer<std::byte>> staging_;
  std::unique_ptr<cuda::PinnedBuffer<std::int32_t>> results_;
  std::unique_ptr<cuda::DeviceBuffer<float>> cosines_;
  std::unique_ptr<cuda::DeviceBuffer<float>> sines_;
};

}  // namespace orrery
