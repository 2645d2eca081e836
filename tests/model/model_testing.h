#pragma once

// What tests of models ask of errors and plans.

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <variant>

#include "sim/plan/plan.h"

namespace orrery::testing {

inline ::testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "\"" << part << "\" is not in \"" << text << "\"";
}

// The first op of this name. Throws std::invalid_argument where there is none.
inline const KernelOp& kernel_named(const Plan& plan, const std::string& name) {
  for (const Op& op : plan.ops()) {
    if (op.name == name) return std::get<KernelOp>(op.body);
  }
  throw std::invalid_argument("no op " + name);
}

}  // namespace orrery::testing
