#include "kernels/calibrate/row.h"

#include <algorithm>
#include <charconv>
#include <stdexcept>

namespace orrery::calibrate {

std::string_view l2_text(L2State l2) { return l2 == L2State::kWarm ? "warm" : "cold"; }

State parse_state(std::string_view l2, std::string_view mode) {
  if ((l2 != "cold" && l2 != "warm") ||
      std::ranges::find(kLaunchModes, mode) == kLaunchModes.end()) {
    throw std::invalid_argument("found state '" + std::string(l2) + " " + std::string(mode) +
                                "'; expected cold or warm, graph or eager");
  }
  return {.l2 = l2 == "warm" ? L2State::kWarm : L2State::kCold, .mode = parse_launch_mode(mode)};
}

std::string op_text(const KernelOp& op) {
  std::string text = op.kernel + " " + std::string(to_text(op.dtype));
  for (const Dim& dim : op.dims) text += " " + dim.name + "=" + std::to_string(dim.size);
  return text;
}

Dims parse_dims(std::string_view text) {
  Dims dims;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    const std::size_t equals = word.find('=');
    std::int64_t size = 0;
    const char* const end = word.data() + word.size();
    if (equals == std::string_view::npos ||
        std::from_chars(word.data() + equals + 1, end, size).ptr != end ||
        equals + 1 == word.size()) {
      throw std::invalid_argument("found dim '" + std::string(word) + "'; expected name=size");
    }
    dims.push_back({.name = std::string(word.substr(0, equals)), .size = size, .axis = {}});
  }
  return dims;
}

std::string key(const KernelOp& op, State state) {
  return op_text(op) + " " + std::string(l2_text(state.l2)) + " " +
         std::string(to_text(state.mode));
}

}  // namespace orrery::calibrate
