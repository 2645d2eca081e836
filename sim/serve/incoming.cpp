#include "sim/serve/incoming.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "sim/serve/fast_forward.h"

namespace orrery {

void Incoming::reserve_next(Seconds now, bool is_running) {
  Item item{.handover = unreserved_.front()};
  item.reserved = std::max(now, item.handover.time);
  if (!is_running && item.reserved == now) item.without_delay = now;
  items_.push_back(item);
  newly_reserved_.push_back(item.handover.idx);
  unreserved_.pop_front();
}

std::vector<std::int64_t> Incoming::take_reserved() { return std::exchange(newly_reserved_, {}); }

bool Incoming::first_token(Seconds now, std::int64_t idx, bool is_running) {
  const auto item =
      std::ranges::find(items_, idx, [](const Item& known) { return known.handover.idx; });
  if (item == items_.end()) {
    const auto next = std::ranges::find(unreserved_, idx, &Handover::idx);
    if (next != unreserved_.end()) next->time = now;
    return false;
  }
  item->handover.time = now;
  if (item->reserved == kNever) item->reserved = now;
  if (!is_running) item->without_delay = now;
  return true;
}

void Incoming::complete_transfer(Seconds now, std::int64_t idx) {
  const auto item =
      std::ranges::find(items_, idx, [](const Item& known) { return known.handover.idx; });
  assert(item != items_.end());
  item->ready = now;
}

void Incoming::next_step(Seconds begin, Seconds end) {
  for (Item& item : items_) {
    if (!item.without_delay && item.reserved <= begin) item.without_delay = end;
  }
}

std::vector<Incoming::Item> Incoming::take_ready(Seconds now, Seconds known) {
  std::vector<Item> taken;
  std::vector<Item> others;
  for (Item& item : items_) {
    if (!item.without_delay && item.reserved <= known) item.without_delay = now;
    const bool is_here = item.ready && *item.ready <= known;
    (is_here ? taken : others).push_back(item);
  }
  items_ = std::move(others);
  return taken;
}

bool Incoming::has_ready() const {
  return std::ranges::any_of(items_, [](const Item& item) { return item.ready.has_value(); });
}

}  // namespace orrery
