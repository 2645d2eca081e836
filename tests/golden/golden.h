#pragma once

// Compares text with a file in tests/golden. To write the files anew, run the failing test with
// ORRERY_REGENERATE=1 in the environment and read the difference before committing it.

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

namespace orrery {

inline void expect_golden(const std::string& name, std::string_view text) {
  const std::string path = std::string(ORRERY_SOURCE_DIR) + "/tests/golden/" + name;
  if (std::getenv("ORRERY_REGENERATE") != nullptr) {
    std::ofstream out(path, std::ios::binary);
    out << text;
    ASSERT_TRUE(out.flush()) << "cannot write " << path;
    return;
  }
  std::ifstream in(path, std::ios::binary);
  std::ostringstream expected;
  expected << in.rdbuf();
  const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  EXPECT_EQ(text, expected.str()) << "differs from tests/golden/" << name
                                  << "; if that is meant, regenerate it with\n"
                                  << "  ORRERY_REGENERATE=1 ctest --test-dir BUILD -R '"
                                  << test->test_suite_name() << "." << test->name() << "'";
}

}  // namespace orrery
