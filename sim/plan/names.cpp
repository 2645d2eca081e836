// The words for enumerators, in one table per enum, both ways.

#include <array>
#include <span>
#include <stdexcept>
#include <string>

#include "sim/plan/launch_mode.h"
#include "sim/plan/plan.h"
#include "sim/units/nearest.h"
#include "sim/units/shown.h"

namespace orrery {
namespace {

// Entry i names the enumerator of value i.
constexpr std::array<std::string_view, 10> kDTypes{"fp32",  "bf16",  "fp16", "fp8",  "fp8_block",
                                                   "mxfp4", "nvfp4", "int4", "int8", "int32"};
constexpr std::array<std::string_view, 6> kRoles{"weight", "activation", "kv_cache",
                                                 "input",  "output",     "state"};
constexpr std::array<std::string_view, 6> kCollectives{"all_reduce", "all_gather", "reduce_scatter",
                                                       "all_to_all", "send_recv",  "broadcast"};
constexpr std::array<std::string_view, 4> kHostKinds{"launch_gap", "d2h_sync", "scheduler",
                                                     "sampling"};

template <typename Enum>
Enum parse(std::string_view text, std::span<const std::string_view> names, std::string_view what) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == text) return static_cast<Enum>(i);
  }
  std::string message = "unknown " + std::string(what) + " \"" + shown(text) + "\", nearest is \"" +
                        nearest(text, names) + "\"; expected one of";
  for (const std::string_view name : names) message.append(" ").append(name);
  throw std::invalid_argument(message);
}

}  // namespace

std::string_view to_text(LaunchMode mode) { return kStepModes.at(static_cast<std::size_t>(mode)); }
LaunchMode parse_launch_mode(std::string_view text) {
  return parse<LaunchMode>(text, kLaunchModes, "launch mode");
}

std::string_view to_text(DType dtype) { return kDTypes.at(static_cast<std::size_t>(dtype)); }
std::string_view to_text(TensorRole role) { return kRoles.at(static_cast<std::size_t>(role)); }
std::string_view to_text(CollectiveKind kind) {
  return kCollectives.at(static_cast<std::size_t>(kind));
}
std::string_view to_text(HostKind kind) { return kHostKinds.at(static_cast<std::size_t>(kind)); }

DType parse_dtype(std::string_view text) { return parse<DType>(text, kDTypes, "dtype"); }
TensorRole parse_tensor_role(std::string_view text) {
  return parse<TensorRole>(text, kRoles, "tensor role");
}
CollectiveKind parse_collective_kind(std::string_view text) {
  return parse<CollectiveKind>(text, kCollectives, "collective");
}
HostKind parse_host_kind(std::string_view text) {
  return parse<HostKind>(text, kHostKinds, "host op");
}

double bytes_per_element(DType dtype) {
  switch (dtype) {
    case DType::kFp32:
    case DType::kInt32:
      return 4;
    case DType::kBf16:
    case DType::kFp16:
      return 2;
    case DType::kFp8:
    case DType::kInt8:
      return 1;  // one scale per tensor or token: nothing per element
    case DType::kFp8Block:
      return 1 + 4.0 / (128 * 128);  // a float for each 128x128 block
    case DType::kMxfp4:
      return 0.5 + 1.0 / 32;  // one E8M0 byte for 32 elements; OCP MX specification v1.0, table 1
    case DType::kNvfp4:
      return 0.5 + 1.0 / 16;  // one E4M3 byte for 16 elements; NVIDIA cuDNN, block scaling of FP4
    case DType::kInt4:
      return 0.5 + 2.0 / 128;  // a bf16 scale for 128 elements, the group size of AWQ and GPTQ
  }
  throw std::invalid_argument("not a dtype: " + std::to_string(static_cast<int>(dtype)));
}

}  // namespace orrery
