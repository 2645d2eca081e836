"""A pass is added in the four files that docs/architecture.md names; the plans of a mesh it applies to have it then.

In a copy of sim/parallel, so that a place which would have to know of it too is found: nothing else is touched. What has
not changed is taken from the build.
"""

import pathlib
import shutil
import subprocess

import pytest
from share import ALL

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
LIBRARIES = [BUILD / name for name in (
    "sim/parallel/liborrery_parallel.a", "sim/model/liborrery_model.a", "sim/grammar/liborrery_grammar.a", "kernels/liborrery_kernel_specs.a",
    "sim/plan/liborrery_plan.a", "sim/units/liborrery_units.a")]  # fmt: skip

PASS = """
// Toy: where there is tensor parallelism, a host op at the end of the step.

#include "sim/parallel/rewrite.h"

namespace orrery {

bool toy_applies(const Plan& /*plan*/, const Mesh& mesh) { return mesh.tp > 1; }

Plan toy_pass(const Plan& plan, const Mesh& /*mesh*/) {
  Plan result = plan;
  result.add_op({.name = "toy", .body = HostOp{}, .ranks = result.ops().back().ranks});
  return result;
}

}  // namespace orrery
"""

PROGRAM = """
#include <cstdio>

#include "kernels/kernel_spec.h"
#include "sim/parallel/parallel.h"

int main() {
  using namespace orrery;
  const ModelConfig model = model_config("toy", {{"model_type", "llama"},
      {"hidden_size", std::int64_t{256}}, {"vocab_size", std::int64_t{1000}}, {"num_hidden_layers", std::int64_t{2}},
      {"num_attention_heads", std::int64_t{8}}, {"num_key_value_heads", std::int64_t{2}},
      {"intermediate_size", std::int64_t{512}}, {"tie_word_embeddings", false}});
  const Plan plan = lower(model, {.num_decodes = 4, .decode_context = 400}, {});
  for (const int tp : {1, 2}) {
    const Plan split = parallelize(plan, {.tp = tp});
    verify(split);
    std::printf("tp %d ends in %s\\n", tp, split.ops().back().name.c_str());
  }
}
"""


def edit(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{path.name}: {old}"
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.slow
@pytest.mark.skipif(not ALL, reason="compiles three files; ./orrery test --all does")
@pytest.mark.skipif(not all(path.exists() for path in LIBRARIES), reason="takes libraries of the build")
def test_a_pass_is_a_file_its_declaration_and_its_lines(tmp_path):
    passes = tmp_path / "sim/parallel"
    shutil.copytree(ROOT / "sim/parallel", passes)
    (passes / "toy.cpp").write_text(PASS, encoding="utf-8")
    edit(passes / "CMakeLists.txt", "add_library(orrery_parallel STATIC", "add_library(orrery_parallel STATIC toy.cpp")
    edit(passes / "rewrite.h", "bool pipeline_applies(",
         "bool toy_applies(const Plan& plan, const Mesh& mesh);\nPlan toy_pass(const Plan& plan, const Mesh& mesh);\nbool pipeline_applies(")
    edit(passes / "parallel.cpp", '    {.name = "pipeline",', '    {.name = "toy",\n     .summary = "a host op",\n     .applies = toy_applies,\n'
         '     .apply = toy_pass},\n    {.name = "pipeline",')  # fmt: skip
    touched = [path.name for path in sorted(passes.iterdir())
               if not (ROOT / "sim/parallel" / path.name).exists() or path.read_bytes() != (ROOT / "sim/parallel" / path.name).read_bytes()]
    assert touched == ["CMakeLists.txt", "parallel.cpp", "rewrite.h", "toy.cpp"]

    program = tmp_path / "main.cpp"
    program.write_text(PROGRAM, encoding="utf-8")
    # The first definition counts: objects of the library may hold the unchanged parallel.cpp beside what is wanted of them.
    subprocess.run(["c++", "-std=c++20", f"-I{tmp_path}", f"-I{ROOT}", program, passes / "parallel.cpp", passes / "toy.cpp",
                    "-Wl,--allow-multiple-definition", "-Wl,--start-group", *LIBRARIES, "-Wl,--end-group", "-o", tmp_path / "main"], check=True)  # fmt: skip
    said = subprocess.run([tmp_path / "main"], check=True, capture_output=True, text=True).stdout.splitlines()
    assert said == ["tp 1 ends in sample", "tp 2 ends in toy"]
