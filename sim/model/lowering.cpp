#include "sim/model/lowering.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace orrery {
namespace {

bool check_precision(const Precision& precision) {
  const bool quantises = is_input_format(precision.activations);
  if (!quantises && precision.activations != DType::kBf16) {
    throw std::invalid_argument("activations are " + std::string(to_text(precision.activations)) +
                                ", expected bf16, fp8, fp8_block or nvfp4");
  }
  if (quantises && !is_input_format(precision.weights)) {
    throw std::invalid_argument("activations are " + std::string(to_text(precision.activations)) +
                                " with weights " + std::string(to_text(precision.weights)) +
                                ", expected fp8, fp8_block or nvfp4 weights, or bf16 activations");
  }
  return quantises;
}

bool fuses_residual(const ModelConfig& model, const LoweringOptions& options) {
  return options.fuse_residual_norm && model.layer_form != LayerForm::kNormAfter;
}

}  // namespace

bool is_input_format(DType dtype) {
  return dtype == DType::kFp8 || dtype == DType::kFp8Block || dtype == DType::kNvfp4;
}

Lowering::Lowering(const ModelConfig& model_config, const StepShape& shape,
                   const LoweringOptions& lowering_options)
    : model(model_config),
      options(lowering_options),
      step(shape),
      fuses_residual_(fuses_residual(model_config, lowering_options)),
      has_fp8_activations_(check_precision(lowering_options.precision)) {
  plan.reserve(32, 64);
  ranks_ = plan.add_group({0});
  hidden = activation("hidden", {tokens(), hidden_axis()});
  if (fuses_residual_) {
    residual_ = tensor("residual", DType::kBf16, TensorRole::kInput, {tokens(), hidden_axis()});
  }
}

Lowering::Lowering(const ModelConfig& model_config, std::int64_t num_rows,
                   const LoweringOptions& lowering_options)
    : model(model_config),
      options(lowering_options),
      step(step_shape({.prefill = {}, .num_decodes = num_rows, .decode_context = num_rows})),
      has_fp8_activations_(check_precision(lowering_options.precision)) {
  ranks_ = plan.add_group({0});
  hidden = tensor("x", DType::kBf16, TensorRole::kInput, {tokens(), hidden_axis()});
}

Lowering::Lowering(const ModelConfig& model_config, const StepShape& shape,
                   const LoweringOptions& lowering_options, AttentionDims& dims, bool wants_names)
    : model(model_config),
      options(lowering_options),
      step(shape),
      hidden(0),
      fuses_residual_(fuses_residual(model_config, lowering_options)),
      dims_(&dims),
      wants_names_(wants_names),
      has_fp8_activations_(check_precision(lowering_options.precision)) {}

std::string Lowering::named(std::string_view name) const {
  std::string result;
  result.reserve(prefix_.size() + name.size());
  return result.append(prefix_).append(name);
}

TensorId Lowering::tensor(std::string_view name, DType dtype, TensorRole role,
                          std::initializer_list<AxisRef> axes) {
  if (dims_ != nullptr) return 0;
  Tensor tensor{.name = named(name), .dtype = dtype, .axes = {}, .role = role, .ranks = ranks_};
  tensor.axes.reserve(axes.size());
  for (const AxisRef& axis : axes) {
    tensor.axes.push_back({std::string(axis.name), axis.size, split_of(axis)});
  }
  return plan.add_tensor(std::move(tensor));
}

TensorId Lowering::weight_of(std::string_view name, DType dtype,
                             std::initializer_list<AxisRef> axes) {
  return dims_ != nullptr ? 0 : weight(std::string(name) + ".weight", dtype, axes);
}

SplitId Lowering::split_of(const AxisRef& axis) {
  if (axis.parts == 1) return kNoSplit;
  const auto parts = static_cast<std::size_t>(axis.parts);
  return plan.add_split({.parts = std::vector(parts, whole_part(axis.size / axis.parts))});
}

void Lowering::add_dims(std::string_view name, std::span<const DimRef> dims) {
  for (const DimRef& dim : dims) dims_->sizes.push_back(dim.size);
  if (wants_names_) dims_->ops.push_back(named(name));
}

void Lowering::kernel(std::string_view name, std::string_view kernel, DType dtype,
                      std::initializer_list<DimRef> dims, std::initializer_list<TensorView> reads,
                      std::initializer_list<TensorView> writes) {
  if (dims_ != nullptr) return add_dims(name, std::span(dims.begin(), dims.size()));
  this->kernel(name, kernel, dtype, dims, TensorViews(reads), TensorViews(writes));
}

void Lowering::kernel(std::string_view name, std::string_view kernel, DType dtype,
                      std::span<const DimRef> dims, TensorViews reads, TensorViews writes) {
  if (dims_ != nullptr) return add_dims(name, dims);
  KernelOp body{.kernel = std::string(kernel), .dtype = dtype, .dims = {}};
  body.dims.reserve(dims.size());
  for (const DimRef& dim : dims) {
    body.dims.push_back({std::string(dim.name), dim.size, std::string(dim.axis)});
  }
  plan.add_op({.name = named(name),
               .body = std::move(body),
               .ranks = ranks_,
               .stream = stream_,
               .reads = std::move(reads),
               .writes = std::move(writes),
               .after = {}});
}

void Lowering::host(std::string_view name, HostKind kind, TensorViews reads) {
  plan.add_op({.name = named(name),
               .body = HostOp{.kind = kind},
               .ranks = ranks_,
               .stream = stream_,
               .reads = std::move(reads),
               .writes = {},
               .after = {}});
}

TensorId Lowering::linear(Linear spec) {
  TensorViews reads = std::move(spec.inputs);
  if (dims_ == nullptr) {
    reads.emplace_back(weight_of(spec.name, spec.weights, {spec.n, spec.k}));
    if (spec.has_bias) {
      reads.emplace_back(weight(std::string(spec.name) + ".bias", DType::kBf16, {spec.n}));
    }
  }
  const TensorId output =
      spec.output >= 0 ? spec.output : activation(spec.name, {spec.rows, spec.n});
  kernel(spec.name, "gemm", spec.weights,
         {{"m", spec.rows.size, spec.rows.name},
          {"n", spec.n.size, spec.n.name},
          {"k", spec.k.size, spec.k.name}},
         std::move(reads), {output});
  return output;
}

TensorId Lowering::rms_norm(std::string_view name, TensorView x, AxisRef rows, AxisRef width,
                            bool is_quantised) {
  const DType dtype = is_quantised ? options.precision.activations : DType::kBf16;
  const TensorId gain = weight_of(name, DType::kBf16, {width});
  const TensorId normed = tensor(name, dtype, TensorRole::kActivation, {rows, width});
  kernel(name, "rms_norm", dtype,
         {{"tokens", rows.size, rows.name}, {"hidden", width.size, width.name}}, {x, gain},
         {normed});
  return normed;
}

TensorId Lowering::sum_norm(std::string_view name, bool is_quantised) {
  if (!fuses_residual_) {
    return rms_norm(name, hidden, tokens(), hidden_axis(), is_quantised);
  }
  const DType dtype = is_quantised ? options.precision.activations : DType::kBf16;
  const TensorId gain = weight_of(name, DType::kBf16, {hidden_axis()});
  const TensorId normed = tensor(name, dtype, TensorRole::kActivation, {tokens(), hidden_axis()});
  kernel(name, "add_rms_norm", dtype,
         {{"tokens", step.tokens, axis::kTokens}, {"hidden", model.hidden_size, axis::kHidden}},
         {hidden, residual_, gain}, {normed, residual_});
  return normed;
}

TensorId Lowering::second_norm(std::string_view name, bool is_quantised) {
  const bool is_same = !model.has_ffn_norm && parallel_norm_is_quantised_ == is_quantised;
  if (is_same) return parallel_norm_;
  return rms_norm(name, fuses_residual_ ? residual_ : hidden, tokens(), hidden_axis(),
                  is_quantised);
}

TensorId Lowering::block_norm(std::string_view name, bool is_quantised) {
  if (model.layer_form == LayerForm::kNormAfter) {
    if (!is_quantised) return hidden;
    return quantized(std::string(name) + ".quant", {hidden}, tokens(), hidden_axis()).front();
  }
  if (parallel_output_ >= 0) return second_norm(name, is_quantised);
  const TensorId normed = sum_norm(name, is_quantised);
  parallel_norm_ = normed;
  parallel_norm_is_quantised_ = is_quantised;
  return normed;
}

TensorId Lowering::linear_input_norm(std::string_view name) {
  if (has_fp8_activations_ && options.fuse_norm_quant) return block_norm(name, true);
  const TensorId normed = block_norm(name, false);
  return quantized(std::string(name) + ".quant", {normed}, tokens(), hidden_axis()).front();
}

TensorViews Lowering::quantized(std::string_view name, TensorViews parts, AxisRef rows,
                                AxisRef width) {
  if (!has_fp8_activations_) return parts;
  return {quantized_as(options.precision.activations, name, std::move(parts), rows, width)};
}

TensorId Lowering::quantized_as(DType dtype, std::string_view name, TensorViews parts, AxisRef rows,
                                AxisRef width) {
  const TensorId result = tensor(name, dtype, TensorRole::kActivation, {rows, width});
  kernel(name, "quantize", dtype,
         {{"tokens", rows.size, rows.name}, {"hidden", width.size, width.name}}, std::move(parts),
         {result});
  return result;
}

TensorId Lowering::gated(std::string_view name, TensorId gate, TensorViews parts, AxisRef width,
                         std::int64_t gate_width, TensorId gain) {
  const TensorId result = activation(name, {tokens(), width});
  TensorViews reads{gate};
  reads.insert(reads.end(), parts.begin(), parts.end());
  if (gain >= 0) reads.emplace_back(gain);
  const std::string_view gate_axis = gate_width == width.size ? width.name : std::string_view();
  kernel(name, "gate_mul", DType::kBf16,
         {{"tokens", step.tokens, axis::kTokens},
          {"width", width.size, width.name},
          {"gate_width", gate_width, gate_axis}},
         std::move(reads), {result});
  return result;
}

TensorId Lowering::block_output(std::string_view name) {
  const bool writes_hidden = fuses_residual_ && model.layer_form == LayerForm::kNormBefore;
  return writes_hidden ? hidden : activation(name, {tokens(), hidden_axis()});
}

TensorId Lowering::norm_behind(std::string_view name, TensorId x, TensorId output) {
  const std::string norm = std::string(name.substr(0, name.find('_'))) + "_post_norm";
  const TensorId gain = weight_of(norm, DType::kBf16, {hidden_axis()});
  if (output < 0) output = activation(norm, {tokens(), hidden_axis()});
  kernel(norm, "rms_norm", DType::kBf16,
         {{"tokens", step.tokens, axis::kTokens}, {"hidden", model.hidden_size, axis::kHidden}},
         {x, gain}, {output});
  return output;
}

void Lowering::add(std::string_view name, TensorId to, TensorId x, TensorId sum) {
  kernel(name, "residual_add", DType::kBf16,
         {{"tokens", step.tokens, axis::kTokens}, {"hidden", model.hidden_size, axis::kHidden}},
         {to, x}, {sum});
}

void Lowering::finish_block(std::string_view name, TensorId output) {
  if (model.layer_form == LayerForm::kParallel) {
    if (parallel_output_ < 0) {
      parallel_output_ = output;
      return;
    }
    const TensorId sum =
        fuses_residual_ ? hidden : activation("parallel_sum", {tokens(), hidden_axis()});
    add("parallel_sum", parallel_output_, output, sum);
    output = sum;
  } else if (model.layer_form != LayerForm::kNormBefore) {
    output = norm_behind(name, output, fuses_residual_ ? hidden : -1);
  }
  if (!fuses_residual_) add(name, hidden, output, hidden);
}

}  // namespace orrery
