#include "kernels/execute/fault.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <stdexcept>
#include <thread>
#include <utility>

namespace orrery {
namespace {

constexpr std::array<std::pair<std::string_view, FaultKind>, 6> kKinds = {{
    {"throw", FaultKind::kThrow},
    {"hang", FaultKind::kHang},
    {"kill", FaultKind::kKill},
    {"nan", FaultKind::kNan},
    {"nccl", FaultKind::kNccl},
    {"stall", FaultKind::kStall},
}};

int whole(std::string_view key, std::string_view text, int least) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least) {
    throw std::invalid_argument("fault: " + std::string(key) + " is '" + std::string(text) +
                                "', expected a whole number of at least " + std::to_string(least));
  }
  return value;
}

bool is_of_thread(FaultKind kind) {
  return kind == FaultKind::kThrow || kind == FaultKind::kHang || kind == FaultKind::kKill;
}

FaultKind kind_of(std::string_view text) {
  std::string known;
  for (const auto& [name, kind] : kKinds) {
    if (name == text) return kind;
    if (!known.empty()) known += ", ";
    known += name;
  }
  throw std::invalid_argument("fault: how is '" + std::string(text) + "', expected one of " +
                              known);
}

}  // namespace

Fault parse_fault(std::string_view text) {
  Fault fault;
  bool has_rank = false;
  bool has_kind = false;
  while (!text.empty()) {
    const std::string_view field = text.substr(0, text.find(','));
    text.remove_prefix(std::min(field.size() + 1, text.size()));
    const std::size_t equals = field.find('=');
    const std::string_view key = field.substr(0, equals);
    const std::string_view value =
        equals == std::string_view::npos ? std::string_view() : field.substr(equals + 1);
    if (key == "rank") {
      fault.rank = whole(key, value, 0);
      has_rank = true;
    } else if (key == "op") {
      fault.op = value;
    } else if (key == "how") {
      fault.kind = kind_of(value);
      has_kind = true;
    } else if (key == "phase") {
      fault.phase = parse_run_phase(value);
    } else if (key == "run") {
      fault.run = whole(key, value, 1);
    } else {
      throw std::invalid_argument("fault: unknown field '" + std::string(field) +
                                  "', expected rank=, op=, phase=, how= or run=");
    }
  }
  if (!has_rank || !has_kind || fault.op.empty() != fault.phase.has_value()) {
    throw std::invalid_argument("fault: needs rank=, how=, and op= or phase=");
  }
  if (fault.phase && !is_of_thread(fault.kind)) {
    throw std::invalid_argument("fault: in a phase how is throw, hang or kill");
  }
  return fault;
}

void inject_in_thread(FaultKind kind) {
  std::fprintf(stderr, "%s\n", kFaultMark);
  if (kind == FaultKind::kThrow) throw std::runtime_error(kFaultMark);
  if (kind == FaultKind::kKill) static_cast<void>(std::raise(SIGKILL));
  while (kind == FaultKind::kHang) std::this_thread::sleep_for(std::chrono::hours(1));
}

void PhaseFault::reach(int rank, RunPhase phase) {
  if (!fault_ || fault_->phase != phase || fault_->rank != rank) return;
  if (times_.fetch_add(1) + 1 == fault_->run) inject_in_thread(fault_->kind);
}

}  // namespace orrery
