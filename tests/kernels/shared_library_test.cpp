#include "kernels/cuda/shared_library.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

namespace orrery::cuda {
namespace {

constexpr const char* kVariable = "ORRERY_TEST_LIBRARY";

std::string refusal(const std::vector<std::string>& paths) {
  try {
    static_cast<void>(open_library(paths));
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return {};
}

TEST(SharedLibrary, IsLookedForBesideTheProgramThenWhereTheLoaderLooksThenInTheDirectories) {
  unsetenv(kVariable);
  const std::vector<std::string> directories = {"/first", "/second"};
  const std::vector<std::string> paths = library_paths("liba.so.1", kVariable, directories);
  ASSERT_EQ(paths.size(), 4U);
  EXPECT_TRUE(paths[0].starts_with("/") && paths[0].ends_with("/liba.so.1")) << paths[0];
  EXPECT_EQ(paths[1], "liba.so.1");
  EXPECT_EQ(paths[2], "/first/liba.so.1");
  EXPECT_EQ(paths[3], "/second/liba.so.1");
}

TEST(SharedLibrary, IsTakenFromTheEnvironmentsPathAlone) {
  setenv(kVariable, "/named/libb.so", 1);
  const std::vector<std::string> directories = {"/first"};
  EXPECT_EQ(library_paths("liba.so.1", kVariable, directories),
            std::vector<std::string>{"/named/libb.so"});
  unsetenv(kVariable);
}

TEST(SharedLibrary, ThatIsNowhereIsAnErrorThatNamesEachPlace) {
  const std::string text = refusal({"/nowhere/liba.so.1", "/nor/here/liba.so.1"});
  EXPECT_NE(text.find("/nowhere/liba.so.1"), std::string::npos) << text;
  EXPECT_NE(text.find("/nor/here/liba.so.1"), std::string::npos) << text;
}

TEST(SharedLibrary, IsTheFirstThatOpens) {
  const std::vector<std::string> paths = {"/nowhere/libm.so.6", "libm.so.6"};
  void* const library = open_library(paths);
  auto* const cosine = reinterpret_cast<double (*)(double)>(library_symbol(library, "libm", "cos"));
  EXPECT_EQ(cosine(0.0), 1.0);
}

TEST(SharedLibrary, WithoutAFunctionIsAnErrorThatNamesBoth) {
  const std::vector<std::string> paths = {"libm.so.6"};
  void* const library = open_library(paths);
  try {
    static_cast<void>(library_symbol(library, "libm.so.6", "no_such_function"));
    FAIL() << "found no_such_function";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "libm.so.6 has no function no_such_function");
  }
}

}  // namespace
}  // namespace orrery::cuda
