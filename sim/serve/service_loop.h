#pragma once

// The one loop over replicas: requests that clients send, steps that end, and where prompts and
// decodes have replicas of their own, KV caches on their way. In virtual time it runs by itself;
// against a real clock (kernels/serve) steps are computed and KV caches moved on threads of their
// own, and whoever has the loop's lock turns it to the events that are due.
//
//   clients ──► router ──► first side: whole or prefill replicas ──► clients
//                             │ handovers
//                             ▼
//                          router ──► decode replicas, once the transfer has ended ──► clients
//
// At one time: replicas come and go, requests are sent, steps of the first side end and hand over,
// transfers end, steps of decode replicas end, clients that have their last token send again; then
// whoever something happened to starts a step. Replicas of a side go by index.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/serve/autoscaler.h"
#include "sim/serve/clients.h"
#include "sim/serve/disaggregated.h"
#include "sim/serve/fast_forward.h"
#include "sim/serve/replica.h"
#include "sim/serve/router.h"
#include "sim/serve/serve.h"
#include "sim/serve/transfer.h"
#include "sim/units/units.h"

namespace orrery {

// By (start, replica). Made for steps of one replica after the other, each in order.
void sort_steps(std::vector<StepRecord>& steps);

// Calls back from whatever thread finishes requests, one call at a time.
class ProgressCounter {
 public:
  ProgressCounter(const Progress& progress, std::int64_t total)
      : progress_(progress), total_(total), interval_(std::max<std::int64_t>(total / 100, 1)) {}
  void add(std::int64_t count) {
    if (!progress_ || count == 0) return;
    const std::scoped_lock lock(mutex_);
    const std::int64_t before = done_;
    done_ += count;
    if (before / interval_ != done_ / interval_ || done_ == total_) progress_(done_, total_);
  }

 private:
  const Progress& progress_;
  std::int64_t total_;
  std::int64_t interval_;
  std::int64_t done_ = 0;
  std::mutex mutex_;
};

using Replicas = std::vector<std::unique_ptr<Replica>>;

// Replicas that come and go: as many as there may be at once, the first ones ready from the start.
struct Fleet {
  // A new one, with nothing in its caches.
  using Make = std::function<std::unique_ptr<Replica>(std::size_t index)>;
  Autoscaler autoscaler;
  Make make;
  Replicas gone;  // that others have taken the places of
};

// Not thread safe; one run.
class ServiceLoop {
 public:
  // Replicas are numbered as their steps are: those of the first side from 0, then decode ones.
  using Formed = std::function<void(std::size_t replica)>;

  // All outlive the loop. `records`: those that the replicas fill.
  ServiceLoop(const Workload& workload, std::span<RequestRecord> records, Replicas& replicas,
              RouterKind router, ProgressCounter& progress);
  // Prefill and decode replicas.
  ServiceLoop(const Workload& workload, std::span<RequestRecord> records, Replicas& prefill,
              Replicas& decode, const DisaggregatedConfig& config, Transfers& transfers,
              ProgressCounter& progress);

  // From now on `fleet`, which outlives the loop, says which of the replicas there are.
  void scale(Fleet& fleet, int num_ready);

  // `arrivals`: indices of the requests to serve, ascending (Clients::begin). Begins and turns
  // until nothing is due.
  void run(std::span<const std::int64_t> arrivals);

  void begin(std::span<const std::int64_t> arrivals);
  // When something is due next, kNever: nothing is until a step or transfer has ended.
  [[nodiscard]] Seconds next() const;
  // What is due at `now`, the time of next().
  void turn(Seconds now);
  // Steps are not computed as they are formed: `formed` is told of each, and calls compute_step for
  // it at leisure.
  void compute_elsewhere(Formed formed) { formed_ = std::move(formed); }
  // How long the step that replica `replica` formed takes.
  void compute_step(std::size_t replica);
  [[nodiscard]] std::int64_t num_finished() const { return num_finished_; }

 private:
  // Replicas behind a router, their events by (time, index), and who starts at this time.
  class Side {
   public:
    Side(Replicas& replicas, RouterKind kind, std::span<const Turn> turns)
        : replicas_(replicas), router_(kind, replicas, turns), known_(replicas.size(), kNever) {}
    [[nodiscard]] std::size_t size() const { return replicas_.size(); }
    [[nodiscard]] Replica& operator[](std::size_t index) { return *replicas_[index]; }
    [[nodiscard]] std::size_t choose(const Request& request, std::int64_t count, Seconds now) {
      return router_.choose(request, count, now);
    }
    [[nodiscard]] Seconds next() const { return due_.empty() ? kNever : due_.begin()->first; }
    [[nodiscard]] std::size_t front() const { return due_.begin()->second; }
    // Something happened to a replica, so that it may start a step.
    void touch(std::size_t index);
    // When it is due next.
    void update(std::size_t index);
    // Whoever was touched, in order; nobody is afterwards.
    std::vector<std::size_t> take_touched();
    void changed(std::size_t index) { router_.changed(index); }
    void open(std::size_t index) { router_.open(index); }
    void close(std::size_t index) { router_.close(index); }
    // `replica` in the place of one that has gone, which is returned.
    std::unique_ptr<Replica> replace(std::size_t index, std::unique_ptr<Replica> replica);

   private:
    Replicas& replicas_;
    Router router_;
    std::set<std::pair<Seconds, std::size_t>> due_;
    std::vector<Seconds> known_;  // of each replica, as in due_
    std::vector<std::size_t> touched_;
  };
  struct Apart {
    Apart(Replicas& replicas, const DisaggregatedConfig& of, Transfers& on_the_way)
        : decode(replicas, of.decode.router, {}), config(of), transfers(on_the_way) {}
    Side decode;
    const DisaggregatedConfig& config;
    Transfers& transfers;
    std::int64_t num_handovers = 0;
    // Of requests that were received while the step runs that ends their prompts.
    std::unordered_map<std::int64_t, Transfers::Layers> computed;
  };

  [[nodiscard]] Seconds next_event() const;
  void send_due(Seconds now);
  // Replicas that have started come, others go.
  void scale(Seconds now);
  // Those that are to go and have nothing left go.
  void stop_drained(Seconds now);
  void end_steps(Side& side, Seconds now);
  void hand_over(const Handover& handover, Seconds now);
  // Of the step that the first side's replica `from` began at `now`, before it ends (or is computed
  // elsewhere): layers that are computed may move.
  void hand_over_early(std::size_t from, Seconds now);
  // Was handed over early, and has its first token now.
  void end_prompt(const Handover& handover, Seconds now);
  void end_transfers(Seconds now);
  // To decode replica `to`, of whatever has blocks there now.
  void begin_transfers(std::size_t to, Seconds now);
  void form_steps(Side& side, Seconds now);

  const Workload& workload_;
  std::span<RequestRecord> records_;
  ProgressCounter& progress_;
  Side first_;
  std::optional<Apart> apart_;
  Clients clients_;
  bool has_answers_to_wait_for_;  // requests are sent when others are answered
  Fleet* fleet_ = nullptr;
  std::vector<bool> was_used_;  // of a fleet's places
  Formed formed_;
  std::vector<std::int64_t> finished_;
  std::int64_t num_finished_ = 0;
};

}  // namespace orrery
