#include "sim/scenario/validation_spec.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace orrery {
namespace {

ValidationSpec read(const std::string& text) { return read_validation(parse_yaml(text, "v.yaml")); }

void expect_error(const std::string& text, const std::string& part) {
  try {
    read(text);
    FAIL() << "no error, expected one with: " << part;
  } catch (const ScenarioError& error) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(ValidationSpec, SaysWhatItLeavesOut) {
  EXPECT_EQ(read("{}"), ValidationSpec());
  EXPECT_EQ(ValidationSpec().modes, (std::vector{LaunchMode::kGraph, LaunchMode::kEager}));
}

TEST(ValidationSpec, StepsArePrefillsDecodesOrBoth) {
  const ValidationSpec spec = read(
      "steps:\n"
      "  - {prefill: [2048, 512], context: 64}\n"
      "  - {decodes: 64, context: 4096}\n"
      "  - {prefill: [2048], decodes: 32, context: 1024, prefill_context: 16, name: mixed}\n"
      "modes: [eager]\n"
      "repeats: 7\n"
      "serve: false\n");
  ASSERT_EQ(spec.steps.size(), 3U);
  EXPECT_EQ(spec.steps[0].name, "prefill2048-512_cached64");
  EXPECT_EQ(spec.steps[0].batch,
            (Batch{.prefill = {{.query = 2048, .context = 64}, {.query = 512, .context = 64}}}));
  EXPECT_EQ(spec.steps[1].name, "decode64_context4096");
  // Contexts of a batch are summed: 64 * 4096.
  EXPECT_EQ(spec.steps[1].batch, (Batch{.num_decodes = 64, .decode_context = 262144}));
  EXPECT_EQ(spec.steps[2].name, "mixed");
  EXPECT_EQ(spec.steps[2].batch, (Batch{.prefill = {{.query = 2048, .context = 16}},
                                        .num_decodes = 32,
                                        .decode_context = 32768}));
  EXPECT_EQ(spec.modes, std::vector{LaunchMode::kEager});
  EXPECT_EQ(spec.repeats, 7);
  EXPECT_FALSE(spec.serve);
}

TEST(ValidationSpec, TheMegakernelTakesFewDecodes) {
  const ValidationSpec spec = read("modes: [megakernel, graph]");
  EXPECT_EQ(read(to_yaml(spec)), spec);
  EXPECT_EQ(modes_of(spec, {.num_decodes = 8, .decode_context = 80}),
            (std::vector{LaunchMode::kMegakernel, LaunchMode::kGraph}));
  // More are a graph in its place, once; with prompts all are launched eagerly.
  EXPECT_EQ(modes_of(spec, {.num_decodes = 9, .decode_context = 90}),
            std::vector{LaunchMode::kGraph});
  EXPECT_EQ(modes_of(read("modes: [megakernel]"), {.num_decodes = 16, .decode_context = 160}),
            std::vector{LaunchMode::kGraph});
  EXPECT_EQ(modes_of(spec, {.prefill = {{.query = 5}}}), std::vector{LaunchMode::kEager});
  expect_error("modes: [megakernl]", "did you mean 'megakernel'?");
}

TEST(ValidationSpec, WrittenOutReadsBackAsItWas) {
  const ValidationSpec spec = read(
      "steps: [{prefill: [2048, 512], context: 64}, {decodes: 3, context: 5, name: small},\n"
      "        {prefill: [16], decodes: 32, context: 1024, prefill_context: 16}]\n"
      "modes: [eager, graph]\nserve: false\n");
  EXPECT_EQ(read(to_yaml(spec)), spec);
  EXPECT_EQ(read(to_yaml(ValidationSpec())), ValidationSpec());
}

TEST(ValidationSpec, NamesOfManyChunksStayShort) {
  Batch batch;
  batch.prefill.assign(8, {.query = 256, .context = 0});
  EXPECT_EQ(step_name(batch), "prefill8x256");
}

TEST(ValidationSpec, StepsWithPrefillAreNeverGraphs) {
  const ValidationSpec both;
  EXPECT_EQ(modes_of(both, {.num_decodes = 1, .decode_context = 1}), both.modes);
  EXPECT_EQ(modes_of(both, {.prefill = {{.query = 1, .context = 0}}}),
            std::vector{LaunchMode::kEager});
}

TEST(ValidationSpec, ErrorsSayWhereAndWhatWouldWork) {
  expect_error("steps: [{prefil: [1]}]",
               "v.yaml:1:10: validate.steps: unknown key 'prefil'; did you mean 'prefill'");
  expect_error("steps:\n  - {context: 4}", "v.yaml:2:5: validate.steps: found neither prefill");
  expect_error("steps: {prefill: [1]}", "expected a list of steps");
  expect_error("steps: [{decodes: 4}]", "missing key");
  expect_error("steps: [{decodes: 0, context: 1}]", "validate.steps.decodes: found '0'");
  expect_error("steps: [{prefill: []}]", "found an empty list; expected the new tokens");
  expect_error("steps: [{prefill: [0]}]", "at least 1");
  expect_error("steps: [{prefill: [8], prefill_context: 4}]", "belongs to steps with decodes");
  expect_error("steps: [{decodes: 8, context: 4, prefill_context: 4}]",
               "belongs to steps with prefill");
  expect_error("steps: [{prefill: [8], name: a/b}]", "found 'a/b'; expected letters");
  expect_error("steps: [{prefill: [8]}, {prefill: [8]}]", "a second step named 'prefill8'");
  expect_error("modes: [grahp]", "v.yaml:1:9: validate.modes: found 'grahp'");
  expect_error("modes: [grahp]", "did you mean 'graph'?");
  expect_error("modes: [graph, graph]", "stands there twice");
  expect_error("modes: []", "expected graph, eager or megakernel, or several");
  expect_error("repeats: 0", "validate.repeats");
  expect_error("serve: maybe", "validate.serve");
}

}  // namespace
}  // namespace orrery
