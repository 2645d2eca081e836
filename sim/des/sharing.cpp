#include "sim/des/sharing.h"

#include <algorithm>
#include <utility>

#include "sim/machine/joined_machines.h"
#include "sim/plan/sides.h"

namespace orrery::des {
namespace {

// SimGrid's clock resolution: what has less time left ends by itself.
constexpr double kPrecision = 1e-12;

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
  at(id).end = time;
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
                                       CollectiveEngine engine) {
  const std::int32_t id = add(Kind::kCollective);
  if (mode_ == SharingMode::kNone) {
    end_at(id, now + time);
    return id;
  }
  Activity& added = at(id);
  added.flows = &flows;
  added.time = time;
  added.flow_time = std::min(time, orrery::des::time_alone(flows, bytes_each).value());
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
  const double begin = now + (at(id).time - at(id).flow_time);
  if (begin > now) {
    agenda_.push(begin, EventKind::kFlows, id, at(id).generation);
  } else {
    start_flows(id, now);
  }
}

void Sharing::start_flows(std::int32_t id, double now) {
  end_at(id, now + at(id).flow_time);
  if (at(id).flow_time <= kPrecision) return;
  at(id).has_flows_running = true;
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
    demands.push_back(at(user.activity).demand);
  }
  const std::vector<GpuShare> shares = share_gpu(gpu_of(gpu).rates, demands);
  std::vector<std::int32_t> beginning;
  for (std::size_t i = 0; i < users.size(); ++i) {
    Activity& activity = at(users[i].activity);
    if (activity.kind == Kind::kKernel) {
      set_share(users[i].activity, shares[i], now);
    } else if (!users[i].has_sms && shares[i].has_all) {
      users[i].has_sms = true;
      if (--activity.num_waiting == 0) beginning.push_back(users[i].activity);
    }
  }
  for (const std::int32_t id : beginning) begin_collective(id, now);
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
  run_blocks(id, now);
  if (!at(id).blocks || at(id).blocks->has_ended()) return true;
  share_out(at(id).gpus.front(), now);
  return false;
}

void Sharing::set_speed(std::int32_t id, double speed, double now) {
  Activity& kernel = at(id);
  if (kernel.speed == speed) return;
  kernel.left = std::max(kernel.left - kernel.speed * (now - kernel.since), 0.0);
  kernel.since = now;
  kernel.speed = speed;
  ++kernel.generation;  // its end on the agenda is void
  if (speed > 0) end_at(id, now + kernel.left / speed);
}

void Sharing::enter_network(std::int32_t id, double now) {
  Activity& activity = at(id);
  const double left = activity.end - now;
  if (activity.is_in_network || left <= kPrecision) return;
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
