#pragma once

// What runs on the machine, and for how long it will. An activity alone on its SMs and links ends
// after its own time, an event on the agenda. Where activities overlap on the SMs of a GPU (more
// wanted than there are) or on a link, what is left of all of them goes to SimGrid and ends when
// SimGrid says so. Amounts are set so that an activity alone takes exactly its own time either way.
//
//   kernel      wants all SMs
//   collective  holds comm_sms on each rank from start to end; first its fixed part (a delay), then
//               its flows for the rest

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "sim/des/agenda.h"
#include "sim/des/flows.h"
#include "sim/des/levels.h"
#include "sim/des/network_simgrid.h"

namespace orrery::des {

class Sharing {
 public:
  // `network` may be null in mode kNone only.
  Sharing(const Machine& machine, const SimulateOptions& options, Agenda& agenda,
          SimGridNetwork* network, SharingMode mode);

  // Each returns the activity; it ends with an event kEnd of that id and its current generation.
  std::int32_t start_kernel(int gpu, double now, double time);
  std::int32_t start_host(double now, double time);
  // `flows` must outlive the activity; `gpus` are those of the simulated participants.
  std::int32_t start_collective(const FlowSet& flows, Bytes bytes_each, std::span<const int> gpus,
                                double now, double time);

  // Event kFlows of `activity`.
  void start_flows(std::int32_t activity, double now);
  // True when an event kEnd is current.
  [[nodiscard]] bool is_current(std::int32_t activity, std::int32_t generation) const;
  // One kernel or flow of the activity has ended in SimGrid; true when it was the last one.
  bool on_progress(std::int32_t activity);
  // Frees what the ended activity held.
  void finish(std::int32_t activity);

 private:
  enum class Kind : std::uint8_t { kHost, kKernel, kCollective };
  struct Activity {
    Kind kind = Kind::kHost;
    std::int32_t generation = 0;
    double end = std::numeric_limits<double>::infinity();  // on the agenda
    int sms = 0;
    bool is_in_network = false;  // the kernel or the flows
    int num_open = 0;            // flows still running in SimGrid
    const FlowSet* flows = nullptr;
    double flow_time = 0;
    bool has_flows_running = false;
    std::vector<int> gpus;
  };
  struct SmUser {
    std::int32_t activity = 0;
    int hold = -1;  // of a collective, in SimGrid
  };

  std::int32_t add(Kind kind);
  Activity& at(std::int32_t id) { return activities_[static_cast<std::size_t>(id)]; }
  void end_at(std::int32_t id, double time);
  void use_sms(std::int32_t id, int gpu, double now);
  void enter_network(std::int32_t id, double now);

  const Machine& machine_;
  Agenda& agenda_;
  SimGridNetwork* network_;
  SharingMode mode_;
  int num_sms_;
  int comm_sms_;
  std::vector<Activity> activities_;
  std::vector<std::int32_t> free_;
  std::vector<std::vector<SmUser>> sm_users_;          // by GPU
  std::vector<std::vector<std::int32_t>> link_users_;  // by link: collectives with flows on it
};

}  // namespace orrery::des
