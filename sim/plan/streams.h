#pragma once

// Streams that have one meaning in all plans (Op::stream).

namespace orrery {

// Of collectives that run beside what stream 0 computes.
inline constexpr int kCollectiveStream = 2;

}  // namespace orrery
