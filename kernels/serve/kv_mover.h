#pragma once

// KV blocks from the caches of prefill instances to those of decode instances, GPU to GPU. Where
// they split the model in other ways, heads and layers go to whoever holds them there.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/binding/kv_pool.h"
#include "kernels/cuda/devices.h"
#include "kernels/serve/layer_events.h"
#include "kernels/serve/live_transfers.h"
#include "sim/parallel/kv_flows.h"
#include "sim/units/units.h"

namespace orrery {

// One data-parallel rank of a replica.
struct MovedInstance {
  struct Gpu {
    const KvPool* pool = nullptr;
    int device = 0;
    int rank = 0;  // of the replica's executor
  };
  std::vector<Gpu> gpus;                // pipeline stages one after the other, each of its tp ranks
  const LayerEvents* layers = nullptr;  // of the replica; null: prompts move when they are complete
};

// What moves blocks (kernels/comm/kv_transfer). A KV cache is a copy for each layer's keys and
// values at least, and copy engines start them one after the other: on H200s, between a prefill and
// a decode step, 162 MB of 64 pools take 0.59 ms by SMs and 0.91 ms by copy engines, 41 MB of 32
// pools 0.15 and 0.34 ms (means).
enum class MoveBy : std::uint8_t { kSm, kCopyEngine };

// Each GPU of a prefill instance writes to those of a decode instance, on streams of their own for
// each pair of instances.
class GpuKvMover : public KvMover {
 public:
  // For one service, which has not begun: steps are counted from here. Pools and events outlive it;
  // `parts` are kv_parts() of both sides. Throws std::invalid_argument where pools do not hold the
  // parts, differ in what they hold, or GPUs cannot access each other.
  GpuKvMover(std::vector<MovedInstance> prefill, std::vector<MovedInstance> decode,
             std::vector<KvPart> parts, MoveBy move_by = MoveBy::kSm);
  ~GpuKvMover() override;

  // The longest of the times that GPUs take from the first byte they send to their last, by events
  // on their streams. Throws cuda::Error.
  Seconds move(const Move& move) override;
  // Of one KV block, by all GPUs together.
  [[nodiscard]] Bytes block_bytes() const;
  // Bytes of the destination that are not the source's, by copies of both on the host.
  [[nodiscard]] std::int64_t wrong_bytes(const Move& move) const;

 private:
  struct Lane;   // from one GPU to another
  struct Piece;  // of a part: so many layers that move at once
  using Lanes = std::vector<std::unique_ptr<Lane>>;

  [[nodiscard]] Lanes make_lanes(const MovedInstance& from, const MovedInstance& to) const;
  [[nodiscard]] std::vector<Piece> pieces(bool by_layers) const;
  void enqueue(const Move& move, Lane& lane, const Piece& piece) const;

  std::vector<MovedInstance> prefill_;
  std::vector<MovedInstance> decode_;
  std::vector<KvPart> parts_;
  std::vector<std::size_t> lane_of_part_;
  std::vector<std::int64_t> steps_before_;  // of each prefill instance, when serving began
  MoveBy move_by_;
  std::unique_ptr<cuda::DeviceTeam> team_;  // opens the devices' memory to each other
  std::vector<Lanes> lanes_;                // [prefill, decode]
};

// Moves by another and looks at what came; throws std::runtime_error for a byte that is wrong.
class CheckedKvMover : public KvMover {
 public:
  explicit CheckedKvMover(GpuKvMover& mover) : mover_(mover) {}
  Seconds move(const Move& move) override;

 private:
  GpuKvMover& mover_;
};

}  // namespace orrery
