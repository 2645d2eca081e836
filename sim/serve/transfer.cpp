#include "sim/serve/transfer.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace orrery {

Seconds transfer_time(const TransferTime& time, Bytes bytes) {
  const std::vector<TransferPoint>& points = time.points;
  if (points.empty()) return time.latency + bytes / time.rate;
  if (bytes <= points.front().bytes || points.size() == 1) {
    return time.latency + time.beside_steps * points.front().time;
  }
  const auto next = std::ranges::upper_bound(points, bytes, {}, &TransferPoint::bytes);
  const TransferPoint& high = next == points.end() ? points.back() : *next;
  const TransferPoint& low = *std::prev(next == points.end() ? std::prev(next) : next);
  const double share = (bytes - low.bytes) / (high.bytes - low.bytes);
  return time.latency + time.beside_steps * (low.time + (high.time - low.time) * share);
}

TransferQueue::TransferQueue(std::span<const TransferLink> links, int num_decode)
    : links_(links), num_decode_(num_decode) {}

void TransferQueue::submit(Seconds now, std::int64_t idx, int prefill, int decode, Bytes bytes,
                           const Layers& layers) {
  const auto index = static_cast<std::size_t>(prefill) * static_cast<std::size_t>(num_decode_) +
                     static_cast<std::size_t>(decode);
  Pair& pair = moving_[index];
  const TransferTime& time = links_[index].time;
  Waiting waiting{
      .idx = idx, .start = time.start, .alone = transfer_time(time, bytes), .first = layers.first};
  if (layers.last_part > 0) {
    waiting.least_end = layers.last + transfer_time(time, bytes * layers.last_part);
  }
  pair.waiting.push_back(waiting);
  if (pair.waiting.size() > 1) return;
  begin(now, pair);
  share_out(now);
}

std::optional<Seconds> TransferQueue::next_event() const {
  std::optional<Seconds> first;
  if (!settling_.empty()) first = settling_.begin()->first;
  for (const auto& [index, pair] : moving_) {
    const Seconds end = pair.end();
    first = first ? std::min(*first, end) : end;
  }
  return first;
}

void TransferQueue::advance(Seconds now, std::vector<Ended>& ended) {
  bool has_moved = false;
  for (auto& [index, pair] : moving_) {
    if (pair.end() > now) continue;
    const int prefill = static_cast<int>(index) / num_decode_;
    const int decode = static_cast<int>(index) % num_decode_;
    has_moved = true;
    const Waiting& first = pair.waiting.front();
    Ended moved{.idx = first.idx,
                .prefill = prefill,
                .decode = decode,
                .start = pair.start,
                .end = std::max(now, first.least_end)};
    if (moved.end > now) {
      settling_.emplace(moved.end, moved);
    } else {
      ended.push_back(moved);
    }
    pair.waiting.pop_front();
    if (!pair.waiting.empty()) begin(now, pair);
  }
  for (; !settling_.empty() && settling_.begin()->first <= now;
       settling_.erase(settling_.begin())) {
    ended.push_back(settling_.begin()->second);
  }
  if (!has_moved) return;
  std::erase_if(moving_, [](const auto& moving) { return moving.second.waiting.empty(); });
  share_out(now);
}

void TransferQueue::begin(Seconds now, Pair& pair) {
  const Waiting& first = pair.waiting.front();
  const Seconds wait = std::max(first.first - now, Seconds(0)) + first.start;
  pair.start = now + wait;
  pair.since = now;
  pair.left = wait + first.alone;
  pair.share = 1;
}

namespace {

// A port of the busiest GPU of a rank, and what its transfers take of it.
struct Port {
  double left = 1;
  double open = 0;  // of those that have no share yet, at full speed
  int num_open = 0;
};

struct Use {
  Port* port;
  double taken;
};

}  // namespace

// Progressive filling: the port with the least share for each of its transfers fixes theirs, repeat
// (Bertsekas, Gallager, Data Networks, 2nd ed., section 6.5.2). Every port has room for one
// transfer at full speed that takes all of it. Those that no port slows down move as alone.
void TransferQueue::share_out(Seconds now) {
  std::map<std::tuple<bool, int, int>, Port> ports;  // by side, fabric, rank
  struct Moving {
    Pair* pair;
    std::array<Use, 2> uses;
    bool is_fixed = false;
  };
  std::vector<Moving> open;
  for (auto& [index, pair] : moving_) {
    const TransferLink& link = links_[index];
    const int from = static_cast<int>(index) / num_decode_;
    const int to = static_cast<int>(index) % num_decode_;
    open.push_back({.pair = &pair,
                    .uses = {Use{&ports[{false, link.fabric, from}], link.leaving},
                             Use{&ports[{true, link.fabric, to}], link.entering}}});
    for (const Use& use : open.back().uses) {
      use.port->open += use.taken;
      ++use.port->num_open;
    }
  }
  for (std::size_t num_fixed = 0; num_fixed < open.size();) {
    const Port* narrow = nullptr;
    double share = 1;
    for (const auto& [name, port] : ports) {
      if (port.num_open == 0 || port.left / port.open >= share) continue;
      share = port.left / port.open;
      narrow = &port;
    }
    for (Moving& moving : open) {
      const auto is_narrow = [&](const Use& use) { return use.port == narrow; };
      if (moving.is_fixed || (narrow != nullptr && std::ranges::none_of(moving.uses, is_narrow))) {
        continue;
      }
      moving.is_fixed = true;
      ++num_fixed;
      for (const Use& use : moving.uses) {
        use.port->left -= share * use.taken;
        use.port->open -= use.taken;
        --use.port->num_open;
      }
      Pair& pair = *moving.pair;
      if (pair.share == share) continue;
      pair.left = std::max(pair.left - (now - pair.since) * pair.share, Seconds(0));
      pair.since = now;
      pair.share = share;
    }
  }
}

}  // namespace orrery
