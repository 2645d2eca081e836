#pragma once

// Costs of ordering work across streams: events and waits, one by one and inside a graph.

#include <vector>

#include "kernels/harness/probe.h"

namespace orrery {

// Runs on the current device, under a second. Throws cuda::Error.
//   event_record, stream_wait   host time of one cudaEventRecord, one cudaStreamWaitEvent (events
//                               without timing, as used for order)
//   eager_hop       device time per empty kernel when each runs on the other of two streams and
//                   waits for the one before by an event; all enqueued before the first runs
//   eager_in_order  the same kernels on one stream without events: what the hop adds to
//   graph_fork      device time per {kernel, two kernels side by side, kernel} in a replayed graph
//   graph_in_order  device time per four kernels in a row in a replayed graph
std::vector<ProbeRow> probe_sync();

}  // namespace orrery
