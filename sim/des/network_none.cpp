// In place of network_simgrid.cpp when ORRERY_SIMGRID is off.

#include <stdexcept>

#include "sim/des/network_simgrid.h"

namespace orrery::des {

struct SimGridNetwork::Impl {};

SimGridNetwork::SimGridNetwork(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SimGridNetwork::~SimGridNetwork() = default;
void SimGridNetwork::start_flow(int, int, Bytes, int, Seconds) {}
bool SimGridNetwork::is_idle() const { return true; }
void SimGridNetwork::run(Client&) {}

bool has_simgrid() { return false; }

void with_simgrid(const Machine&, const std::function<void(SimGridNetwork&)>&) {
  throw std::invalid_argument(
      "step levels representative and all_ranks need SimGrid, and this build has none "
      "(ORRERY_SIMGRID=OFF); use level closed_form or heap");
}

}  // namespace orrery::des
