// Laws of the double-precision residual_add.

#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "kernels/rows/residual_add/reference.h"

namespace orrery {
namespace {

TEST(ResidualAddReference, AddsElementByElement) {
  const std::vector<double> residual{1, -2, 0.5};
  const std::vector<double> x{0.25, 2, -1};
  EXPECT_EQ(reference::residual_add(residual, x), (std::vector<double>{1.25, 0, -0.5}));
}

TEST(ResidualAddReference, RefusesOperandsOfDifferentSizes) {
  EXPECT_THROW(reference::residual_add(std::vector<double>{1}, std::vector<double>{1, 2}),
               std::invalid_argument);
}

}  // namespace
}  // namespace orrery
