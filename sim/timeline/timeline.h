#pragma once

// When everything ran: spans of ops on ranks and streams, transfers on links, and metrics over
// them. A Timeline comes from `simulate` or from `execute`; nothing in it depends on which.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/plan/plan.h"
#include "sim/units/units.h"

namespace orrery {

// How a time was obtained, from the surest on. Borrowed: on or between rows of another device of
// the same architecture; those of another architecture move a roofline.
enum class Basis : std::uint8_t { kMeasured, kInterpolated, kBorrowed, kRoofline };
std::string_view to_text(Basis basis);  // "measured", "interpolated", "borrowed", "roofline"

enum class SpanKind : std::uint8_t { kKernel, kComm, kHost };
std::string_view to_text(SpanKind kind);  // "kernel", "comm", "host"

struct Span {
  OpId op = 0;            // op of the plan it came from
  std::int32_t copy = 0;  // which copy when the op is in a repeat
  int rank = 0;
  int stream = 0;
  SpanKind kind = SpanKind::kKernel;
  Basis basis = Basis::kMeasured;
  Seconds start;
  Seconds end;
};

// A transfer occupying a link (simulated network only).
struct LinkSpan {
  int link = 0;  // index into Timeline::links
  OpId op = 0;
  Bytes bytes;
  Seconds start;
  Seconds end;
};

// An instruction of a step that is one kernel (sim/megakernel), on one SM.
struct InstructionSpan {
  int rank = 0;
  int sm = 0;
  std::string kind;  // its opcode
  std::string name;
  Seconds start;
  Seconds ready;  // the values that it waits for have come
  Seconds end;
  Seconds weights;  // of these: waiting for weights or keys
};

struct Timeline {
  std::vector<std::string> op_names;  // by OpId
  std::vector<Span> spans;            // ordered by (start, rank, stream)
  std::vector<std::string> links;
  std::vector<LinkSpan> link_spans;
  std::vector<InstructionSpan> instructions;  // ordered by (rank, sm, start)
  // How many ranks of the plan each simulated rank stands for; empty: each for itself.
  std::vector<std::pair<int, int>> represented;  // (rank, count)
};

// When the last span ends; time counts from the start of the step. Zero for an empty timeline.
Seconds makespan(const Timeline& timeline);
// Time during which at least one span of `kind` runs on `rank`.
Seconds busy(const Timeline& timeline, int rank, SpanKind kind);
// Time during which communication runs on `rank` and no kernel does.
Seconds exposed_communication(const Timeline& timeline, int rank);

// Summed time by how it was obtained.
struct BasisSeconds {
  Seconds measured;
  Seconds interpolated;
  Seconds borrowed;
  Seconds roofline;
};
Seconds& of_basis(BasisSeconds& sums, Basis basis);
Seconds total(const BasisSeconds& basis);

// Shares of a time by basis; they add to 1 (all zero when there is no time).
struct BasisShares {
  double measured = 0;
  double interpolated = 0;
  double borrowed = 0;
  double roofline = 0;
};
BasisShares shares(const BasisSeconds& basis);

// Chrome trace event JSON, opens in Perfetto: one process per rank with one thread per stream, one
// process "links" with one thread per link (and more where transfers on a link overlap, since a
// thread shows one at a time). Events carry the op's name, kind and basis; times in microseconds,
// rounded to Perfetto's nanosecond. Throws std::invalid_argument on a span whose op or link is
// unknown.
std::string to_perfetto(const Timeline& timeline);

}  // namespace orrery
