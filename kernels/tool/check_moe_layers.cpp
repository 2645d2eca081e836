// orrery-gpu check moe_layers: layers of mixtures of experts by themselves, in all designs.

#include <cmath>
#include <cstdio>
#include <exception>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "kernels/cuda/devices.h"
#include "kernels/cuda/kernel_trace.h"
#include "kernels/execute/rank_program.h"
#include "kernels/execute/reference/model.h"
#include "kernels/execute/wrong_plan.h"
#include "kernels/tool/check_cases.h"
#include "kernels/tool/moe_run.h"

namespace orrery::tool {
namespace {

class LayerCheck : public CheckCases {
 public:
  using CheckCases::CheckCases;

  // Layers by themselves, one executor for all that share weights.
  void check_layers(const std::vector<MoeCase>& cases) {
    std::unique_ptr<Executor> executor;
    for (const MoeCase& one : cases) {
      if (num_ranks(one.mesh) <= cuda::device_count()) expect(one);
    }
    for (const MoeCase& one : cases) {
      if (is_skipped(name_of(one), one.mesh)) continue;
      guarded(name_of(one), [&] {
        const Plan plan = layer_plan(one);
        if (!executor) executor = std::make_unique<Executor>(layer_setup(one, plan));
        check_layer(*executor, one, plan);
      });
    }
  }

  // Each collective of rows left out, or behind the op that needs it: y must tell.
  void check_wrong_collectives(const MoeCase& one) {
    if (is_skipped(name_of(one), one.mesh)) return;
    const Plan plan = layer_plan(one);
    expect(one);
    const std::vector<float>& expected = expected_of(one);
    const std::string without = name_of(one) + " without ";
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
  void check_overlap(const MoeCase& one) {
    const std::string what = name_of(one) + " overlap";
    if (const std::string problem = kernel_trace_problem(); !problem.empty()) {
      std::printf("skip %s: %s\n", what.c_str(), problem.c_str());
      return;
    }
    guarded(what, [&] {
      const Plan plan = moe_plan(one);
      Executor executor(layer_setup(one, plan));
      const auto step = prepared_layer(executor, one, plan);
      const Timeline timeline = executor.trace(*step, {}).timeline;
      // What several streams do at once is counted once in the time that the GPU is busy.
      Seconds all{0};
      for (const Span& span : timeline.spans) all += span.end - span.start;
      const Seconds together = busy(timeline, 0, SpanKind::kKernel);
      count(all > together);
      std::printf("%s %s  %.1f us of kernels in %.1f us\n", verdict(), what.c_str(),
                  all.value() * 1e6, together.value() * 1e6);
    });
  }

  // A NaN in the input is found where it first shows: in the router's scores.
  void check_nan(const MoeCase& one) {
    const std::string what = name_of(one) + " NaN in the input";
    guarded(what, [&] {
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
  void check_no_scores(const MoeCase& one) {
    const std::string what = name_of(one) + " NaN in the input";
    if (is_skipped(what, one.mesh)) return;
    guarded(what, [&] {
      const Plan plan = layer_plan(one);
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
  void check_missing_sync(const MoeCase& one) {
    const Plan plan = moe_plan(one);
    check_refused(name_of(one) + " without its sync", [&] {
      Executor executor(layer_setup(one, plan));
      static_cast<void>(run_layer(executor, one, without_op(plan, "sync")));
    });
  }

 private:
  static std::string name_of(const MoeCase& one) { return "moe layer " + to_text(one); }
  static Plan layer_plan(const MoeCase& one) {
    Mesh mesh = one.mesh;
    mesh.expert_load = moe_lowering(one).expert_load;
    return parallelize(moe_plan(one), mesh);
  }

  static std::vector<float> run_layer(Executor& executor, const MoeCase& one, const Plan& plan) {
    const auto step = prepared_layer(executor, one, plan);
    static_cast<void>(executor.run(*step, {}));
    return layer_output(one, [&](int rank) { return executor.take(*step, rank, "y"); });
  }

  // Cases whose y is the same, in any design and on any mesh.
  using Key = std::tuple<std::string_view, DType, std::int64_t, ImposedLoad, double>;
  static Key key_of(const MoeCase& one) {
    return {one.model, one.dtype, one.tokens, one.load, one.zipf};
  }

  // The reference's y of one rank that shuffles: begun, and waited for.
  void expect(const MoeCase& one) {
    if (expected_.contains(key_of(one))) return;
    MoeCase plain = one;
    plain.mesh = {};
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
    const std::vector<double>& y = outputs[0].at("y");
    return {y.begin(), y.end()};
  }

  void check_layer(Executor& executor, const MoeCase& one, const Plan& plan) {
    const std::string what = name_of(one);
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

// A load that falls as 1 / k.
MoeCase skewed(MoeCase one, ImposedLoad by = ImposedLoad::kScores) {
  one.load = by;
  one.zipf = 1;
  return one;
}
MoeCase eagerly(MoeCase one) {
  one.mode = LaunchMode::kEager;
  return one;
}
MoeCase designed(MoeCase one, MoeDesign design) {
  one.design = design;
  return one;
}
// On `streams`, with the rows of the second grouped gemm added by it, those of the first gathered.
MoeCase fused(MoeCase one, int streams, bool scatters, bool gathers = false) {
  one.streams = streams;
  one.fuses_scatter = scatters;
  one.fuses_gather = gathers;
  return one;
}
MoeCase evenly(MoeCase one) {
  one.load = ImposedLoad::kScores;
  return one;
}
MoeCase exchanged(MoeCase one, ExpertComm comm, int streams = 1) {
  one.mesh.expert_comm = comm;
  one.streams = streams;
  return one;
}

// All designs of a model's layer, with as many tokens as fill no tile, one and several.
std::vector<MoeCase> designs_of(std::string_view model, DType dtype) {
  const bool has_shared = moe_model(model).shared_expert_intermediate_size > 0;
  std::vector<MoeCase> cases;
  for (const std::int64_t tokens : {131, 67, 7, 1}) {
    const MoeCase one{.model = model, .tokens = tokens, .dtype = dtype};
    const MoeCase listed = designed(one, MoeDesign::kConcatenation);
    cases.insert(cases.end(), {one, skewed(eagerly(one)), designed(one, MoeDesign::kPadding),
                               eagerly(designed(one, MoeDesign::kSlicing)), eagerly(listed),
                               designed(one, MoeDesign::kSlicing)});
    if (has_shared) {
      cases.insert(cases.end(), {fused(one, 2, false), fused(one, 1, true),
                                 evenly(fused(one, 2, true)), eagerly(fused(listed, 2, false))});
    }
    if (dtype == DType::kFp8) continue;  // its rows are narrowed as they are gathered
    const MoeCase gathers = fused(one, 1, false, true);
    cases.insert(cases.end(), {gathers, skewed(eagerly(gathers))});
    if (has_shared) cases.push_back(evenly(fused(one, 2, true, true)));
  }
  return cases;
}

constexpr std::string_view kModels[] = {"tiny_qwen3", "tiny_llama4", "tiny_deepseek"};

void check_one_gpu(LayerCheck& check) {
  for (const std::string_view model : kModels) {
    check.check_layers(designs_of(model, DType::kBf16));
    check.check_layers(designs_of(model, DType::kFp8));
  }
  for (const DType dtype : {DType::kBf16, DType::kFp8}) {
    const MoeCase one =
        skewed({.model = "tiny_qwen3", .tokens = 67, .dtype = dtype}, ImposedLoad::kBias);
    check.check_layers({designed(one, MoeDesign::kPersistent), one});
  }
  check.check_nan(eagerly({.model = "tiny_llama4", .tokens = 33}));
  const MoeCase one{.model = "tiny_qwen3", .tokens = 33};
  check.check_no_scores(eagerly(designed(one, MoeDesign::kPersistent)));
  check.check_no_scores(designed(one, MoeDesign::kPersistent));
  check.check_missing_sync(eagerly(designed(one, MoeDesign::kSlicing)));
  check.check_missing_sync(eagerly(designed(one, MoeDesign::kConcatenation)));
}

// Rows of experts in every way that each case has them exchanged, whole and in parts.
void check_exchanges(LayerCheck& check, const MoeCase& wide) {
  const MoeCase copied = exchanged(wide, ExpertComm::kCopies);
  const MoeCase on_two = exchanged(wide, ExpertComm::kCopies, 2);
  check.check_layers(
      {exchanged(wide, ExpertComm::kGraph), eagerly(exchanged(wide, ExpertComm::kGraph, 2)),
       eagerly(exchanged(wide, ExpertComm::kEager)), exchanged(wide, ExpertComm::kEager),
       eagerly(copied), copied, eagerly(on_two)});
  for (const int chunks : {2, 3}) {
    MoeCase parts = wide;
    parts.mesh.moe_chunks = chunks;
    const MoeCase fixed = exchanged(parts, ExpertComm::kGraph);
    std::vector<MoeCase> cases{fixed, eagerly(fixed)};
    for (const ExpertComm comm : {ExpertComm::kEager, ExpertComm::kCopies}) {
      for (const int streams : {1, 2}) cases.push_back(eagerly(exchanged(parts, comm, streams)));
    }
    check.check_layers(cases);
  }
}

void check_columns_apart(LayerCheck& check, std::string_view model) {
  const MoeCase one{.model = model, .tokens = 67, .mesh = {.tp = 2}};
  check.check_layers({one, eagerly(one), designed(one, MoeDesign::kPadding),
                      eagerly(designed(one, MoeDesign::kSlicing)),
                      eagerly(designed(one, MoeDesign::kConcatenation))});
  const MoeCase apart{.model = model, .tokens = 67, .mesh = {.tp = 2, .ep = 2}};
  check.check_layers({apart, eagerly(apart)});
  const MoeCase gathers = fused(one, 1, false, true);
  check.check_layers({gathers, eagerly(gathers)});
  check.check_layers({fused(apart, 1, false, true)});
}

void check_four_gpus(LayerCheck& check) {
  const auto of_two = [](int ep, ExpertComm comm) {
    return MoeCase{.model = "tiny_deepseek",
                   .tokens = 134,
                   .mesh = {.dp = 2, .tp = 2, .ep = ep, .expert_comm = comm}};
  };
  check.check_layers({of_two(4, ExpertComm::kGraph)});
  check.check_layers({of_two(2, ExpertComm::kDedupGraph)});
  check.check_layers({eagerly(of_two(4, ExpertComm::kEager))});
  check.check_layers({eagerly(of_two(4, ExpertComm::kCopies))});
  check.check_layers({eagerly(of_two(2, ExpertComm::kDedup))});
  for (const std::string_view model : {"tiny_qwen3", "tiny_llama4"}) {
    const MoeCase wide{.model = model, .tokens = 134, .mesh = {.dp = 4, .ep = 4}};
    MoeCase parts = eagerly(exchanged(wide, ExpertComm::kCopies));
    parts.mesh.moe_chunks = 3;
    check.check_layers({exchanged(wide, ExpertComm::kGraph),
                        eagerly(exchanged(wide, ExpertComm::kEager)),
                        eagerly(exchanged(wide, ExpertComm::kCopies)), parts});
  }
}

void check_several_gpus(LayerCheck& check) {
  const Mesh two{.dp = 2, .ep = 2};
  for (const std::string_view model : kModels) {
    check_columns_apart(check, model);
    check_exchanges(check, {.model = model, .tokens = 134, .mesh = two});
    check_exchanges(check, {.model = model, .tokens = 2, .mesh = two});
    check_exchanges(check, skewed({.model = model, .tokens = 3, .mesh = two}));
  }
  check_four_gpus(check);
  const MoeCase wide{.model = "tiny_qwen3", .tokens = 134, .mesh = two};
  const MoeCase biased = skewed(wide, ImposedLoad::kBias);
  const MoeCase kernel = designed(biased, MoeDesign::kPersistent);
  check.check_layers({kernel, eagerly(kernel), exchanged(biased, ExpertComm::kGraph)});
  check.check_no_scores(designed(wide, MoeDesign::kPersistent));
  const MoeCase deepseek{.model = "tiny_deepseek", .tokens = 67};
  for (const Mesh& mesh : std::initializer_list<Mesh>{
           {.tp = 2},
           {.tp = 2, .ep = 2},
           {.dp = 2, .ep = 2, .expert_comm = ExpertComm::kGraph},
           {.dp = 2, .ep = 2, .expert_comm = ExpertComm::kGraph, .moe_chunks = 2}}) {
    MoeCase one = deepseek;
    one.mesh = mesh;
    check.check_wrong_collectives(one);
  }
}

}  // namespace

CheckCount check_moe_layers() {
  LayerCheck check(cuda::device_count());
  check_one_gpu(check);
  check_several_gpus(check);
  // Last: recording slows what comes after it.
  check.check_overlap({.model = "scout_tp8", .streams = 2});
  return check.result();
}

}  // namespace orrery::tool
