#pragma once

// Who holds the memory of a device, for errors that say why there is not enough.

#include <optional>
#include <string>

#include "sim/units/units.h"

namespace orrery {

// What others hold on a device, and who where the driver says.
struct HeldMemory {
  Bytes bytes;
  std::string holders;  // "process 4242 120.3 GiB", or empty
};
// As of the first call for this device, which must come before this process uses it: what it holds
// itself cannot be told apart. None without NVML. Thread safe.
std::optional<HeldMemory> held_by_others(int device);

// In use on the current device, by whomever.
Bytes device_memory_in_use();

// "GPU 0 (NVIDIA H200) has 12.0 GiB free of 139.8 GiB, of which others hold 120.3 GiB (process 4242
// 120.3 GiB); 24.5 GiB are needed: weights 16 GiB, KV cache 8.5 GiB"; "...; more is needed: ..."
// where that is not known. Of the current device.
std::string memory_shortage(std::optional<Bytes> needed, const std::string& purposes,
                            const std::optional<HeldMemory>& others);

// Throws std::runtime_error with memory_shortage() when less than `needed` is free on the current
// device.
void require_device_memory(Bytes needed, const std::string& purposes,
                           const std::optional<HeldMemory>& others);

}  // namespace orrery
