#pragma once

// What launches of one rank's stream share: scratch memory, plans of kernels, what is made for a
// step. Memory stays where it is for the life of the object, since captured graphs hold the
// addresses; an executor makes one for each rank, on its device, and lets it outlive their launches
// and graphs. Not thread safe. Allocates and synchronises: not while its device captures.

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <typeindex>
#include <vector>

#include "kernels/binding/step_input.h"
#include "kernels/cuda/handles.h"

namespace orrery {

class BindResources {
 public:
  // Serves the device that is current in later calls, always the same. `overlap_weights`: kernels
  // that stream their weights start while the kernel before them ends and fetch weights meanwhile,
  // which is right for a model, whose weights nothing writes.
  explicit BindResources(bool overlap_weights = false) : overlap_weights_(overlap_weights) {}
  [[nodiscard]] bool overlaps_weights() const { return overlap_weights_; }
  // At least `bytes` of memory for one purpose, 256-byte aligned, zeroed when it is allocated and
  // not again; callers of a purpose get the same memory and are ordered by the stream. A larger
  // request gets new memory, and the old stays for graphs that hold it.
  std::byte* scratch(const std::string& purpose, std::size_t bytes);
  // make(), kept for the life of this object, or what it was when T was first asked for by such a
  // key.
  template <typename T, typename Key, typename Make>
  const T& keep(const Key& key, const Make& make) {
    std::map<Key, T>& values = store<std::map<Key, T>>(kept_);
    const auto found = values.find(key);
    return found != values.end() ? found->second : values.emplace(key, make()).first->second;
  }
  // Likewise, made once for a step from its prefill sequences. Shared, since a step that was bound
  // may be run again after the next one has begun: its launches keep what they use alive, and
  // whoever captures them keeps it as long as the graph. Launches must have ended when the last
  // owner lets go.
  template <typename T, typename Key, typename Make>
  std::shared_ptr<const T> keep_for_step(const Key& key, const Make& make) {
    auto& value = store<std::map<Key, std::shared_ptr<const T>>>(kept_for_step_)[key];
    if (value == nullptr) value = std::make_shared<const T>(make(prefill_));
    return value;
  }
  // A new step: what the old one kept lives on in its launches only.
  void begin_step(std::span<const PrefillChunk> prefill);
  // Device memory held as scratch, in bytes: the "workspace" of memory reports.
  [[nodiscard]] std::size_t bytes() const;

 private:
  // One container of each type. Shared pointers since these know how to end what they hold.
  using Stores = std::map<std::type_index, std::shared_ptr<void>>;
  template <typename Container>
  static Container& store(Stores& stores) {
    std::shared_ptr<void>& found = stores[typeid(Container)];
    if (found == nullptr) found = std::make_shared<Container>();
    return *static_cast<Container*>(found.get());
  }

  bool overlap_weights_;
  std::map<std::string, std::vector<cuda::DeviceBuffer<std::byte>>> scratch_;
  Stores kept_;
  Stores kept_for_step_;
  std::vector<PrefillChunk> prefill_;
};

}  // namespace orrery
