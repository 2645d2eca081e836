#include "kernels/execute/run_watch.h"

#include <cstdio>

namespace orrery {
namespace {

Watch::Setup watch_setup(const RunWatch::Setup& setup) {
  Watch::Setup watch{.num_ranks = setup.rank + 1,
                     .last_words = setup.last_words,
                     .end_process = setup.end_process,
                     .heeds_signals = false,
                     .grace = setup.grace};  // whoever runs the phases does
  if (!watch.last_words) {
    watch.last_words = [](const std::string& status) {
      std::fprintf(stderr, "orrery-gpu: %s\n", status.c_str());
    };
  }
  return watch;
}

}  // namespace

RunWatch::RunWatch(Setup setup)
    : setup_(std::move(setup)), fault_(setup_.fault), watch_(watch_setup(setup_)) {}

RunWatch::Phase::Phase(RunWatch& of, RunPhase phase, const std::string& op) : of_(of) {
  const Seconds limit = phase_limit(phase, of.setup_.limit);
  of.watch_.begin(limit, limit, phase);
  op.empty() ? of.watch_.expect(of.setup_.rank) : of.watch_.enqueueing(of.setup_.rank, op);
}

RunWatch::Phase::~Phase() {
  of_.watch_.end();
  of_.watch_.idle(of_.setup_.rank);
}

void UnfinishedStatus::begun(RunPhase phase) {
  const std::scoped_lock lock(mutex_);
  if (furthest_ && *furthest_ >= phase) return;
  furthest_ = phase;
  write_("unfinished: killed, or still running; it came to phase " + std::string(to_text(phase)));
}

}  // namespace orrery
