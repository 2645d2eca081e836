#include "sim/des/sharing.h"

#include <algorithm>
#include <utility>

namespace orrery::des {
namespace {

// SimGrid's clock resolution: what has less time left ends by itself.
constexpr double kPrecision = 1e-12;

}  // namespace

Sharing::Sharing(const Machine& machine, const SimulateOptions& options, Agenda& agenda,
                 SimGridNetwork* network, SharingMode mode)
    : machine_(machine),
      agenda_(agenda),
      network_(network),
      mode_(mode),
      num_sms_(std::max(machine.device().num_sms, 1)),
      comm_sms_(std::min(options.comm_sms, machine.device().num_sms)) {
  if (mode == SharingMode::kNone) return;
  sm_users_.resize(static_cast<std::size_t>(machine.num_gpus()));
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

std::int32_t Sharing::start_kernel(int gpu, double now, double time) {
  const std::int32_t id = add(Kind::kKernel);
  end_at(id, now + time);
  if (mode_ == SharingMode::kNone) return id;
  at(id).sms = num_sms_;
  at(id).gpus.push_back(gpu);
  use_sms(id, gpu, now);
  if (mode_ == SharingMode::kAlways) enter_network(id, now);
  return id;
}

std::int32_t Sharing::start_collective(const FlowSet& flows, Bytes bytes_each,
                                       std::span<const int> gpus, double now, double time) {
  const std::int32_t id = add(Kind::kCollective);
  if (mode_ == SharingMode::kNone) {
    end_at(id, now + time);
    return id;
  }
  Activity& added = at(id);
  added.sms = comm_sms_;
  added.flows = &flows;
  added.flow_time = std::min(time, orrery::des::time_alone(flows, bytes_each).value());
  added.gpus.assign(gpus.begin(), gpus.end());
  const double begin = now + (time - added.flow_time);
  for (const int gpu : gpus) use_sms(id, gpu, now);
  if (begin > now) {
    agenda_.push(begin, EventKind::kFlows, id, at(id).generation);
  } else {
    start_flows(id, now);
  }
  return id;
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

// More SMs wanted on the GPU than there are: all its users share in SimGrid from now on.
void Sharing::use_sms(std::int32_t id, int gpu, double now) {
  auto& users = sm_users_[static_cast<std::size_t>(gpu)];
  users.push_back({.activity = id});
  int wanted = 0;
  for (const SmUser& user : users) wanted += at(user.activity).sms;
  if (wanted <= num_sms_) return;
  for (SmUser& user : users) {
    const Activity& activity = at(user.activity);
    if (activity.kind == Kind::kKernel) {
      enter_network(user.activity, now);
    } else if (user.hold < 0 && activity.sms > 0) {
      user.hold = network_->start_hold(gpu, activity.sms, Seconds(now));
    }
  }
}

void Sharing::enter_network(std::int32_t id, double now) {
  Activity& activity = at(id);
  const double left = activity.end - now;
  if (activity.is_in_network || left <= kPrecision) return;
  activity.is_in_network = true;
  ++activity.generation;  // its end is no longer on the agenda
  if (activity.kind == Kind::kKernel) {
    activity.num_open = 1;
    network_->start_kernel(activity.gpus.front(), Seconds(left), activity.sms, id, Seconds(now));
    return;
  }
  activity.num_open = static_cast<int>(activity.flows->flows.size());
  for (const Flow& flow : activity.flows->flows) {
    network_->start_flow(flow.from, flow.to, flow.rate * Seconds(left), id, Seconds(now));
  }
}

bool Sharing::is_current(std::int32_t id, std::int32_t generation) const {
  return activities_[static_cast<std::size_t>(id)].generation == generation;
}

bool Sharing::on_progress(std::int32_t id) { return --at(id).num_open == 0; }

void Sharing::finish(std::int32_t id) {
  Activity& activity = at(id);
  if (mode_ != SharingMode::kNone) {
    for (const int gpu : activity.gpus) {
      auto& users = sm_users_[static_cast<std::size_t>(gpu)];
      const auto user = std::ranges::find(users, id, &SmUser::activity);
      if (user->hold >= 0) network_->end_hold(user->hold);
      users.erase(user);
    }
    if (activity.has_flows_running) {
      for (const auto& [link, num_flows] : activity.flows->num_flows_on) {
        std::erase(link_users_[static_cast<std::size_t>(link)], id);
      }
    }
  }
  ++activity.generation;
  free_.push_back(id);
}

}  // namespace orrery::des
