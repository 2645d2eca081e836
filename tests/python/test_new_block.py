"""A block is added in the six files that docs/architecture.md names; models that have it lower, count and split with it.

In a copy of sim/model, so that a place which would have to know of it too is found: nothing else is touched. What has
not changed is taken from the build.
"""

import pathlib
import re
import shutil
import subprocess

import pytest
from share import ALL

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
LIBRARIES = [BUILD / name for name in (
    "sim/model/liborrery_model.a", "sim/parallel/liborrery_parallel.a", "sim/grammar/liborrery_grammar.a",
    "kernels/liborrery_kernel_specs.a", "sim/plan/liborrery_plan.a", "sim/units/liborrery_units.a")]  # fmt: skip

BLOCK = """
// Toy: a gated FFN in the place of attention, which sees no other token and keeps nothing of a sequence.

#include "sim/model/blocks/blocks.h"

namespace orrery {

void lower_toy(Lowering& step, const LayerConfig& /*layer*/) {
  const TensorId input = step.linear_input_norm("toy_norm");
  const TensorId output = step.block_output("toy_out");
  lower_swiglu(step, "toy_", input, step.model.num_attention_heads * step.model.head_dim, output);
  step.finish_block("toy_residual", output);
}

}  // namespace orrery
"""

PROGRAM = """
#include <cstdio>

#include "kernels/kernel_spec.h"
#include "sim/parallel/parallel.h"

int main() {
  using namespace orrery;
  const ModelConfig model = model_config("toy", {{"model_type", "toy"},
      {"hidden_size", std::int64_t{256}}, {"vocab_size", std::int64_t{1000}}, {"num_hidden_layers", std::int64_t{2}},
      {"num_attention_heads", std::int64_t{8}}, {"head_dim", std::int64_t{64}}, {"intermediate_size", std::int64_t{1024}},
      {"tie_word_embeddings", false}});
  std::printf("%lld parameters\\n", static_cast<long long>(count_parameters(model).total));
  const Plan plan = lower(model, {.num_decodes = 4, .decode_context = 400}, {});
  for (const int tp : {1, 2}) {
    const Plan split = parallelize(plan, {.tp = tp});
    verify(split);
    std::printf("tp %d: %lld elements of weights\\n", tp, static_cast<long long>(num_weight_elements(split, 0)));
  }
}
"""


def edit(path, pattern, put):
    """Puts text where a pattern ends, which the file has once."""
    text = path.read_text(encoding="utf-8")
    found = list(re.finditer(pattern, text))
    assert len(found) == 1, f"{path.name}: {pattern}"
    path.write_text(text[:found[0].end()] + put + text[found[0].end():], encoding="utf-8")


@pytest.mark.slow
@pytest.mark.skipif(not ALL, reason="compiles four files; ./orrery test --all does")
@pytest.mark.skipif(not all(path.exists() for path in LIBRARIES), reason="takes libraries of the build")
def test_a_block_is_a_file_its_declaration_and_its_lines(tmp_path):
    models = tmp_path / "sim/model"
    shutil.copytree(ROOT / "sim/model", models)
    (models / "blocks/toy.cpp").write_text(BLOCK, encoding="utf-8")
    edit(models / "CMakeLists.txt", r"blocks/sample\.cpp", " blocks/toy.cpp")
    edit(models / "model.h", r"enum class AttentionKind [^}]*\w", ", kToy")
    edit(models / "blocks/blocks.h", r"void lower_sample\([^)]*\);", "\nvoid lower_toy(Lowering& step, const LayerConfig& layer);")
    edit(models / "blocks/blocks.cpp", r"kAttentionBlocks = .*\n", "    {AttentionKind::kToy, lower_toy},\n")
    edit(models / "architectures.cpp", r"kArchitectures = .*\n", '    {.model_type = "toy", .attention = AttentionKind::kToy},\n')
    files = [path.relative_to(models) for path in sorted(models.rglob("*")) if path.is_file()]
    touched = [str(path) for path in files
               if not (ROOT / "sim/model" / path).exists() or (models / path).read_bytes() != (ROOT / "sim/model" / path).read_bytes()]
    assert touched == ["CMakeLists.txt", "architectures.cpp", "blocks/blocks.cpp", "blocks/blocks.h", "blocks/toy.cpp", "model.h"]

    program = tmp_path / "main.cpp"
    program.write_text(PROGRAM, encoding="utf-8")
    sources = [program, *(models / name for name in ("blocks/toy.cpp", "blocks/blocks.cpp", "architectures.cpp"))]
    # The first definition counts: objects of the library may hold the unchanged files beside what is wanted of them.
    subprocess.run(["c++", "-std=c++20", f"-I{tmp_path}", f"-I{ROOT}", *sources, "-Wl,--allow-multiple-definition",
                    "-Wl,--start-group", *LIBRARIES, "-Wl,--end-group", "-o", tmp_path / "main"], check=True)  # fmt: skip
    said = subprocess.run([tmp_path / "main"], check=True, capture_output=True, text=True).stdout.splitlines()
    # Two layers of a toy, 3 x 256 x 512, and an FFN, 3 x 256 x 1,024; embedding and LM head of 1,000 x 256; norms of 256.
    norms, split = 5 * 256, 2 * 3 * 256 * (512 + 1024) + 2 * 1000 * 256
    assert said == [f"{norms + split} parameters", f"tp 1: {norms + split} elements of weights",
                    f"tp 2: {norms + split // 2} elements of weights"]  # fmt: skip
