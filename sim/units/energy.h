#pragma once

// Energy: power over a time.

#include "sim/units/units.h"

namespace orrery {

using Joules = Quantity<struct JoulesTag>;

constexpr Joules operator*(Watts power, Seconds time) {
  return Joules(power.value() * time.value());
}
constexpr Watts operator/(Joules energy, Seconds time) {
  return Watts(energy.value() / time.value());
}

}  // namespace orrery
