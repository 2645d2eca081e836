#include "sim/des/sharing.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/machine/joined_machines.h"
#include "sim/plan/sides.h"

namespace orrery::des {
namespace {

// SimGrid's clock resolution: what has less time left ends by itself.
constexpr double kPrecision = 1e-12;
// Seconds by which a collective in SimGrid that kernels slowed may end early.
constexpr double kLeastLost = 1e-9;

}  // namespace

CollectiveEngine engine_of(const Plan& plan, const Op& op) {
  return moves_by_copies(plan, op) ? CollectiveEngine::kCopies : CollectiveEngine::kSms;
}

Sharing::Gpu Sharing::make_gpu(const Device& device, const SimulateOptions& options) {
  return {.rates = sharing_rates(device),
          .comm_sms = device.num_sms > 0
                          ? std::min(static_cast<double>(options.comm_sms) / device.num_sms, 1.0)
                          : 0};
}

Sharing::Sharing(const Machine& machine, const SimulateOptions& options, Agenda& agenda,
                 SimGridNetwork* network, SharingMode mode)
    : machine_(machine),
      agenda_(agenda),
      network_(network),
      mode_(mode),
      first_(make_gpu(machine.device(), options)),
      behind_(make_gpu(machine.device_of(machine.num_gpus() - 1), options)),
      first_behind_(machine.joined ? machine.joined->num_front : machine.num_gpus()) {
  if (mode == SharingMode::kNone) return;
  gpu_users_.resize(static_cast<std::size_t>(machine.num_gpus()));
  link_users_.resize(machine.links.size());
}

std::int32_t Sharing::add(Kind kind) {
  if (free_.empty()) {
    free_.push_back(static_cast<std::int32_t>(activities_.size()));
    activities_.emplace_back();
  }
  const std::int32_t id = free_.back();
  free_.pop_back();
  Activity& added = at(id);
  const std::int32_t generation = added.generation + 1;
  std::vector<int> gpus = std::move(added.gpus);
  gpus.clear();
  added = {.kind = kind, .generation = generation};
  added.gpus = std::move(gpus);
  return id;
}

void Sharing::end_at(std::int32_t id, double time) {
  agenda_.push(time, EventKind::kEnd, id, at(id).generation);
}

std::int32_t Sharing::start_host(double now, double time) {
  const std::int32_t id = add(Kind::kHost);
  end_at(id, now + time);
  return id;
}

std::int32_t Sharing::start_kernel(int gpu, double now, double time, const GpuDemand& demand) {
  const std::int32_t id = add(Kind::kKernel);
  end_at(id, now + time);
  if (mode_ == SharingMode::kNone) return id;
  Activity& added = at(id);
  added.demand = demand;
  added.since = now;
  added.left = time;
  add_user(id, gpu);
  share_out(gpu, now);
  return id;
}

std::int32_t Sharing::start_collective(const FlowSet& flows, Bytes bytes_each,
                                       std::span<const int> gpus, double now, double time,
                                       double latency, CollectiveEngine engine) {
  const std::int32_t id = add(Kind::kCollective);
  if (mode_ == SharingMode::kNone) {
    end_at(id, now + time);
    return id;
  }
  Activity& added = at(id);
  added.flows = &flows;
  added.time = time;
  added.flow_time = std::min(time, orrery::des::time_alone(flows, bytes_each).value());
  if (engine == CollectiveEngine::kSms && time > 0) added.part_of_bytes = 1 - latency / time;
  const Gpu& first = gpu_of(gpus.front());  // an exchange of two kinds of GPU takes no SMs
  const double sms = engine == CollectiveEngine::kSms ? first.comm_sms : 0;
  added.demand = collective_demand(first.rates, sms, bytes_each, Seconds(time));
  added.num_waiting = static_cast<int>(gpus.size());
  for (const int gpu : gpus) add_user(id, gpu);
  for (const int gpu : gpus) share_out(gpu, now);
  if (at(id).num_waiting > 0) {
    const double more = at(id).flow_time * (first.rates.waited_collective - 1);
    at(id).time += more;
    at(id).flow_time += more;
  }
  return id;
}

void Sharing::add_user(std::int32_t id, int gpu) {
  at(id).gpus.push_back(gpu);
  gpu_users_[static_cast<std::size_t>(gpu)].push_back({.activity = id});
}

// It has its SMs on all its GPUs.
void Sharing::begin_collective(std::int32_t id, double now) {
  Activity& begun = at(id);
  begun.since = now;
  begun.left = begun.time;
  schedule(id, now);
}

void Sharing::schedule(std::int32_t id, double now) {
  Activity& activity = at(id);
  ++activity.generation;  // what is on the agenda is void
  if (activity.speed <= 0) return;
  const double delay = activity.left - activity.flow_time;
  if (activity.kind == Kind::kKernel || activity.has_flows_running) {
    end_at(id, now + activity.left / activity.speed);
  } else if (delay > 0) {
    agenda_.push(now + delay / activity.speed, EventKind::kFlows, id, activity.generation);
  } else {
    start_flows(id, now);
  }
}

void Sharing::start_flows(std::int32_t id, double now) {
  at(id).left = at(id).flow_time;
  at(id).since = now;
  at(id).has_flows_running = true;
  schedule(id, now);
  if (at(id).flow_time <= kPrecision) return;
  bool is_contended = mode_ == SharingMode::kAlways;
  for (const auto& [link, num_flows] : at(id).flows->num_flows_on) {
    auto& users = link_users_[static_cast<std::size_t>(link)];
    for (const std::int32_t other : users) {
      is_contended = true;
      enter_network(other, now);
    }
    users.push_back(id);
  }
  if (is_contended) enter_network(id, now);
}

// What each user of this GPU has, after they have changed.
void Sharing::share_out(int gpu, double now) {
  auto& users = gpu_users_[static_cast<std::size_t>(gpu)];
  if (users.empty()) return;
  if (users.size() == 1) {  // most of the time
    const Activity& only = at(users[0].activity);
    if (only.kind == Kind::kKernel && !only.blocks) {
      set_speed(users[0].activity, 1, now);
      return;
    }
  }
  std::vector<GpuDemand> demands;
  demands.reserve(users.size());
  for (const GpuUser& user : users) {
    run_blocks(user.activity, now);
    const Activity& activity = at(user.activity);
    demands.push_back(activity.demand);
    if (activity.kind != Kind::kCollective) continue;
    demands.back().hbm *= activity.num_waiting > 0 ? 0 : activity.speed;
  }
  const std::vector<GpuShare> shares = share_gpu(gpu_of(gpu).rates, demands);
  double drawn = 0;  // of the memory's rate, by kernels
  std::vector<std::int32_t> beginning;
  for (std::size_t i = 0; i < users.size(); ++i) {
    Activity& activity = at(users[i].activity);
    if (activity.kind == Kind::kKernel) {
      drawn += demands[i].hbm * shares[i].speed;
      set_share(users[i].activity, shares[i], now);
    } else if (!users[i].has_sms && shares[i].has_all) {
      users[i].has_sms = true;
      if (--activity.num_waiting == 0) beginning.push_back(users[i].activity);
    }
  }
  for (GpuUser& user : users) {
    if (at(user.activity).kind == Kind::kCollective) slow_collective(user, gpu, drawn, now);
  }
  for (const std::int32_t id : beginning) begin_collective(id, now);
}

void Sharing::slow_collective(GpuUser& user, int gpu, double drawn, double now) {
  const double longer = gpu_of(gpu).rates.loaded_collective - 1;
  const double load = std::pow(std::min(drawn, 1.0), 3);
  user.speed = 1 / (1 + longer * load * at(user.activity).part_of_bytes);
  double slowest = 1;  // it is as fast as on the slowest of its GPUs
  for (const int other : at(user.activity).gpus) {
    for (const GpuUser& on : gpu_users_[static_cast<std::size_t>(other)]) {
      if (on.activity == user.activity) slowest = std::min(slowest, on.speed);
    }
  }
  set_speed(user.activity, slowest, now);
}

void Sharing::set_share(std::int32_t id, const GpuShare& share, double now) {
  Activity& kernel = at(id);
  const int rounds = kernel.demand.rounds;
  if (!kernel.blocks && rounds > 0 && share.sms > 0 && !share.has_all) {
    kernel.blocks.emplace(rounds);
    kernel.since = now;
  }
  if (!kernel.blocks) {
    set_speed(id, share.speed, now);
    return;
  }
  BlockRounds& blocks = *kernel.blocks;
  blocks.fill(share.sms / kernel.demand.sms);
  const double running = blocks.running();
  kernel.speed = running > 0 ? share.speed / running * rounds / kernel.left : 0;
  ++kernel.generation;  // its end on the agenda is void
  if (running > 0) {
    end_at(id, now + blocks.next_end() / kernel.speed);
  } else if (blocks.has_ended()) {
    end_at(id, now);
  }
}

void Sharing::run_blocks(std::int32_t id, double now) {
  Activity& kernel = at(id);
  if (!kernel.blocks) return;
  kernel.blocks->advance(kernel.speed * (now - kernel.since));
  kernel.since = now;
  kernel.demand.wanted = kernel.blocks->wanted();
}

bool Sharing::has_ended(std::int32_t id, double now) {
  if (std::exchange(at(id).is_in_network, false)) return !goes_on(id, now);
  run_blocks(id, now);
  if (!at(id).blocks || at(id).blocks->has_ended()) return true;
  share_out(at(id).gpus.front(), now);
  return false;
}

// Of a collective whose flows have ended as if nothing were beside it.
bool Sharing::goes_on(std::int32_t id, double now) {
  Activity& activity = at(id);
  const double passed = now - std::exchange(activity.since, now);
  activity.left = std::exchange(activity.lost, 0) + passed * (1 - activity.speed);
  if (activity.left <= kLeastLost) return false;
  schedule(id, now);
  return true;
}

void Sharing::set_speed(std::int32_t id, double speed, double now) {
  Activity& activity = at(id);
  if (activity.speed == speed) return;
  const double before = std::exchange(activity.speed, speed);
  if (activity.num_waiting > 0) return;
  const double passed = now - std::exchange(activity.since, now);
  if (activity.is_in_network) {
    activity.lost += passed * (1 - before);
    return;
  }
  activity.left = std::max(activity.left - before * passed, 0.0);
  schedule(id, now);
}

void Sharing::enter_network(std::int32_t id, double now) {
  Activity& activity = at(id);
  if (activity.is_in_network) return;
  const double left = activity.left - activity.speed * (now - activity.since);
  if (left <= kPrecision) return;
  activity.since = now;
  activity.is_in_network = true;
  ++activity.generation;  // its end is no longer on the agenda
  activity.num_open = static_cast<int>(activity.flows->flows.size());
  for (const Flow& flow : activity.flows->flows) {
    network_->start_flow(flow.from, flow.to, flow.rate * Seconds(left), id, Seconds(now));
  }
}

bool Sharing::is_current(std::int32_t id, std::int32_t generation) const {
  return activities_[static_cast<std::size_t>(id)].generation == generation;
}

bool Sharing::on_progress(std::int32_t id) { return --at(id).num_open == 0; }

void Sharing::finish(std::int32_t id, double now) {
  ++at(id).generation;
  if (mode_ != SharingMode::kNone) {
    if (at(id).has_flows_running) {
      for (const auto& [link, num_flows] : at(id).flows->num_flows_on) {
        std::erase(link_users_[static_cast<std::size_t>(link)], id);
      }
    }
    const std::vector<int> gpus = std::exchange(at(id).gpus, {});
    for (const int gpu : gpus) {
      std::erase_if(gpu_users_[static_cast<std::size_t>(gpu)],
                    [id](const GpuUser& user) { return user.activity == id; });
    }
    for (const int gpu : gpus) share_out(gpu, now);
  }
  free_.push_back(id);
}

}  // namespace orrery::des
