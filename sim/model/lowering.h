#pragma once

// What blocks share while one engine step is lowered: the shapes of the step, the plan so far, and
// the few operations (linear layer, norm, quantisation) that every block is made of.
//
// Between blocks the step carries two tensors. With fuse_residual_norm, as vLLM does it, `hidden`
// is what the last block computed and `residual` the sum of all before it; the next norm adds the
// two. The first layer adds a residual of zeros, so that all layers are equal. Without it, or where
// blocks read the sum as it is (LayerForm::kNormAfter), `hidden` is the sum itself.

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/model/model.h"
#include "sim/model/step_shape.h"

namespace orrery {

struct AxisRef {
  std::string_view name;
  std::int64_t size = 0;
  int parts = 1;  // equal ones, one behind the other, which are split each by itself: gate and up
};
// An axis of two such parts.
inline AxisRef halves(std::string_view name, std::int64_t each) { return {name, 2 * each, 2}; }

struct DimRef {
  std::string_view name;
  std::int64_t size = 0;
  std::string_view axis;
};

// y[rows, n] = x[rows, k] w[n, k]; `inputs` are read in place of one x when parts of x were
// computed by different ops.
struct Linear {
  std::string_view name;
  TensorViews inputs;
  AxisRef rows;
  AxisRef n;
  AxisRef k;
  DType weights = DType::kBf16;
  bool has_bias = false;
  TensorId output = -1;  // -1: a new activation
};

// Whether products of such weights take inputs in their format, quantised as they are computed; of
// other formats weights alone are narrow.
bool is_input_format(DType dtype);

class Lowering {
 public:
  Lowering(const ModelConfig& model, const StepShape& shape, const LoweringOptions& options);
  // Writes the dims of kernels instead of a plan; tensors are numbers without a meaning then.
  Lowering(const ModelConfig& model, const StepShape& shape, const LoweringOptions& options,
           AttentionDims& dims, bool wants_names);
  // Of one block alone: `hidden` is the input `x`, there is no residual.
  Lowering(const ModelConfig& model, std::int64_t tokens, const LoweringOptions& options);

  const ModelConfig& model;
  const LoweringOptions& options;
  const StepShape step;
  Plan plan;
  TensorId hidden = -1;
  TensorId embedding = -1;  // weight, shared with the LM head when tied

  // Names of ops and tensors added from now on start with `prefix`.
  void set_prefix(std::string prefix) { prefix_ = std::move(prefix); }
  // Its attention and FFN follow.
  void begin_layer(std::string prefix) {
    prefix_ = std::move(prefix);
    parallel_norm_ = parallel_output_ = -1;
  }
  // Ops added from now on run on `stream`, 0 at first.
  void set_stream(int stream) { stream_ = stream; }

  [[nodiscard]] AxisRef tokens() const { return {axis::kTokens, step.tokens}; }
  [[nodiscard]] AxisRef hidden_axis() const { return {axis::kHidden, model.hidden_size}; }
  [[nodiscard]] bool has_fp8_activations() const { return has_fp8_activations_; }

  TensorId tensor(std::string_view name, DType dtype, TensorRole role,
                  std::initializer_list<AxisRef> axes);
  TensorId weight(std::string_view name, DType dtype, std::initializer_list<AxisRef> axes) {
    return tensor(name, dtype, TensorRole::kWeight, axes);
  }
  TensorId activation(std::string_view name, std::initializer_list<AxisRef> axes) {
    return tensor(name, DType::kBf16, TensorRole::kActivation, axes);
  }
  void kernel(std::string_view name, std::string_view kernel, DType dtype,
              std::span<const DimRef> dims, TensorViews reads, TensorViews writes);
  void kernel(std::string_view name, std::string_view kernel, DType dtype,
              std::initializer_list<DimRef> dims, TensorViews reads, TensorViews writes) {
    this->kernel(name, kernel, dtype, std::span(dims.begin(), dims.size()), std::move(reads),
                 std::move(writes));
  }
  // The same of operands in braces, of which no vectors are made where dims alone are asked for.
  void kernel(std::string_view name, std::string_view kernel, DType dtype,
              std::initializer_list<DimRef> dims, std::initializer_list<TensorView> reads,
              std::initializer_list<TensorView> writes);
  void host(std::string_view name, HostKind kind, TensorViews reads);

  TensorId linear(Linear spec);
  // RMS norm of x over `width`; the result is quantised if `is_quantised`.
  TensorId rms_norm(std::string_view name, TensorView x, AxisRef rows, AxisRef width,
                    bool is_quantised);
  // The norm of the sum of all blocks so far; `is_quantised` as above.
  TensorId sum_norm(std::string_view name, bool is_quantised);
  // What a block reads: that norm, unless the model's layers have another form.
  TensorId block_norm(std::string_view name, bool is_quantised);
  // The norm before linear layers that all take quantised input: fused or followed by `quantize`.
  TensorId linear_input_norm(std::string_view name);
  // FP8 copy of the parts of one activation of `width` columns, or `parts` as they are when linear
  // layers take bf16.
  TensorViews quantized(std::string_view name, TensorViews parts, AxisRef rows, AxisRef width);
  // The copy of those parts in `dtype`.
  TensorId quantized_as(DType dtype, std::string_view name, TensorViews parts, AxisRef rows,
                        AxisRef width);

  // The parts of one activation of `width` columns times what `gate_width` columns of `gate` say;
  // with a `gain` (-1: none) its heads are normed before.
  TensorId gated(std::string_view name, TensorId gate, TensorViews parts, AxisRef width,
                 std::int64_t gate_width, TensorId gain = -1);

  // Where the last op of a block writes, and what makes it part of `hidden`: norms behind it too,
  // as the model's layers have them.
  TensorId block_output(std::string_view name);
  void finish_block(std::string_view name, TensorId output);

 private:
  std::string named(std::string_view name) const;
  // The weight of op `name`.
  TensorId weight_of(std::string_view name, DType dtype, std::initializer_list<AxisRef> axes);
  SplitId split_of(const AxisRef& axis);
  // The norm of the sum, which is not written again.
  TensorId second_norm(std::string_view name, bool is_quantised);
  // The norm of block `name` ("attn_residual") behind it, into `output`; -1: a new activation.
  TensorId norm_behind(std::string_view name, TensorId x, TensorId output);
  void add(std::string_view name, TensorId to, TensorId x, TensorId sum);
  void add_dims(std::string_view name, std::span<const DimRef> dims);

  std::string prefix_;
  int stream_ = 0;
  GroupId ranks_ = 0;
  bool fuses_residual_ = false;
  TensorId residual_ = -1;
  TensorId parallel_norm_ = -1;  // of LayerForm::kParallel: of this layer, as attention reads it
  bool parallel_norm_is_quantised_ = false;
  TensorId parallel_output_ = -1;  // of the layer's attention
  AttentionDims* dims_ = nullptr;
  bool wants_names_ = false;
  bool has_fp8_activations_ = false;
};

}  // namespace orrery
