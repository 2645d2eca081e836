// What a step's tensors hold, for who looks at them: logits, inputs and outputs of layers, records.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "kernels/execute/rank_step.h"
#include "kernels/execute/weight_value.h"

namespace orrery {
namespace {

std::size_t bytes_in(const Tensor& tensor) {
  return static_cast<std::size_t>(std::ceil(bytes_of(tensor).value()));
}

std::vector<std::byte> downloaded(const cuda::Stream& stream, const void* data, std::size_t bytes) {
  std::vector<std::byte> host(bytes);
  ORRERY_CUDA(cudaMemcpyAsync(host.data(), data, bytes, cudaMemcpyDeviceToHost, stream.get()));
  stream.synchronize();
  return host;
}

template <typename T>
std::vector<T> elements(const std::vector<std::byte>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::vector<float> floats(const Tensor& tensor, const std::vector<std::byte>& bytes) {
  std::vector<float> values(static_cast<std::size_t>(num_elements(tensor)));
  switch (tensor.dtype) {
    case DType::kBf16:
      std::ranges::transform(elements<std::uint16_t>(bytes), values.begin(), from_bf16);
      return values;
    case DType::kFp32:
      return elements<float>(bytes);
    case DType::kInt32:
      std::ranges::transform(elements<std::int32_t>(bytes), values.begin(),
                             [](std::int32_t value) { return static_cast<float>(value); });
      return values;
    default:
      throw std::invalid_argument("\"" + tensor.name + "\" is " +
                                  std::string(to_text(tensor.dtype)) +
                                  ", expected bf16, fp32 or i32");
  }
}

template <typename T, typename Convert>
std::vector<std::byte> stored(std::span<const float> values, const Convert& convert) {
  std::vector<T> converted(values.size());
  std::ranges::transform(values, converted.begin(), convert);
  const auto bytes = std::as_bytes(std::span(converted));
  return {bytes.begin(), bytes.end()};
}

std::vector<std::byte> stored_as(const Tensor& tensor, std::span<const float> values) {
  switch (tensor.dtype) {
    case DType::kBf16:
      return stored<std::uint16_t>(values, bf16_bits);
    case DType::kFp32:
      return stored<float>(values, [](float value) { return value; });
    case DType::kInt32:
      return stored<std::int32_t>(values,
                                  [](float value) { return static_cast<std::int32_t>(value); });
    default:
      throw std::invalid_argument("input \"" + tensor.name + "\" is " +
                                  std::string(to_text(tensor.dtype)) +
                                  ", expected bf16, fp32 or i32");
  }
}

}  // namespace

std::optional<TensorId> RankStep::find_tensor(std::string_view name) const {
  for (std::size_t i = 0; i < plan_.tensors().size(); ++i) {
    const Tensor& tensor = plan_.tensors()[i];
    if (tensor.name == name && plan_.contains(tensor.ranks, rank_.rank())) {
      return static_cast<TensorId>(i);
    }
  }
  return std::nullopt;
}

void RankStep::give(std::string_view name, std::span<const float> values) {
  const std::optional<TensorId> id = find_tensor(name);
  const auto input = id ? inputs_.find(*id) : inputs_.end();
  if (input == inputs_.end()) {
    throw std::invalid_argument("\"" + std::string(name) + "\" is no input of the layer on rank " +
                                std::to_string(rank_.rank()));
  }
  const Tensor& tensor = plan_.tensors()[static_cast<std::size_t>(*id)];
  if (std::ssize(values) != num_elements(tensor)) {
    throw std::invalid_argument(std::to_string(values.size()) + " values for \"" + tensor.name +
                                "\", expected " + std::to_string(num_elements(tensor)));
  }
  const std::vector<std::byte> bytes = stored_as(tensor, values);
  ORRERY_CUDA(cudaMemcpyAsync(input->second.get(), bytes.data(), bytes.size(),
                              cudaMemcpyHostToDevice, rank_.stream(0).get()));
  rank_.stream(0).synchronize();
}

std::vector<float> RankStep::take(std::string_view name) const {
  const std::optional<TensorId> id = find_tensor(name);
  const Operand found = id ? operand(*id, 0) : Operand{};
  if (found.data == nullptr) {
    throw std::invalid_argument("the layer has no \"" + std::string(name) + "\" on rank " +
                                std::to_string(rank_.rank()));
  }
  return floats(*found.tensor, downloaded(rank_.stream(0), found.data, bytes_in(*found.tensor)));
}

void RankStep::record(const Task& task, const cuda::Stream& stream) {
  const Op& op = plan_.ops()[static_cast<std::size_t>(task.op)];
  const cuda::DeviceBuffer<float>& to = *recorded_[current_];
  ORRERY_CUDA(cudaMemcpyAsync(to.get(), operand(op.writes.front(), task.copy).data,
                              to.size() * sizeof(float), cudaMemcpyDeviceToDevice, stream.get()));
}

std::vector<std::vector<float>> RankStep::recorded() const {
  std::vector<std::vector<float>> values(recorded_.size());
  for (std::size_t i = 0; i < recorded_.size(); ++i) {
    if (!recorded_[i]) continue;
    values[i] = elements<float>(
        downloaded(rank_.stream(0), recorded_[i]->get(), recorded_[i]->size() * sizeof(float)));
  }
  return values;
}

std::vector<float> RankStep::logits(int micro_batch) const {
  const Part& part = parts_[static_cast<std::size_t>(micro_batch)];
  if (!has_results(part)) return {};
  const Tensor& tensor = plan_.tensors()[static_cast<std::size_t>(part.logits)];
  if (tensor.dtype != DType::kBf16) {
    throw std::invalid_argument("logits are " + std::string(to_text(tensor.dtype)) +
                                ", expected bf16");
  }
  const auto offset = buffers_.offsets[static_cast<std::size_t>(part.logits)];
  return floats(tensor, downloaded(rank_.stream(0), arena_->get() + offset, bytes_in(tensor)));
}

void RankStep::keep_instruction_times() {
  if (!megakernel_) throw std::invalid_argument("a step of launches has no instructions");
  megakernel_->keep_times();
}

void RankStep::lose_value(std::int32_t unit) {
  if (!megakernel_) throw std::invalid_argument("a step of launches has no board");
  megakernel_->lose(unit);
}

void RankStep::set_steps(std::int64_t steps) {
  if (!megakernel_) throw std::invalid_argument("a step of launches is one step");
  megakernel_->set_steps(steps);
}

std::vector<std::int32_t> RankStep::step_tokens() const {
  if (!megakernel_) throw std::invalid_argument("a step of launches is one step");
  return megakernel_->step_tokens(rank_.stream(0));
}

megakernel::TimedProgram RankStep::instruction_times() const {
  if (!megakernel_) throw std::invalid_argument("a step of launches has no instructions");
  return megakernel_->times(rank_.stream(0));
}

}  // namespace orrery
