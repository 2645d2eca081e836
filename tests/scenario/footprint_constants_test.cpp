#include <gtest/gtest.h>

#include "sim/memory/footprint.h"
#include "sim/scenario/engine_profile.h"

namespace orrery {
namespace {

TEST(FootprintConstants, OfTheGpuSideAreThoseOfTheEngineProfile) {
  const EngineProfile profile =
      read_engine_profile(ORRERY_SOURCE_DIR "/scenarios/engines/orrery.yaml");
  EXPECT_EQ(profile.context_memory, h200_fixed_memory().context);
  EXPECT_EQ(profile.library_memory, h200_fixed_memory().libraries);
  EXPECT_EQ(profile.workspace_memory, h200_fixed_memory().workspace);
}

}  // namespace
}  // namespace orrery
