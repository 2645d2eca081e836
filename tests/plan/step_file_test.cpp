#include "sim/plan/step_file.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace orrery {
namespace {

constexpr const char* kMixedText = R"(# a mixed step
mode eager
prefill 2048 100 1

prefill 7 0 0
decodes 3 129
)";

std::string error_of(std::string_view text) {
  try {
    parse_step(text, "a.step");
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(StepFile, HoldsChunksAndDecodesOfAStep) {
  const StepFile expected{
      .batch = {.prefill = {{.query = 2048, .context = 100}, {.query = 7, .produces_token = false}},
                .num_decodes = 3,
                .decode_context = 3 * 129}};
  EXPECT_EQ(parse_step(kMixedText, "a.step"), expected);
}

TEST(StepFile, IsReadAsItWasWritten) {
  for (const std::string text :
       {"mode eager\nprefill 2048 100 1\nprefill 7 0 0\ndecodes 3 129\n",
        "mode graph\ndecodes 64 2048\n", "mode megakernel\ndecodes 1 512\n",
        "mode eager\nprefill 5 0 1\n", "mode graph\nlayers 16 64\n"}) {
    EXPECT_EQ(to_text(parse_step(text, "a.step")), text);
  }
}

TEST(StepFile, AMistakeIsNamedWithFileAndLine) {
  EXPECT_EQ(error_of("mode graph\ndecode 1 10\n"),
            "a.step:2: unknown word 'decode', nearest is 'decodes'");
  EXPECT_EQ(error_of("mode lazy\n"),
            "a.step:1: found mode 'lazy'; expected graph, eager or megakernel");
  EXPECT_EQ(error_of("mode eager\nprefill 5 0\n"),
            "a.step:2: found 2 values; expected 'prefill QUERY CONTEXT PRODUCES'");
  EXPECT_EQ(error_of("mode eager\nprefill 0 0 1\n"),
            "a.step:2: found '0'; expected a whole number from 1 to 1073741824");
  EXPECT_EQ(error_of("mode eager\nprefill 4 0 2\n"),
            "a.step:2: found '2'; expected a whole number from 0 to 1");
  EXPECT_EQ(error_of("mode eager\ndecodes 1 1\ndecodes 1 1\n"),
            "a.step:3: 'decodes' was given before");
  EXPECT_EQ(error_of("decodes 1 1\n"),
            "a.step:1: the file ends without 'mode graph', 'mode eager' or 'mode megakernel'");
  EXPECT_EQ(error_of("mode eager\ndecodes 0 0\n"),
            "a.step:2: the step has no tokens; expected 'prefill', 'decodes' or 'layers'");
  EXPECT_EQ(
      error_of("mode graph\nprefill 4 0 1\n"),
      "a.step:2: mode graph with prefill, expected mode eager: graphs are captured of steps of "
      "decodes alone");
  EXPECT_EQ(
      error_of("mode megakernel\nprefill 4 0 1\n"),
      "a.step:2: mode megakernel with prefill, expected mode eager: the megakernel runs steps "
      "of decodes alone");
}

TEST(StepFile, LayersStandAlone) {
  const StepFile step = parse_step("mode eager\nlayers 16 64\n", "a.step");
  EXPECT_EQ(step.layers, (LayersOfStep{.count = 16, .tokens = 64}));
  EXPECT_EQ(error_of("mode eager\nlayers 16\n"),
            "a.step:2: found 1 values; expected 'layers COUNT TOKENS'");
  EXPECT_EQ(error_of("mode eager\nlayers 0 64\n"),
            "a.step:2: found '0'; expected a whole number from 1 to 1024");
  EXPECT_EQ(error_of("mode eager\nlayers 2 0\n"),
            "a.step:2: found '0'; expected a whole number from 1 to 1073741824");
  EXPECT_EQ(error_of("mode eager\nlayers 2 8\ndecodes 1 1\n"),
            "a.step:3: layers beside prefill or decodes; expected one of them");
  EXPECT_EQ(error_of("mode megakernel\nlayers 2 8\n"),
            "a.step:2: mode megakernel with layers; expected mode graph or eager");
}

TEST(StepFile, AMissingFileIsNamed) {
  EXPECT_THROW(read_step("/nonexistent/a.step"), std::invalid_argument);
}

}  // namespace
}  // namespace orrery
