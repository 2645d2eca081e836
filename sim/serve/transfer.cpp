#include "sim/serve/transfer.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>
#include <utility>

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
    : links_(links), num_decode_(num_decode), pairs_(links.size()) {}

void TransferQueue::submit(Seconds now, std::int64_t idx, int prefill, int decode, Bytes bytes) {
  const auto index = static_cast<std::size_t>(prefill) * static_cast<std::size_t>(num_decode_) +
                     static_cast<std::size_t>(decode);
  Pair& pair = pairs_[index];
  const TransferTime& time = links_[index].time;
  pair.waiting.push_back({.idx = idx, .start = time.start, .alone = transfer_time(time, bytes)});
  if (pair.waiting.size() > 1) return;
  begin(now, pair);
  moving_.insert(std::ranges::lower_bound(moving_, index), index);
  share_out(now);
}

std::optional<Seconds> TransferQueue::next_event() const {
  std::optional<Seconds> first;
  for (const std::size_t index : moving_) {
    const Seconds end = pairs_[index].end();
    first = first ? std::min(*first, end) : end;
  }
  return first;
}

void TransferQueue::advance(Seconds now, std::vector<Ended>& ended) {
  const std::size_t before = ended.size();
  for (const std::size_t index : moving_) {
    Pair& pair = pairs_[index];
    if (pair.end() > now) continue;
    const int prefill = static_cast<int>(index) / num_decode_;
    const int decode = static_cast<int>(index) % num_decode_;
    ended.push_back({.idx = pair.waiting.front().idx,
                     .prefill = prefill,
                     .decode = decode,
                     .start = pair.start,
                     .end = now});
    pair.waiting.pop_front();
    if (!pair.waiting.empty()) begin(now, pair);
  }
  if (ended.size() == before) return;
  std::erase_if(moving_, [&](std::size_t index) { return pairs_[index].waiting.empty(); });
  share_out(now);
}

void TransferQueue::begin(Seconds now, Pair& pair) {
  const Waiting& first = pair.waiting.front();
  pair.start = now + first.start;
  pair.since = now;
  pair.left = first.start + first.alone;
  pair.share = 1;
}

// Progressive filling: the port with the least share for each of its transfers fixes theirs, repeat
// (Bertsekas, Gallager, Data Networks, 2nd ed., section 6.5.2). Every port has room for one
// transfer at full speed.
void TransferQueue::share_out(Seconds now) {
  using Port = std::tuple<bool, int, int>;  // of a decode replica, fabric, replica
  struct Load {
    double left = 1;
    int num_open = 0;
  };
  std::map<Port, Load> loads;
  std::vector<std::pair<Port, Port>> ports;
  for (const std::size_t index : moving_) {
    const int fabric = links_[index].fabric;
    ports.emplace_back(Port(false, fabric, static_cast<int>(index) / num_decode_),
                       Port(true, fabric, static_cast<int>(index) % num_decode_));
    ++loads[ports.back().first].num_open;
    ++loads[ports.back().second].num_open;
  }
  std::vector<char> is_fixed(moving_.size(), 0);
  for (std::size_t num_fixed = 0; num_fixed < moving_.size();) {
    const Port* narrow = nullptr;
    double share = 2;
    for (const auto& [port, load] : loads) {
      if (load.num_open > 0 && load.left / load.num_open < share) {
        share = load.left / load.num_open;
        narrow = &port;
      }
    }
    for (std::size_t i = 0; i < moving_.size(); ++i) {
      if (is_fixed[i] != 0 || (ports[i].first != *narrow && ports[i].second != *narrow)) continue;
      is_fixed[i] = 1;
      ++num_fixed;
      for (const Port& port : {ports[i].first, ports[i].second}) {
        loads[port].left -= share;
        --loads[port].num_open;
      }
      Pair& pair = pairs_[moving_[i]];
      if (pair.share == share) continue;
      pair.left = std::max(pair.left - (now - pair.since) * pair.share, Seconds(0));
      pair.since = now;
      pair.share = share;
    }
  }
}

}  // namespace orrery
