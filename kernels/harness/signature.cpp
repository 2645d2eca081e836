#include "kernels/harness/signature.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "kernels/cuda/check.h"
#include "kernels/cuda/driver_function.h"

namespace orrery {
namespace {

// Whose functions for kernels of graphs are called.
constexpr unsigned kSinceCuda = 12030;

void require(CUresult code, const char* call) {
  if (code != CUDA_SUCCESS) {
    throw std::runtime_error(std::string(call) + ": CUDA driver error " + std::to_string(code));
  }
}

std::string kernel_text(cudaGraphNode_t node) {
  static const auto parameters_of =
      cuda::driver_function<CUresult (*)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS*)>(
          "cuGraphKernelNodeGetParams", kSinceCuda);
  static const auto function_name =
      cuda::driver_function<CUresult (*)(const char**, CUfunction)>("cuFuncGetName", kSinceCuda);
  static const auto kernel_name =
      cuda::driver_function<CUresult (*)(const char**, CUkernel)>("cuKernelGetName", kSinceCuda);
  CUDA_KERNEL_NODE_PARAMS launch{};
  require(parameters_of(node, &launch), "cuGraphKernelNodeGetParams");
  const char* name = nullptr;
  if (launch.func != nullptr) {
    require(function_name(&name, launch.func), "cuFuncGetName");
  } else {
    require(kernel_name(&name, launch.kern), "cuKernelGetName");
  }
  const bool is_one = launch.gridDimX * launch.gridDimY * launch.gridDimZ == 1;
  return std::string(name) + " threads " +
         std::to_string(launch.blockDimX * launch.blockDimY * launch.blockDimZ) + " shared " +
         std::to_string(launch.sharedMemBytes) + (is_one ? " one block" : " blocks");
}

std::string node_text(cudaGraphNode_t node) {
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  ORRERY_CUDA(cudaGraphNodeGetType(node, &type));
  if (type == cudaGraphNodeTypeKernel) return kernel_text(node);
  return "node of type " + std::to_string(static_cast<int>(type));
}

}  // namespace

std::string launch_signature(KernelCase& kernel_case) {
  const cuda::Stream stream;
  kernel_case.reset(stream);
  kernel_case.launch(stream, 0);  // libraries load at their first launch
  stream.synchronize();
  ORRERY_CUDA(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    kernel_case.launch(stream, 0);
  } catch (...) {  // the capture must end before the error leaves
    static_cast<void>(cudaStreamEndCapture(stream.get(), &graph));
    throw;
  }
  ORRERY_CUDA(cudaStreamEndCapture(stream.get(), &graph));
  struct DestroyGraph {
    void operator()(cudaGraph_t owned) const { static_cast<void>(cudaGraphDestroy(owned)); }
  };
  const std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, DestroyGraph> owner(graph);
  std::size_t count = 0;
  ORRERY_CUDA(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  if (count > 0) ORRERY_CUDA(cudaGraphGetNodes(graph, nodes.data(), &count));
  // Nodes come in no promised order.
  std::vector<std::string> texts(nodes.size());
  std::ranges::transform(nodes, texts.begin(), node_text);
  std::ranges::sort(texts);
  std::string signature;
  for (const std::string& text : texts) signature += text + "; ";
  return signature;
}

}  // namespace orrery
