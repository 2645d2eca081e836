#pragma once

// Hand-made spans. Times are small whole numbers, so sums of them are exact.

#include "sim/timeline/timeline.h"

namespace orrery {

inline Span kernel_span(double start, double end, int rank = 0, int stream = 0, OpId op = 0) {
  return {.op = op,
          .copy = 0,
          .rank = rank,
          .stream = stream,
          .kind = SpanKind::kKernel,
          .basis = Basis::kMeasured,
          .start = Seconds(start),
          .end = Seconds(end)};
}

inline Span comm_span(double start, double end, int rank = 0, int stream = 1, OpId op = 1) {
  Span span = kernel_span(start, end, rank, stream, op);
  span.kind = SpanKind::kComm;
  return span;
}

inline Timeline timeline_of(std::vector<Span> spans) {
  Timeline timeline;
  timeline.op_names = {"gemm", "all_reduce", "norm"};
  timeline.spans = std::move(spans);
  return timeline;
}

}  // namespace orrery
