#include <map>
#include <mutex>

#include "kernels/cuda/check.h"
#include "kernels/cuda/clusters.h"

namespace orrery::cuda {
namespace {

__global__ void __launch_bounds__(1024) nothing() {}

int count_clusters(int size) {
  constexpr std::size_t kMoreThanHalf = std::size_t{120} * 1024;  // of an SM's
  const auto kernel = reinterpret_cast<const void*>(nothing);
  ORRERY_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(kMoreThanHalf)));
  ORRERY_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {.x = static_cast<unsigned>(size), .y = 1, .z = 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(size));
  config.blockDim = dim3(128);
  config.dynamicSmemBytes = kMoreThanHalf;
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;
  ORRERY_CUDA(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
  return clusters;
}

}  // namespace

const ClusterCounts& most_clusters() {
  static std::mutex mutex;
  static std::map<int, ClusterCounts> known;
  int device = 0;
  ORRERY_CUDA(cudaGetDevice(&device));
  const std::scoped_lock lock(mutex);
  if (const auto found = known.find(device); found != known.end()) return found->second;
  ClusterCounts counts{};
  for (std::size_t i = 0; i < counts.size(); ++i) counts[i] = count_clusters(kClusterSizes[i]);
  return known.emplace(device, counts).first->second;
}

}  // namespace orrery::cuda
