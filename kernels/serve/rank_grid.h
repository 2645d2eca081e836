#pragma once

// The ranks of a mesh as the executor names them. No CUDA.

#include "kernels/binding/step_input.h"
#include "sim/parallel/parallel.h"

namespace orrery {

inline RankGrid grid_of(const Mesh& mesh) {
  return {.tp = mesh.tp,
          .dp = mesh.dp,
          .pp = mesh.pp,
          .cp = mesh.cp,
          .ffn_instances = mesh.ffn_instances,
          .ffn_tp = mesh.ffn_tp};
}

}  // namespace orrery
