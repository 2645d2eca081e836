#include "kernels/experts/routing_scores/imposed_bias.h"

#include <string>
#include <vector>

#include "kernels/binding/bind_operands.h"
#include "kernels/cuda/device_copy.h"

namespace orrery {

const bf16* imposed_bias(const BindContext& context, std::int64_t experts) {
  const std::vector<float>& bias = context.numbers.routing.bias;
  if (bias.empty()) return nullptr;
  if (std::ssize(bias) != experts) {
    refuse(context, std::to_string(experts) + " biases of a load, one for each expert");
  }
  const auto upload = [&] {
    return device_copy<bf16>(std::vector<bf16>(bias.begin(), bias.end()));
  };
  using Key = std::string;
  return context.resources.keep<cuda::DeviceBuffer<bf16>>(Key("bias of the router"), upload).get();
}

}  // namespace orrery
