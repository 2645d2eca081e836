#pragma once

// What ranks of two sides write into each other's memory (side_layout.h): rows, and flags.

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "kernels/cuda/devices.h"
#include "kernels/cuda/handles.h"
#include "kernels/execute/side_layout.h"

namespace orrery {

// Of all ranks of a plan, each with a GPU of this process.
class SideWorkspace {
 public:
  SideWorkspace(const cuda::DeviceTeam& team, std::int64_t area_bytes, std::int64_t num_flags);
  [[nodiscard]] bool holds(const SideLayout& layout) const {
    return layout.bytes <= area_bytes() && layout.num_flags(num_ranks()) <= num_flags();
  }
  [[nodiscard]] std::int64_t area_bytes() const { return std::ssize(at(0).area); }
  [[nodiscard]] std::int64_t num_flags() const { return std::ssize(at(0).flags); }
  [[nodiscard]] std::byte* area(int rank) const { return at(rank).area.get(); }
  [[nodiscard]] std::uint32_t* flags(int rank) const { return at(rank).flags.get(); }
  [[nodiscard]] int num_ranks() const { return static_cast<int>(ranks_.size()); }
  // Ends all that waits, and what will, while streams wait, too; it is of no use after that.
  void abort();

 private:
  struct Rank {
    int device = 0;
    cuda::DeviceBuffer<std::byte> area;
    cuda::DeviceBuffer<std::uint32_t> flags;
    cuda::Stream side;  // for what is written while streams wait
    cuda::PinnedBuffer<std::uint32_t> ones;
  };
  [[nodiscard]] const Rank& at(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }

  std::vector<Rank> ranks_;
};

}  // namespace orrery
