#include "kernels/serve/layer_events.h"

#include <algorithm>
#include <cstddef>

#include "kernels/cuda/devices.h"

namespace orrery {

void LayerEvents::open(std::span<const int> devices, std::span<const std::int64_t> num_layers) {
  ranks_.resize(devices.size());
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    const cuda::DeviceGuard guard(devices[rank]);
    for (std::int64_t layer = 0; layer < num_layers[rank]; ++layer) {
      ranks_[rank].written.push_back(std::make_unique<cuda::OrderEvent>());
    }
  }
}

LayerEvents::Step::Step(LayerEvents& events) : events_(events) {
  const std::scoped_lock lock(events_.mutex_);
  ++events_.num_begun_;
  for (Rank& rank : events_.ranks_) rank.num_written = 0;
}

LayerEvents::Step::~Step() {
  {
    const std::scoped_lock lock(events_.mutex_);
    events_.num_ended_ = events_.num_begun_;
  }
  events_.changed_.notify_all();
}

std::int64_t LayerEvents::num_steps() const {
  const std::scoped_lock lock(mutex_);
  return num_begun_;
}

// An event that a later step has recorded again is one to wait longer for.
void LayerEvents::hold(const cuda::Stream& stream, std::int64_t step, int rank,
                       std::int64_t layer) const {
  const Rank& of = ranks_[static_cast<std::size_t>(rank)];
  std::unique_lock lock(mutex_);
  changed_.wait(
      lock, [&] { return num_ended_ >= step || (num_begun_ >= step && of.num_written > layer); });
  of.written[static_cast<std::size_t>(layer)]->hold(stream);
}

void LayerEvents::begin_step(int /*rank*/, const cuda::Stream& /*main*/, bool /*by_layers*/) {}

// What comes behind layer `layer` on this stream follows all that was computed before it.
void LayerEvents::begin_layer(int rank, std::int64_t layer, const cuda::Stream& stream) {
  record(rank, layer, stream);
}

void LayerEvents::end_step(int rank, const cuda::Stream& main) {
  record(rank, std::ssize(ranks_[static_cast<std::size_t>(rank)].written), main);
}

void LayerEvents::record(int rank, std::int64_t num_layers, const cuda::Stream& stream) {
  Rank& of = ranks_[static_cast<std::size_t>(rank)];
  {
    const std::scoped_lock lock(mutex_);
    for (; of.num_written < num_layers; ++of.num_written) {
      of.written[static_cast<std::size_t>(of.num_written)]->record(stream);
    }
  }
  changed_.notify_all();
}

}  // namespace orrery
