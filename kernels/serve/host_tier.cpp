#include "kernels/serve/host_tier.h"

#include <algorithm>
#include <deque>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/comm/kv_transfer/host_copies.h"
#include "kernels/cuda/devices.h"
#include "kernels/serve/move_schedule.h"
#include "sim/units/parse.h"

namespace orrery {
// Made and used with the rank's device current.
class HostTier::Lanes : private MoveLanes {
 public:
  Lanes(const HostTierConfig& config, const KvPool& pool, int device)
      : pool_(pool),
        device_(device),
        slot_bytes_(host_slot_bytes(pool.shape(), config.blocks_per_unit)),
        schedule_(*this, pool.shape().layers, config.overlap) {
    reserve(config.num_slots);
  }

  [[nodiscard]] int device() const { return device_; }

  void reserve(std::int64_t num_slots) {
    if (num_slots <= num_slots_) return;
    try {
      memory_.emplace_back(num_slots_, num_slots - num_slots_, slot_bytes_);
    } catch (const cuda::Error& error) {
      if (error.code() != cudaErrorMemoryAllocation) throw;
      const Bytes bytes(static_cast<double>((num_slots - num_slots_) * slot_bytes_));
      throw std::runtime_error("the host has no " + memory_text(bytes) +
                               " to lock for the tier of a rank; expected a smaller capacity");
    }
    num_slots_ = num_slots;
  }

  // `step`: its number; a step that is run once more moves nothing.
  void begin_step(std::int64_t step, const KvMoves& moves, const cuda::Stream& main,
                  bool by_layers) {
    if (std::exchange(last_step_, step) == step) return;
    waits_.clear();
    ended_.clear();
    num_events_ = 0;
    if (moves.is_empty()) return;
    on_ = &main;
    schedule_.set(moves);
    schedule_.begin_step(by_layers);
  }
  void begin_layer(std::int64_t layer, const cuda::Stream& stream) {
    on_ = &stream;
    schedule_.begin_layer(layer);
  }
  void end_step(const cuda::Stream& main) {
    on_ = &main;
    schedule_.end_step();
  }

  // Each layer waits for the latest of what it waits for.
  [[nodiscard]] Seconds waited() const {
    Seconds sum;
    for (const Waits& waits : waits_) {
      Seconds longest;
      for (const cuda::Event* there : waits.there) {
        longest = std::max(longest, *there - *waits.reached);
      }
      sum += longest;
    }
    return sum;
  }

 private:
  // Slots of one allocation; some more of a tier that was allocated before.
  class SlotMemory {
   public:
    SlotMemory(std::int64_t first, std::int64_t num_slots, std::int64_t bytes)
        : first_(first), bytes_(bytes), memory_(static_cast<std::size_t>(num_slots * bytes)) {}
    [[nodiscard]] std::byte* slot(std::int64_t number) const {
      return memory_.get() + (number - first_) * bytes_;
    }
    [[nodiscard]] std::int64_t first() const { return first_; }

   private:
    std::int64_t first_;
    std::int64_t bytes_;
    cuda::PinnedBuffer<std::byte> memory_;
  };
  struct Waits {
    const cuda::Event* reached = nullptr;
    std::vector<const cuda::Event*> there;
  };

  void copy(MoveLane lane, std::span<const UnitMove> units, std::int64_t layer,
            std::int64_t num_layers) override {
    HostCopies copies;
    for (const UnitMove& unit : units) {
      copies.add(pool_, unit.blocks, slot(unit.slot), layer, num_layers, lane == MoveLane::kOut);
    }
    copies.enqueue(stream(lane));
    is_new_wait_ = true;  // what the compute lane waits for next is of this layer
  }
  void record(MoveLane lane, const MoveMark& mark) override {
    const cuda::Event* event = nullptr;
    if (mark.kind == MoveMark::Kind::kBatch) {
      drop_ended();
      batches_.push_back({mark.number, std::make_unique<cuda::Event>()});
      event = batches_.back().second.get();
    } else {
      event = &next_event();
      marks_[mark] = event;
    }
    event->record(stream(lane));
  }
  void wait(MoveLane lane, const MoveMark& mark) override {
    const cuda::Event* const event = find(mark);
    if (event == nullptr) return;  // it has happened
    if (lane == MoveLane::kCompute) {
      if (is_new_wait_ || waits_.empty()) {
        const cuda::Event& reached = next_event();
        reached.record(stream(lane));
        waits_.push_back({.reached = &reached});
        is_new_wait_ = false;
      }
      waits_.back().there.push_back(event);
    }
    ORRERY_CUDA(cudaStreamWaitEvent(stream(lane).get(), event->get()));
  }

  [[nodiscard]] const cuda::Stream& stream(MoveLane lane) const {
    return lane == MoveLane::kOut ? out_ : lane == MoveLane::kIn ? in_ : *on_;
  }
  [[nodiscard]] std::byte* slot(std::int64_t number) const {
    const auto after = std::ranges::upper_bound(memory_, number, {}, &SlotMemory::first);
    return std::prev(after)->slot(number);
  }
  // Of the step; valid until the next one.
  const cuda::Event& next_event() {
    if (num_events_ == events_.size()) events_.push_back(std::make_unique<cuda::Event>());
    return *events_[num_events_++];
  }
  [[nodiscard]] const cuda::Event* find(const MoveMark& mark) const {
    if (mark.kind != MoveMark::Kind::kBatch) return marks_.at(mark);
    // Batches leave in order: the first that is not known to have left, or any later one.
    for (const auto& [number, event] : batches_) {
      if (number >= mark.number) return event.get();
    }
    return nullptr;
  }
  // Those that have left; what the step in hand waits for is not among them, or is dropped later.
  void drop_ended() {
    while (!batches_.empty()) {
      const cudaError_t state = cudaEventQuery(batches_.front().second->get());
      if (state == cudaErrorNotReady) {
        static_cast<void>(cudaGetLastError());  // or the next launch would be taken to have failed
        return;
      }
      ORRERY_CUDA(state);
      ended_.push_back(std::move(batches_.front().second));
      batches_.pop_front();
    }
  }

  const KvPool& pool_;
  int device_;
  std::int64_t slot_bytes_;
  std::int64_t num_slots_ = 0;
  std::deque<SlotMemory> memory_;
  cuda::Stream out_;
  cuda::Stream in_;
  const cuda::Stream* on_ = nullptr;  // the lane kCompute
  MoveSchedule schedule_;
  std::vector<std::unique_ptr<cuda::Event>> events_;
  std::size_t num_events_ = 0;
  std::map<MoveMark, const cuda::Event*> marks_;
  std::deque<std::pair<std::int64_t, std::unique_ptr<cuda::Event>>> batches_;
  std::vector<std::unique_ptr<cuda::Event>> ended_;
  std::vector<Waits> waits_;  // by layer
  bool is_new_wait_ = false;
  std::int64_t last_step_ = 0;
};

HostTier::HostTier(HostTierConfig config) : config_(config) {}
HostTier::~HostTier() = default;

void HostTier::open(std::span<const KvPool* const> pools, std::span<const int> devices) {
  for (std::size_t rank = 0; rank < pools.size(); ++rank) {
    const cuda::DeviceGuard guard(devices[rank]);
    ranks_.push_back(std::make_unique<Lanes>(config_, *pools[rank], devices[rank]));
  }
}

void HostTier::set(const KvMoves& moves) {
  moves_ = moves;
  ++step_;
  for (const std::unique_ptr<Lanes>& rank : ranks_) {
    const cuda::DeviceGuard guard(rank->device());
    rank->reserve(moves.num_slots);
  }
}

Seconds HostTier::waited() const {
  Seconds longest;
  for (const std::unique_ptr<Lanes>& rank : ranks_) {
    const cuda::DeviceGuard guard(rank->device());
    longest = std::max(longest, rank->waited());
  }
  return longest;
}

void HostTier::begin_step(int rank, const cuda::Stream& main, bool by_layers) {
  if (ranks_.empty()) return;  // steps before it was opened
  ranks_[static_cast<std::size_t>(rank)]->begin_step(step_, moves_, main, by_layers);
}

void HostTier::begin_layer(int rank, std::int64_t layer, const cuda::Stream& stream) {
  if (ranks_.empty()) return;
  ranks_[static_cast<std::size_t>(rank)]->begin_layer(layer, stream);
}

void HostTier::end_step(int rank, const cuda::Stream& main) {
  if (ranks_.empty()) return;
  ranks_[static_cast<std::size_t>(rank)]->end_step(main);
}

}  // namespace orrery
