#include "kernels/execute/reference/interpreted.h"

#include <vector>

#include "kernels/execute/weights.h"

namespace orrery::reference {

megakernel::InterpreterSetup interpreter_setup(const Plan& plan, std::uint64_t seed) {
  return {
      .weight = [&plan, shards = weight_shards(plan, 0), seed](const megakernel::WeightName& name) {
        const auto tensor = static_cast<std::size_t>(name.tensor);
        const auto shard = static_cast<std::size_t>(shards.tensor_shard[tensor]);
        const StoredWeight stored =
            stored_weight(shards.shards[shard], name.copy, plan.tensors()[tensor].dtype, seed);
        std::vector<double> values(stored.values.begin(), stored.values.end());
        if (stored.scales.empty()) return values;
        const std::size_t columns = values.size() / stored.scales.size();
        for (std::size_t i = 0; i < values.size(); ++i) values[i] *= stored.scales[i / columns];
        return values;
      }};
}

}  // namespace orrery::reference
