#pragma once

// Times KV transfers between two GPUs.

#include <string>
#include <vector>

#include "kernels/comm/kv_transfer/pair.h"
#include "kernels/cuda/devices.h"
#include "kernels/harness/measure.h"

namespace orrery {

struct KvTransferRow {
  std::string method;  // "copy_engine", "sm_8", "sm_32", …: thread blocks
  KvPairShape shape;
  Measurement time;
};

// Bytes per block from 4 KiB to 256 KiB and counts to 4,096, contiguous and scattered, from the
// team's rank 0 to its rank 1; transfers of a sample follow each other on one stream.
std::vector<KvTransferRow> measure_kv_transfer(const cuda::DeviceTeam& team);

}  // namespace orrery
