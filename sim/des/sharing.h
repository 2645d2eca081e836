#pragma once

// What runs on the machine, and for how long it will. An activity alone on its GPU and links ends
// after its own time, an event on the agenda. Where kernels and collectives overlap on a GPU, each
// has what share_gpu() leaves it, and the ends on the agenda follow. Where flows overlap on a link,
// what is left of them goes to SimGrid and ends when SimGrid says so. Amounts are set so that an
// activity alone takes exactly its own time either way.
//
//   kernel      wants all SMs, and of the memory rate what its bytes take
//   collective  waits until it has comm_sms on each rank and keeps them to its end, but for one
//               that copy engines run; first its fixed part (a delay), then its flows for the
//               rest, which take longer where it had to wait (SharingRates::waited_collective);
//               slower beside kernels that draw much of the memory's rate (loaded_collective)

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "sim/des/agenda.h"
#include "sim/des/block_rounds.h"
#include "sim/des/flows.h"
#include "sim/des/gpu_shares.h"
#include "sim/des/levels.h"
#include "sim/des/network_simgrid.h"

namespace orrery::des {

// What moves a collective's bytes: its kernels, or copies without any (moves_by_copies(),
// sim/plan/sides.h).
enum class CollectiveEngine : std::uint8_t { kSms, kCopies };
CollectiveEngine engine_of(const Plan& plan, const Op& op);

class Sharing {
 public:
  // `network` may be null in mode kNone only.
  Sharing(const Machine& machine, const SimulateOptions& options, Agenda& agenda,
          SimGridNetwork* network, SharingMode mode);

  // Each returns the activity; it ends with an event kEnd of that id and its current generation.
  std::int32_t start_kernel(int gpu, double now, double time, const GpuDemand& demand);
  std::int32_t start_host(double now, double time);
  // `flows` must outlive the activity; `gpus` are those of the simulated participants.
  // `latency`: of its `time`, what does not grow with its bytes.
  std::int32_t start_collective(const FlowSet& flows, Bytes bytes_each, std::span<const int> gpus,
                                double now, double time, double latency, CollectiveEngine engine);

  // Event kFlows of `activity`.
  void start_flows(std::int32_t activity, double now);
  // True when an event kEnd is current.
  [[nodiscard]] bool is_current(std::int32_t activity, std::int32_t generation) const;
  // At such an event, or the last of its flows': false where some blocks of a kernel have ended and
  // it goes on, and where a collective does that was slowed by kernels.
  bool has_ended(std::int32_t activity, double now);
  // One flow of the activity has ended in SimGrid; true when it was the last one.
  bool on_progress(std::int32_t activity);
  // Frees what the activity held that ended at `now`.
  void finish(std::int32_t activity, double now);

 private:
  enum class Kind : std::uint8_t { kHost, kKernel, kCollective };
  struct Activity {
    Kind kind = Kind::kHost;
    std::int32_t generation = 0;
    std::vector<int> gpus;
    GpuDemand demand;
    // Of a kernel: it has run at `speed` since `since`, when it had `left` seconds (alone) to go.
    double speed = 1;
    double since = 0;
    double left = 0;
    // Of one that began on fewer SMs than it fills; then `speed` is in pieces of work a second.
    std::optional<BlockRounds> blocks;
    // Of a collective; `speed`, `since` and `left` as of a kernel once it has all its SMs.
    const FlowSet* flows = nullptr;
    double time = 0;
    double flow_time = 0;      // the last part of `time`
    double part_of_bytes = 0;  // of `time`, what grows with its bytes
    double lost = 0;           // seconds by which flows in SimGrid, which are as alone, are ahead
    int num_waiting = 0;       // GPUs on which it has not its SMs yet
    bool has_flows_running = false;
    bool is_in_network = false;
    int num_open = 0;  // flows still running in SimGrid
  };
  struct GpuUser {
    std::int32_t activity = 0;
    bool has_sms = false;  // of a collective
    double speed = 1;      // of a collective beside what else is on this GPU
  };

  std::int32_t add(Kind kind);
  Activity& at(std::int32_t id) { return activities_[static_cast<std::size_t>(id)]; }
  void end_at(std::int32_t id, double time);
  void add_user(std::int32_t id, int gpu);
  void share_out(int gpu, double now);
  void set_share(std::int32_t id, const GpuShare& share, double now);
  void run_blocks(std::int32_t id, double now);  // where it has some
  void set_speed(std::int32_t id, double speed, double now);
  void begin_collective(std::int32_t id, double now);
  // Of a collective on GPU `gpu`, whose other users ask for `drawn` of the memory's rate.
  void slow_collective(GpuUser& user, int gpu, double drawn, double now);
  void schedule(std::int32_t id, double now);  // what comes next of what is not in the network
  void enter_network(std::int32_t id, double now);
  bool goes_on(std::int32_t id, double now);

  const Machine& machine_;
  Agenda& agenda_;
  SimGridNetwork* network_;
  SharingMode mode_;
  // Of a kind of GPU.
  struct Gpu {
    SharingRates rates;
    double comm_sms = 0;  // as a share
  };
  Gpu first_;
  Gpu behind_;        // of the second of two machines
  int first_behind_;  // the first of its GPUs
  static Gpu make_gpu(const Device& device, const SimulateOptions& options);
  [[nodiscard]] const Gpu& gpu_of(int gpu) const { return gpu < first_behind_ ? first_ : behind_; }
  std::vector<Activity> activities_;
  std::vector<std::int32_t> free_;
  std::vector<std::vector<GpuUser>> gpu_users_;        // by GPU, in the order in which they came
  std::vector<std::vector<std::int32_t>> link_users_;  // by link: collectives with flows on it
};

}  // namespace orrery::des
