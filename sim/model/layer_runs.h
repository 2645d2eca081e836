#pragma once

// Runs of equal layers, so that a plan holds each kind of layer once and a Repeat counts the rest.

#include <cstdint>
#include <span>
#include <vector>

#include "sim/model/model.h"

namespace orrery {

// Layers [first, first + period * count): `period` layers, `count` times over.
struct LayerRun {
  std::int64_t first = 0;
  std::int64_t period = 1;
  std::int64_t count = 1;
  bool operator==(const LayerRun&) const = default;
};

// From the first layer on, each time the period that covers most layers (the shortest of equals).
std::vector<LayerRun> layer_runs(std::span<const LayerConfig> layers);

}  // namespace orrery
