#include "kernels/serve/move_schedule.h"

#include <algorithm>

namespace orrery {

void MoveSchedule::begin_step(bool by_layers) {
  next_layer_ = 0;
  if (moves_ == nullptr || moves_->is_empty()) return;
  if (by_layers && overlap_ == TierOverlap::kLayers) return;
  enqueue(0, num_layers_);
}

void MoveSchedule::begin_layer(std::int64_t layer) {
  if (moves_ == nullptr || moves_->is_empty() || layer < next_layer_) return;
  enqueue(next_layer_, layer + 1 - next_layer_);
}

void MoveSchedule::wait_for_batches(MoveLane lane, std::int64_t batch) {
  if (batch > 0) lanes_.wait(lane, {.kind = MoveMark::Kind::kBatch, .number = batch});
}

void MoveSchedule::enqueue(std::int64_t layer, std::int64_t num_layers) {
  const bool is_first = layer == 0;
  const MoveMark out{.kind = MoveMark::Kind::kOut, .number = layer};
  const MoveMark in{.kind = MoveMark::Kind::kIn, .number = layer};
  // Of steps before: the own one, which follows them, is waited for layer by layer.
  const std::int64_t before = overwrites_own() ? 0 : moves_->overwrites;
  if (!moves_->writes.empty()) {
    lanes_.copy(MoveLane::kOut, moves_->writes, layer, num_layers);
    lanes_.record(MoveLane::kOut, out);
  }
  if (!moves_->loads.empty()) {
    if (is_first) wait_for_batches(MoveLane::kIn, std::max(before, moves_->loads_after));
    if (overwrites_own()) lanes_.wait(MoveLane::kIn, out);
    lanes_.copy(MoveLane::kIn, moves_->loads, layer, num_layers);
    lanes_.record(MoveLane::kIn, in);
  }
  if (is_first) wait_for_batches(MoveLane::kCompute, before);
  if (overwrites_own()) lanes_.wait(MoveLane::kCompute, out);
  if (!moves_->loads.empty()) lanes_.wait(MoveLane::kCompute, in);
  next_layer_ = layer + num_layers;
}

void MoveSchedule::end_step() {
  if (moves_ == nullptr) return;
  const KvMoves& moves = *moves_;
  moves_ = nullptr;
  if (moves.batch == 0) return;
  if (!moves.computed.empty()) {
    const MoveMark end{.kind = MoveMark::Kind::kEnd};
    lanes_.record(MoveLane::kCompute, end);
    lanes_.wait(MoveLane::kOut, end);
    lanes_.copy(MoveLane::kOut, moves.computed, 0, num_layers_);
  }
  lanes_.record(MoveLane::kOut, {.kind = MoveMark::Kind::kBatch, .number = moves.batch});
}

}  // namespace orrery
