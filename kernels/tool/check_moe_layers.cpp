// orrery-gpu check moe_layers: layers of mixtures of experts by themselves, in all designs.

#include <cmath>
#include <cstdio>
#include <exception>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cuda/devices.h"
#include "kernels/cuda/kernel_trace.h"
#include "kernels/execute/rank_program.h"
#include "kernels/execute/reference/model.h"
#include "kernels/execute/wrong_plan.h"
#include "kernels/tool/check_cases.h"
#include "kernels/tool/layer_row.h"
#include "kernels/tool/moe_run.h"

namespace orrery::tool {
namespace {

class LayerCheck : public CheckCases {
 public:
  using CheckCases::CheckCases;

  // Layers by themselves, one executor for all that share weights.
  void check_layers(const std::vector<std::string>& lines) {
    std::unique_ptr<Executor> executor;
    for (const std::string& line : lines) {
      const MoeCase one = parse_moe_case(line);
      if (num_ranks(one.mesh) <= cuda::device_count()) expect(one);
    }
    for (const std::string& line : lines) {
      const MoeCase one = parse_moe_case(line);
      if (is_skipped("moe layer " + line, one.mesh)) continue;
      guarded("moe layer " + line, [&] {
        const Plan whole = moe_plan(one);
        const Plan plan = parallelize(whole, one.mesh);
        if (!executor) executor = std::make_unique<Executor>(layer_setup(one, plan));
        check_layer(*executor, one, plan);
      });
    }
  }

  // Each collective of rows left out, or behind the op that needs it: y must tell.
  void check_wrong_collectives(const std::string& line) {
    const MoeCase one = parse_moe_case(line);
    if (is_skipped("moe layer " + line, one.mesh)) return;
    const Plan whole = moe_plan(one);
    const Plan plan = parallelize(whole, one.mesh);
    expect(one);
    const std::vector<float>& expected = expected_of(one);
    const std::string without = "moe layer " + line + " without ";
    for (const std::string& name : collective_names(plan)) {
      const std::string what = without + name;
      guarded(what, [&] {
        Executor executor(layer_setup(one, plan));
        const double apart =
            layer_difference(run_layer(executor, one, without_op(plan, name)), expected);
        const double bound = moe_bounds(one.dtype).layer;
        count(apart > bound);
        std::printf("%s %s  noticed: %.2e (> %.1e)\n", verdict(), what.c_str(), apart, bound);
      });
    }
  }

  // Spans of two streams lie over each other, and the result stays.
  void check_overlap(const std::string& line) {
    const std::string what = "moe layer " + line + " overlap";
    if (const std::string problem = kernel_trace_problem(); !problem.empty()) {
      std::printf("skip %s: %s\n", what.c_str(), problem.c_str());
      return;
    }
    guarded(what, [&] {
      const MoeCase one = parse_moe_case(line);
      const Plan plan = moe_plan(one);
      Executor executor(layer_setup(one, plan));
      const auto step = prepared_layer(executor, one, plan);
      const LayerSpans spans = layer_spans(plan, executor.trace(*step, {}).timeline, 0);
      count(spans.overlap > Seconds(0));
      std::printf("%s %s  %.1f of %.1f us on two streams\n", verdict(), what.c_str(),
                  spans.overlap.value() * 1e6, spans.busy.value() * 1e6);
    });
  }

  // A NaN in the input is found where it first shows: in the router's scores.
  void check_nan(const std::string& line) {
    const std::string what = "moe layer " + line + " NaN in the input";
    guarded(what, [&] {
      const MoeCase one = parse_moe_case(line);
      const Plan plan = moe_plan(one);
      Executor executor(layer_setup(one, plan));
      const auto step = prepared_layer(executor, one, plan);
      auto x = layer_inputs(one, plan, 0).at("x");
      x[x.size() / 2] = NAN;
      executor.give(*step, 0, "x", x);
      static_cast<void>(executor.run(*step, {}));
      std::string message = "nothing";
      try {
        executor.check_finite(*step, {});
      } catch (const std::exception& error) {
        message = error.what();
      }
      count(message.find("op router") != std::string::npos);
      std::printf("%s %s  said: %s\n", verdict(), what.c_str(), message.c_str());
    });
  }

  // A NaN in the input of a rank of a layer that is one kernel ends its run.
  void check_no_scores(const std::string& line) {
    const MoeCase one = parse_moe_case(line);
    const std::string what = "moe layer " + line + " NaN in the input";
    if (is_skipped(what, one.mesh)) return;
    guarded(what, [&] {
      const Plan plan = parallelize(moe_plan(one), one.mesh);
      Executor executor(layer_setup(one, plan));
      const auto step = prepared_layer(executor, one, plan);
      const int last = num_ranks(one.mesh) - 1;
      auto x = layer_inputs(one, plan, last).at("x");
      x[x.size() / 2] = NAN;
      executor.give(*step, last, "x", x);
      std::string message = "nothing";
      try {
        static_cast<void>(executor.run(*step, {}));
      } catch (const std::exception& error) {
        message = error.what();
      }
      const std::string expected = "rank " + std::to_string(last) + ", op experts";
      count(message.starts_with(expected) &&
            message.find("scores of 1 token are no numbers") != std::string::npos);
      std::printf("%s %s  said: %s\n", verdict(), what.c_str(), message.c_str());
      executor.give(*step, last, "x", layer_inputs(one, plan, last).at("x"));
      static_cast<void>(executor.run(*step, {}));  // throws if it says so of what is mended
    });
  }

  // What one d2h_sync op reads must be read before it is used.
  void check_missing_sync(const std::string& line) {
    const MoeCase one = parse_moe_case(line);
    const Plan plan = moe_plan(one);
    check_refused("moe layer " + line + " without its sync", [&] {
      Executor executor(layer_setup(one, plan));
      static_cast<void>(run_layer(executor, one, without_op(plan, "sync")));
    });
  }

 private:
  static std::vector<float> run_layer(Executor& executor, const MoeCase& one, const Plan& plan) {
    const auto step = prepared_layer(executor, one, plan);
    static_cast<void>(executor.run(*step, {}));
    return layer_output(one,
                        [&](int rank) { return executor.take(*step, rank, chained_output(1)); });
  }

  // Cases whose y is the same, in any design and on any mesh.
  using Key = std::tuple<std::string, DType, std::int64_t, std::string, bool>;
  static Key key_of(const MoeCase& one) {
    return {one.model, one.dtype, one.tokens, one.load, imposes_bias(one)};
  }

  // The reference's y of one rank that shuffles: begun, and waited for.
  void expect(const MoeCase& one) {
    if (expected_.contains(key_of(one))) return;
    MoeCase plain = one;
    plain.mesh = {};
    if (one.load != "router") plain.imposes_bias = imposes_bias(one);
    plain.design = MoeDesign::kShuffling;
    plain.streams = 1;
    plain.fuses_scatter = plain.fuses_gather = false;
    expected_[key_of(one)] =
        std::async(std::launch::async, [plain] { return reference_output(plain); }).share();
  }
  const std::vector<float>& expected_of(const MoeCase& one) {
    return expected_.at(key_of(one)).get();
  }

  static std::vector<float> reference_output(const MoeCase& one) {
    const Plan plan = moe_plan(one);
    const ExecutorSetup setup = layer_setup(one, plan);
    reference::Model model({.grid = setup.grid,
                            .numbers = setup.numbers,
                            .seed = setup.seed,
                            .rounding = reference::Rounding::kStored});
    reference::LayerTensors inputs(1);
    for (const auto& [name, values] : layer_inputs(one, plan, 0)) {
      inputs[0][name].assign(values.begin(), values.end());
    }
    const reference::LayerTensors outputs = model.run_layer(plan, inputs);
    const std::vector<double>& y = outputs[0].at(chained_output(1));
    return {y.begin(), y.end()};
  }

  void check_layer(Executor& executor, const MoeCase& one, const Plan& plan) {
    const std::string what = "moe layer " + one.text;
    if (one.mode == LaunchMode::kGraph && !host_waits(plan, 0).empty()) {
      check_refused(what, [&] { static_cast<void>(run_layer(executor, one, plan)); });
      return;
    }
    const double apart = layer_difference(run_layer(executor, one, plan), expected_of(one));
    const double bound = moe_bounds(one.dtype).layer;
    count(apart <= bound);
    std::printf("%s %s  %.2e (<= %.1e)\n", verdict(), what.c_str(), apart, bound);
  }

  std::map<Key, std::shared_future<std::vector<float>>> expected_;
};

// All designs of a model's layer, with as many tokens as fill no tile, one and several.
std::vector<std::string> layer_lines(const std::string& model, const std::string& format) {
  const bool has_shared = moe_model(model).shared_expert_intermediate_size > 0;
  std::vector<std::string> designs{
      "design=shuffling",          "design=shuffling mode=eager load=zipf:1", "design=padding",
      "design=slicing mode=eager", "design=concatenation mode=eager",         "design=slicing"};
  if (has_shared) {
    designs.insert(designs.end(), {"design=shuffling streams=2", "design=shuffling fuse=1",
                                   "design=shuffling streams=2 fuse=1 load=uniform",
                                   "design=concatenation mode=eager streams=2"});
  }
  if (format == "dtype=bf16") {  // fp8 rows are narrowed as they are gathered
    designs.insert(designs.end(), {"gather=1", "gather=1 mode=eager load=zipf:1"});
    if (has_shared) designs.emplace_back("gather=1 fuse=1 streams=2 load=uniform");
  }
  std::vector<std::string> lines;
  for (const char* tokens : {"131", "67", "7", "1"}) {
    for (const std::string& design : designs) {
      std::string& line = lines.emplace_back(model);
      line.append(" tokens=").append(tokens).append(" ").append(format).append(" ").append(design);
    }
  }
  return lines;
}

void check_one_gpu(LayerCheck& check) {
  for (const char* model : {"tiny_qwen3", "tiny_llama4", "tiny_deepseek"}) {
    check.check_layers(layer_lines(model, "dtype=bf16"));
    check.check_layers(layer_lines(model, "dtype=fp8"));
  }
  for (const std::string format : {"dtype=bf16", "dtype=fp8"}) {
    const std::string line = "tiny_qwen3 tokens=67 load=zipf:1 " + format;
    check.check_layers({line + " design=persistent", line + " impose=bias"});
  }
  check.check_nan("tiny_llama4 tokens=33 mode=eager");
  check.check_no_scores("tiny_qwen3 tokens=33 design=persistent mode=eager");
  check.check_no_scores("tiny_qwen3 tokens=33 design=persistent");
  check.check_missing_sync("tiny_qwen3 tokens=33 mode=eager design=slicing");
  check.check_missing_sync("tiny_qwen3 tokens=33 mode=eager design=concatenation");
}

void check_several_gpus(LayerCheck& check) {
  for (const std::string model : {"tiny_qwen3", "tiny_llama4", "tiny_deepseek"}) {
    const std::string line = model + " tokens=67 tp=2";
    check.check_layers({line, line + " mode=eager", line + " design=padding",
                        line + " design=slicing mode=eager",
                        line + " design=concatenation mode=eager"});
    check.check_layers({line + " ep=2", line + " ep=2 mode=eager"});
    check.check_layers({line + " gather=1", line + " gather=1 mode=eager"});
    check.check_layers({line + " ep=2 gather=1"});
    for (const char* tokens : {" tokens=134", " tokens=2", " tokens=3 load=zipf:1"}) {
      const std::string wide = model + tokens + " dp=2 ep=2";
      check.check_layers({wide + " comm=graph", wide + " comm=graph mode=eager streams=2",
                          wide + " comm=eager mode=eager", wide + " comm=eager",
                          wide + " comm=copies mode=eager", wide + " comm=copies",
                          wide + " comm=copies mode=eager streams=2"});
      for (const char* chunks : {" chunks=2", " chunks=3"}) {
        check.check_layers({wide + " comm=graph" + chunks, wide + " comm=graph mode=eager" + chunks,
                            wide + " comm=eager mode=eager" + chunks,
                            wide + " comm=eager mode=eager streams=2" + chunks,
                            wide + " comm=copies mode=eager" + chunks,
                            wide + " comm=copies mode=eager streams=2" + chunks});
      }
    }
  }
  for (const std::string mesh : {"dp=2 tp=2 ep=4 comm=graph", "dp=2 tp=2 ep=2 comm=dedup_graph"}) {
    check.check_layers({"tiny_deepseek tokens=134 " + mesh});
  }
  for (const std::string mesh :
       {"dp=2 tp=2 ep=4 comm=eager", "dp=2 tp=2 ep=4 comm=copies", "dp=2 tp=2 ep=2 comm=dedup"}) {
    check.check_layers({"tiny_deepseek tokens=134 mode=eager " + mesh});
  }
  for (const std::string model : {"tiny_qwen3", "tiny_llama4"}) {
    const std::string wide = model + " tokens=134 dp=4 ep=4";
    check.check_layers({wide + " comm=graph", wide + " comm=eager mode=eager",
                        wide + " comm=copies mode=eager",
                        wide + " comm=copies mode=eager chunks=3"});
  }
  const std::string skewed = "tiny_qwen3 tokens=134 dp=2 ep=2 load=zipf:1";
  check.check_layers({skewed + " design=persistent", skewed + " design=persistent mode=eager",
                      skewed + " comm=graph impose=bias"});
  check.check_no_scores("tiny_qwen3 tokens=134 dp=2 ep=2 design=persistent");
  for (const char* mesh :
       {"tp=2", "tp=2 ep=2", "dp=2 ep=2 comm=graph", "dp=2 ep=2 comm=graph chunks=2"}) {
    check.check_wrong_collectives("tiny_deepseek tokens=67 " + std::string(mesh));
  }
}

}  // namespace

CheckCount check_moe_layers() {
  LayerCheck check(cuda::device_count());
  check_one_gpu(check);
  check_several_gpus(check);
  // Last: recording slows what comes after it.
  check.check_overlap("scout_tp8 tokens=64 streams=2");
  return check.result();
}

}  // namespace orrery::tool
