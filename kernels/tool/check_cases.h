#pragma once

// What checks that print a line per case share.

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

#include "kernels/binding/step_input.h"
#include "kernels/execute/rank_batches.h"
#include "kernels/tool/checks.h"
#include "sim/parallel/parallel.h"
#include "sim/parallel/rank_rows.h"
#include "sim/plan/plan.h"

namespace orrery::tool {

// Where a mesh has weights and collectives other than by default: " o_proj replicated".
inline std::string describe_choices(const Mesh& mesh) {
  std::string text;
  const auto add = [&](const char* key, const auto& names, auto choice) {
    if (choice == decltype(choice){}) return;
    text.append(" ").append(key).append(" ").append(names[static_cast<std::size_t>(choice)]);
  };
  add("shared_expert", kSharedExpertNames, mesh.shared_expert);
  add("dp_rows", kDpRowsNames, mesh.dp_rows);
  add("attention_gather", kAttentionGatherNames, mesh.attention_gather);
  add("moe_gather", kMoeGatherNames, mesh.moe_gather);
  add("o_proj", kOProjectionNames, mesh.o_proj);
  add("lm_head", kLmHeadNames, mesh.lm_head);
  if (mesh.split_all_reduce) text += " split_all_reduce";
  return text;
}

// A step of ranks with batches of their own, which run the plan of the fullest. Where they have
// even parts of all rows, these are as many as there are tokens, or as `num_decodes` where those
// are more.
inline StepShape shape_of_unlike(const StepInput& input, std::int64_t num_decodes,
                                 const Mesh& mesh) {
  const int parts = mesh.dp * mesh.num_micro_batches;
  const Batch fullest = fullest_batch(input, parts, num_decodes);
  if (mesh.dp_rows == DpRows::kOwn) return alike_shape(fullest, mesh);
  return alike_shape(fullest, mesh, std::max(num_tokens(batch_of(input)), num_tokens(fullest)));
}

class CheckCases {
 public:
  explicit CheckCases(int num_gpus) : num_gpus_(num_gpus) {}
  [[nodiscard]] CheckCount result() const { return count_; }

 protected:
  void count(bool passes) {
    last_passed_ = passes;
    ++(passes ? count_.passed : count_.failed);
  }
  [[nodiscard]] const char* verdict() const { return last_passed_ ? "ok  " : "FAIL"; }

  // Where the mesh has more ranks than there are GPUs.
  bool is_skipped(const std::string& what, const Mesh& mesh) const {
    if (num_ranks(mesh) <= num_gpus_) return false;
    std::printf("skip %s: needs %d GPUs, %d here\n", what.c_str(), num_ranks(mesh), num_gpus_);
    return true;
  }

  // What a case throws fails that case alone.
  template <typename Run>
  void guarded(const std::string& what, const Run& run) {
    try {
      run();
    } catch (const std::exception& error) {
      count(false);
      std::printf("FAIL %s: %s\n", what.c_str(), error.what());
    }
    std::fflush(stdout);
  }

  // That it is refused as bad input.
  template <typename Run>
  void check_refused(const std::string& what, const Run& run) {
    guarded(what, [&] {
      std::string message;
      try {
        run();
      } catch (const std::invalid_argument& error) {
        message = error.what();
      }
      count(!message.empty());
      std::printf("%s %s  refused: %s\n", verdict(), what.c_str(), message.c_str());
    });
  }

 private:
  int num_gpus_;
  CheckCount count_;
  bool last_passed_ = false;
};

// Logits as in check_execute.cpp: experts are chosen by the scores that the GPU found, so what is
// left is rounding. Scores differ by the rounding of their inputs.
struct MoeBounds {
  double logits = 2.5e-2;
  double scores = 3e-2;
  double layer = 1.5e-2;  // of a layer by itself, of the largest output
};
inline MoeBounds moe_bounds(DType dtype) {
  if (dtype != DType::kFp8) return {};
  return {.logits = 2e-1, .scores = 1.5e-1, .layer = 8e-2};
}

}  // namespace orrery::tool
