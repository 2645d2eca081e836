#include "sim/model/lowering.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace orrery {
namespace {

bool is_quantised(DType dtype) {
  return dtype == DType::kFp8 || dtype == DType::kFp8Block || dtype == DType::kNvfp4;
}

bool check_precision(const Precision& precision) {
  const bool quantises = is_quantised(precision.activations);
  if (!quantises && precision.activations != DType::kBf16) {
    throw std::invalid_argument("activations are " + std::string(to_text(precision.activations)) +
                                ", expected bf16, fp8, fp8_block or nvfp4");
  }
  if (quantises && !is_quantised(precision.weights)) {
    throw std::invalid_argument("activations are " + std::string(to_text(precision.activations)) +
                                " with weights " + std::string(to_text(precision.weights)) +
                                ", expected fp8, fp8_block or nvfp4 weights, or bf16 activations");
  }
  return quantises;
}

void check_batch(const Batch& batch) {
  for (const PrefillChunk& chunk : batch.prefill) {
    if (chunk.query < 1 || chunk.context < 0) {
      throw std::invalid_argument("a prefill chunk has query " + std::to_string(chunk.query) +
                                  " and context " + std::to_string(chunk.context) +
                                  ", expected query >= 1 and context >= 0");
    }
  }
  if (batch.num_decodes < 0) {
    throw std::invalid_argument("num_decodes is " + std::to_string(batch.num_decodes) +
                                ", expected >= 0");
  }
  const bool has_context = batch.decode_context >= batch.num_decodes &&
                           (batch.num_decodes > 0 || batch.decode_context == 0);
  if (!has_context) {
    throw std::invalid_argument("decode_context is " + std::to_string(batch.decode_context) +
                                " for " + std::to_string(batch.num_decodes) +
                                " decodes, expected at least one token each and 0 for none");
  }
  if (num_tokens(batch) == 0) {
    throw std::invalid_argument("the batch is empty, expected at least one token");
  }
}

}  // namespace

std::int64_t num_tokens(const Batch& batch) {
  std::int64_t tokens = batch.num_decodes;
  for (const PrefillChunk& chunk : batch.prefill) tokens += chunk.query;
  return tokens;
}

std::int64_t num_sampled(const Batch& batch) {
  return batch.num_decodes + std::ranges::count(batch.prefill, true, &PrefillChunk::produces_token);
}

StepShape step_shape(const Batch& batch) {
  check_batch(batch);
  StepShape shape{
      .tokens = num_tokens(batch), .seqs = num_sampled(batch), .num_decodes = batch.num_decodes};
  if (shape.num_decodes > 0) {
    shape.decode_context = (batch.decode_context + shape.num_decodes / 2) / shape.num_decodes;
  }
  if (batch.prefill.empty()) return shape;

  double tokens = 0;
  double squares = 0;
  double work = 0;
  for (const PrefillChunk& chunk : batch.prefill) {
    const auto query = static_cast<double>(chunk.query);
    tokens += query;
    squares += query * query;
    work += query * (static_cast<double>(chunk.context) + query / 2);
    shape.prefill_cached += chunk.context;
  }
  shape.prefill_tokens = shape.tokens - shape.num_decodes;
  shape.prefill_batch = std::max<std::int64_t>(1, std::llround(tokens * tokens / squares));
  shape.prefill_query = std::llround(tokens / static_cast<double>(shape.prefill_batch));
  const double context = work / tokens - static_cast<double>(shape.prefill_query) / 2;
  shape.prefill_context = std::max<std::int64_t>(0, std::llround(context));
  return shape;
}

Lowering::Lowering(const ModelConfig& model_config, const Batch& batch,
                   const LoweringOptions& lowering_options)
    : model(model_config),
      options(lowering_options),
      step(step_shape(batch)),
      has_fp8_activations_(check_precision(lowering_options.precision)) {
  plan.reserve(32, 64);
  ranks_ = plan.add_group({0});
  hidden = activation("hidden", {tokens(), hidden_axis()});
  if (options.fuse_residual_norm) {
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

std::string Lowering::named(std::string_view name) const {
  std::string result;
  result.reserve(prefix_.size() + name.size());
  return result.append(prefix_).append(name);
}

TensorId Lowering::tensor(std::string_view name, DType dtype, TensorRole role,
                          std::initializer_list<AxisRef> axes) {
  Tensor tensor{.name = named(name), .dtype = dtype, .axes = {}, .role = role, .ranks = ranks_};
  tensor.axes.reserve(axes.size());
  for (const AxisRef& axis : axes) tensor.axes.push_back({std::string(axis.name), axis.size});
  return plan.add_tensor(std::move(tensor));
}

void Lowering::kernel(std::string_view name, std::string_view kernel, DType dtype,
                      std::initializer_list<DimRef> dims, std::vector<TensorId> reads,
                      std::vector<TensorId> writes) {
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

void Lowering::host(std::string_view name, HostKind kind, std::vector<TensorId> reads) {
  plan.add_op({.name = named(name),
               .body = HostOp{.kind = kind},
               .ranks = ranks_,
               .stream = stream_,
               .reads = std::move(reads),
               .writes = {},
               .after = {}});
}

TensorId Lowering::linear(Linear spec) {
  const std::string name(spec.name);
  std::vector<TensorId> reads = std::move(spec.inputs);
  reads.push_back(weight(name + ".weight", spec.weights, {spec.n, spec.k}));
  if (spec.has_bias) reads.push_back(weight(name + ".bias", DType::kBf16, {spec.n}));
  const TensorId output = spec.output >= 0 ? spec.output : activation(name, {spec.rows, spec.n});
  kernel(name, "gemm", spec.weights,
         {{"m", spec.rows.size, spec.rows.name},
          {"n", spec.n.size, spec.n.name},
          {"k", spec.k.size, spec.k.name}},
         std::move(reads), {output});
  return output;
}

TensorId Lowering::rms_norm(std::string_view name, TensorId x, AxisRef rows, AxisRef width,
                            bool is_quantised) {
  const DType dtype = is_quantised ? options.precision.activations : DType::kBf16;
  const TensorId gain = weight(std::string(name) + ".weight", DType::kBf16, {width});
  const TensorId normed = tensor(name, dtype, TensorRole::kActivation, {rows, width});
  kernel(name, "rms_norm", dtype,
         {{"tokens", rows.size, rows.name}, {"hidden", width.size, width.name}}, {x, gain},
         {normed});
  return normed;
}

TensorId Lowering::block_norm(std::string_view name, bool is_quantised) {
  if (!options.fuse_residual_norm) {
    return rms_norm(name, hidden, tokens(), hidden_axis(), is_quantised);
  }
  const DType dtype = is_quantised ? options.precision.activations : DType::kBf16;
  const TensorId gain = weight(std::string(name) + ".weight", DType::kBf16, {hidden_axis()});
  const TensorId normed = tensor(name, dtype, TensorRole::kActivation, {tokens(), hidden_axis()});
  kernel(name, "add_rms_norm", dtype,
         {{"tokens", step.tokens, axis::kTokens}, {"hidden", model.hidden_size, axis::kHidden}},
         {hidden, residual_, gain}, {normed, residual_});
  return normed;
}

TensorId Lowering::linear_input_norm(std::string_view name) {
  if (has_fp8_activations_ && options.fuse_norm_quant) return block_norm(name, true);
  const TensorId normed = block_norm(name, false);
  return quantized(std::string(name) + ".quant", {normed}, tokens(), hidden_axis()).front();
}

std::vector<TensorId> Lowering::quantized(std::string_view name, std::vector<TensorId> parts,
                                          AxisRef rows, AxisRef width) {
  if (!has_fp8_activations_) return parts;
  const DType dtype = options.precision.activations;
  const TensorId result = tensor(name, dtype, TensorRole::kActivation, {rows, width});
  kernel(name, "quantize", dtype,
         {{"tokens", rows.size, rows.name}, {"hidden", width.size, width.name}}, std::move(parts),
         {result});
  return {result};
}

TensorId Lowering::block_output(std::string_view name) {
  return options.fuse_residual_norm ? hidden : activation(name, {tokens(), hidden_axis()});
}

void Lowering::finish_block(std::string_view name, TensorId output) {
  if (options.fuse_residual_norm) return;
  kernel(name, "residual_add", DType::kBf16,
         {{"tokens", step.tokens, axis::kTokens}, {"hidden", model.hidden_size, axis::kHidden}},
         {hidden, output}, {hidden});
}

}  // namespace orrery
