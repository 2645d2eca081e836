// What the scheduler decided is what is priced: a step of a service takes as long as orrery.step
// takes for its batch, for every model, engine, kind of placement and level of time.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "sim/parallel/parallel.h"
#include "sim/scenario/run.h"
#include "sim/serve/random.h"
#include "sim/timeline/timeline.h"
#include "tests/scenario/scenario_testing.h"
#include "tests/share.h"

namespace orrery {
namespace {

// ORRERY_LAW_SEED: other batches.
std::uint64_t seed() {
  const char* given = std::getenv("ORRERY_LAW_SEED");
  return given == nullptr ? 20 : std::stoull(given);
}

std::vector<std::string> names_in(const std::string& directory, const std::string& ending) {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(ORRERY_SOURCE_DIR) / directory)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(ending)) names.push_back(name.substr(0, name.size() - ending.size()));
  }
  std::ranges::sort(names);
  return names;
}

struct Placed {
  std::string placement;
  Mesh mesh;
};
const std::array kPlacements = {
    Placed{"{tp: 1}", {}},
    Placed{"{tp: 2}", {.tp = 2}},
    Placed{"{tp: 8}", {.tp = 8}},
    Placed{"{tp: 8, ep: 8}", {.tp = 8, .ep = 8}},
    Placed{"{tp: 4, sp: true}", {.tp = 4, .sp = true}},
    Placed{"{dp: 2}", {.dp = 2}},
    Placed{"{dp: 8, ep: 8}", {.dp = 8, .ep = 8}},
    Placed{"{tp: 2, pp: 2}", {.tp = 2, .pp = 2}},
    Placed{"{tp: 1, pp: 2, num_micro_batches: 2}", {.pp = 2, .num_micro_batches = 2}},
};

// Where shapes are rounded: contexts of attention to 8 bits, those of decodes to straight lines
// between grid points an eighth of an octave apart (sim/serve/simulated_steps.cpp), numbers of
// tokens to straight lines inside cells of 1/64 (step_templates.h).
constexpr double kMostError = 0.01;

enum Kind {
  kPrompts,
  kUnlikePrompts,
  kDecodes,
  kMixed,
  kMixedAfterCached,
  kPromptsAfterCached,
  kNumKinds
};
constexpr std::array<const char*, kNumKinds> kKindNames = {
    "equal prompts",       "unlike prompts",      "decodes",
    "prompts and decodes", "chunks after cached", "prompts alone after cached"};

std::string path_of(const std::string& model) {
  return std::string(ORRERY_SOURCE_DIR) + "/models/" + model + ".config.json";
}

class StepLawTest : public testing::ScenarioDirectory {
 protected:
  // Whether the model can be cut as the mesh says, by the kernels of the engine.
  bool is_served(const std::string& model, const std::string& engine, const Placed& placed) {
    try {
      scenario(path_of(model), engine, placed.placement, "closed_form");
    } catch (const ScenarioError& error) {
      return false;
    }
    return true;
  }

  // Without what the host takes, and at the full clock: what a service adds to its devices' time.
  // With memory for any model and batch.
  Scenario scenario(const std::string& model, const std::string& engine,
                    const std::string& placement, const std::string& level,
                    const std::string& rest = "") {
    Scenario loaded = load_scenario(
        write("q.yaml", "question: q\nmodel: {config: " + model + "}\nmachine: hgx-h200\n" +
                            "provider: " + (engine == "orrery" ? "orrery" : "vllm-0.24.0") +
                            "\nplacement: " + placement + "\nengine: {profile: " + engine +
                            "}\nstep_level: " + level + rest +
                            "\nworkload: {closed_loop: {concurrency: 2, num_requests: 4, "
                            "prompt_tokens: 10, output_tokens: 5}}\n"),
        testing::kPaths);
    loaded.machine_spec.device.hbm_capacity = Bytes(1e15);
    loaded.engine.max_model_len = 1 << 20;
    EngineProfile& profile = loaded.engine_profile;
    profile.scheduler_base = profile.scheduler_per_sequence = Seconds(0);
    profile.serve_base = profile.serve_per_sequence = Seconds(0);
    profile.prefill_base = profile.new_rows = profile.new_rows_per_op = Seconds(0);
    profile.power_limit = {};
    profile.kernel_time.uneven_attention = {};
    return loaded;
  }

  Batch batch(Kind kind) {
    Random& random = kind == kPromptsAfterCached ? more_random_ : random_;
    const auto up_to = [&](double most) {  // from 1, evenly in the logarithm
      return static_cast<std::int64_t>(std::exp(random.uniform() * std::log(most)));
    };
    Batch result;
    const bool has_cached = kind >= kMixedAfterCached;
    if (kind == kPrompts) {
      result.prefill.assign(static_cast<std::size_t>(random.uniform_integer(1, 24)),
                            {.query = up_to(1500)});
    } else if (kind != kDecodes) {
      for (std::int64_t i = random.uniform_integer(1, 6); i > 0; --i) {
        result.prefill.push_back({.query = up_to(6000),
                                  .context = has_cached ? up_to(9000) : 0,
                                  .produces_token = random.uniform() < 0.8});
      }
    }
    if (kind >= kDecodes && kind != kPromptsAfterCached) {
      result.num_decodes = up_to(300);
      result.decode_context = result.num_decodes * (1 + up_to(9000));
    }
    return result;
  }

  // |served / exact - 1| of a random step of each kind.
  void check(const Scenario& scenario, StepLevel level, const std::string& what) {
    std::vector<ReplicaStep> steps;
    for (int kind = 0; kind < kNumKinds; ++kind) {
      steps.push_back({.start = Seconds(kind), .batch = batch(static_cast<Kind>(kind))});
    }
    const std::vector<Seconds> served = replayed_durations(scenario, steps);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const Seconds exact = makespan(simulate_step(scenario, steps[i].batch, level).timeline);
      const double error = std::abs(served[i] / exact - 1);
      ++num_steps_;
      errors_[i].push_back(error);
      EXPECT_LT(error, kMostError)
          << what << ", " << kKindNames[i] << ": served " << served[i].value() << " s, orrery.step "
          << exact.value() << " s, tokens " << num_tokens(steps[i].batch) << ", decodes "
          << steps[i].batch.num_decodes << ", seed " << seed();
    }
  }

  void TearDown() override {
    ScenarioDirectory::TearDown();
    for (auto& [kind, errors] : errors_) {
      std::ranges::sort(errors);
      std::cout << "  " << kKindNames[kind] << ": " << errors.size() << " steps, median "
                << errors[errors.size() / 2] * 100 << " %, worst " << errors.back() * 100 << " %\n";
    }
  }

  Random random_{seed()};
  Random more_random_{seed() + 1};
  int num_steps_ = 0;
  std::map<std::size_t, std::vector<double>> errors_;
};

TEST_F(StepLawTest, AServedStepTakesWhatItsBatchTakesForEveryModelAndPlacement) {
  const std::vector<std::string> engines = names_in("scenarios/engines", ".yaml");
  ASSERT_GE(engines.size(), 8u);
  std::size_t turn = 0;
  std::int64_t number = 0;
  for (const std::string& file : names_in("models", ".config.json")) {
    if (number++ % testing::one_in(4) != 0) continue;
    for (const Placed& placed : kPlacements) {
      const std::string& engine = engines[turn++ % engines.size()];
      const std::string what = file + ", " + engine + ", " + placed.placement;
      if (!is_served(file, engine, placed)) continue;
      const Scenario loaded = scenario(path_of(file), engine, placed.placement, "closed_form");
      const StepLevel level = placed.mesh.pp > 1 ? StepLevel::kHeap : StepLevel::kClosedForm;
      check(loaded, level, what);
    }
  }
  EXPECT_GT(num_steps_, 500 / testing::one_in(4));
}

TEST_F(StepLawTest, AServedStepTakesWhatItsBatchTakesAtEveryLevel) {
  for (const char* level : {"closed_form", "heap", "representative", "all_ranks"}) {
    for (const char* model : {"meta-llama--Meta-Llama-3.1-8B", "Qwen--Qwen3-30B-A3B",
                              "deepseek-ai--DeepSeek-V2-Lite"}) {
      for (const std::size_t placed : {0, 1, 5, 7, 8}) {
        const Mesh& mesh = kPlacements[placed].mesh;
        if (!is_served(model, "vllm", kPlacements[placed])) continue;
        const Scenario loaded =
            scenario(path_of(model), "vllm", kPlacements[placed].placement, level);
        const bool is_closed = loaded.step_level == StepLevel::kClosedForm;
        check(loaded, mesh.pp > 1 && is_closed ? StepLevel::kHeap : loaded.step_level,
              std::string(model) + ", " + level + ", " + kPlacements[placed].placement);
      }
    }
  }
  EXPECT_GT(num_steps_, 200);
}

// Micro-batches of a service were once priced as the whole step each, so that they only harmed.
TEST_F(StepLawTest, MicroBatchesOverlapTheStagesOfAPipeline) {
  const std::string model = path_of("meta-llama--Meta-Llama-3.1-8B");
  const auto time_of = [&](const char* placement, std::vector<PrefillChunk> prefill) {
    const std::vector<ReplicaStep> steps{{.batch = {.prefill = std::move(prefill)}}};
    return replayed_durations(scenario(model, "vllm", placement, "closed_form"), steps)
        .front()
        .value();
  };
  for (const auto& prefill : {std::vector<PrefillChunk>(16, {.query = 512}),
                              std::vector<PrefillChunk>{{.query = 8192}, {.query = 512}}}) {
    const double one = time_of("{tp: 1, pp: 2}", prefill);
    const double two = time_of("{tp: 1, pp: 2, num_micro_batches: 2}", prefill);
    // Two stages and m micro-batches: (m + 1) / m of one stage's time in place of 2.
    EXPECT_NEAR(two / one, 0.75, 0.03);
  }
}

// Host syncs and a second stream leave no captured graph, or no chain.
TEST_F(StepLawTest, AServedStepTakesWhatItsBatchTakesInEveryDesignOfExperts) {
  const std::string model = path_of("deepseek-ai--DeepSeek-V2-Lite");
  for (const char* design : {"padding", "slicing", "concatenation", "shuffling"}) {
    for (const char* streams : {"1", "2"}) {
      for (const char* placement : {"{tp: 1}", "{tp: 2, ep: 2}"}) {
        const bool is_apart = std::string_view(placement) != "{tp: 1}";
        if (is_apart && std::string_view(design) != "shuffling") continue;
        const std::string moe =
            std::string("\nmoe: {design: ") + design + ", streams: " + streams + "}";
        const Scenario loaded = scenario(model, "orrery", placement, "closed_form", moe);
        const bool is_chain = loaded.moe.streams == 1;
        check(loaded, is_chain ? StepLevel::kClosedForm : StepLevel::kRepresentative,
              moe + ", " + placement);
      }
    }
  }
}

// Chunks of unlike lengths over data-parallel ranks were once priced as their sum on one rank.
TEST_F(StepLawTest, TheFullestRanksOwnPromptsCountAndNotTheSumOfAll) {
  const Scenario one = scenario("llama-3.1-8b", "vllm", "{tp: 1}", "closed_form");
  const Scenario apart = scenario("llama-3.1-8b", "vllm", "{dp: 2}", "closed_form");
  const auto time_of = [](const Scenario& on, std::vector<PrefillChunk> prefill) {
    const std::vector<ReplicaStep> steps{{.batch = {.prefill = std::move(prefill)}}};
    return replayed_durations(on, steps).front().value();
  };
  const double alone = time_of(one, {{.query = 8192}});
  EXPECT_NEAR(time_of(apart, {{.query = 8192}, {.query = 512}}), alone, 0.01 * alone);
  EXPECT_NEAR(time_of(apart, {{.query = 512}, {.query = 8192}, {.query = 512}}), alone,
              0.01 * alone);
}

}  // namespace
}  // namespace orrery
