"""A kernel is added by its directory and one line of CMake; what lowers to it finds it then, and what computes plans on the CPU.

In a copy of the tree, so that a place which would have to know of it too is found: nothing else is touched.
"""

import os
import pathlib
import shutil
import subprocess

import pytest
from share import ALL

ROOT = pathlib.Path(__file__).resolve().parents[2]

SPEC = """
#include "kernels/kernel_spec.h"
#include "kernels/work.h"

namespace orrery {
namespace {

Work work(DType dtype, const Dims& dims) {
  const double elements = size(dims, "tokens") * size(dims, "hidden");
  return {.flops = Flops(elements),
          .bytes_read = Bytes(elements * bytes_per_element(dtype)),
          .bytes_written = Bytes(elements * bytes_per_element(dtype))};
}

}  // namespace

KernelSpec toy_scale_spec() {
  return {.name = "toy_scale",
          .summary = "y = 2 x; dtype of both",
          .dims = {{.name = "tokens", .meaning = "rows"}, {.name = "hidden", .meaning = "columns"}},
          .slots = {{.name = "x", .axes = "tokens, hidden"},
                    {.name = "y", .axes = "tokens, hidden", .is_result = true, .may_alias = "x"}},
          .work = work,
          .prior = {.flops = 0.6, .hbm = 0.8, .floor = us(2), .spread = 0.1}};
}

}  // namespace orrery
"""

REFERENCE = """
#include "kernels/binding/kernel_call.h"

namespace orrery::reference {

Results toy_scale_reference(const KernelCall& call) {
  Values y = read(call, "x");
  for (double& value : y) value *= 2;
  return {y};
}

}  // namespace orrery::reference
"""

# A plan with one op of it: what a lowering writes. Then one whose result has other rows, which `verify` refuses by the slots.
PROGRAM = """
#include <algorithm>
#include <cstdio>
#include <exception>

#include "kernels/attention/rope/reference.h"
#include "kernels/binding/kernel_call.h"
#include "kernels/kernel_spec.h"

namespace {

orrery::Plan lowered(std::int64_t rows) {
  using namespace orrery;
  Plan plan;
  const GroupId ranks = plan.add_group({0});
  const auto tensor = [&](const char* name, TensorRole role, std::int64_t tokens) {
    return plan.add_tensor({.name = name, .axes = {{"tokens", tokens}, {"hidden", 64}}, .role = role, .ranks = ranks});
  };
  const TensorId x = tensor("x", TensorRole::kInput, 8);
  const TensorId y = tensor("y", TensorRole::kOutput, rows);
  plan.add_op({.name = "scale",
               .body = KernelOp{.kernel = "toy_scale", .dims = {{"tokens", 8, "tokens"}, {"hidden", 64, "hidden"}}},
               .ranks = ranks,
               .reads = {x},
               .writes = {y}});
  return plan;
}

// The first element of what the op makes of x that is all of one value.
double computed(const orrery::Plan& plan, double value) {
  using namespace orrery::reference;
  const orrery::Op& op = plan.ops().front();
  const auto& kernel = std::get<orrery::KernelOp>(op.body);
  const Values x(8 * 64, value);
  const auto all = kernel_references();
  const auto found = std::ranges::find(all, kernel.kernel, &KernelReference::kernel);
  return found->run({.op = op,
                     .kernel = kernel,
                     .plan = plan,
                     .spec = orrery::kernel_spec(kernel.kernel),
                     .slots = orrery::operand_slots(plan, op),
                     .reads = {&x},
                     .written = {nullptr},
                     .part = PartRows(),
                     .rope = RopeTables(),
                     .numbers = orrery::ModelNumbers()}).front().front();
}

}  // namespace

int main() {
  const orrery::Plan plan = lowered(8);
  orrery::verify(plan);
  const auto& op = std::get<orrery::KernelOp>(plan.ops().front().body);
  std::printf("%.0f bytes\\n", orrery::work_of(op).bytes_read.value());
  std::printf("%s", orrery::to_text(plan).c_str());
  std::printf("%g\\n", computed(plan, 1.5));
  try {
    orrery::verify(lowered(7));
  } catch (const std::exception& error) {
    std::printf("%s\\n", error.what());
  }
}
"""


@pytest.mark.slow
@pytest.mark.skipif(not ALL, reason="builds the specs of all kernels; ./orrery test --all does")
def test_a_kernel_is_a_directory_and_a_line(tmp_path):
    tree = tmp_path / "tree"
    for directory in ("kernels", "sim"):
        shutil.copytree(ROOT / directory, tree / directory)
    shutil.copy(ROOT / "CMakeLists.txt", tree)
    shutil.copytree(ROOT / "topologies/devices", tree / "topologies/devices", ignore=shutil.ignore_patterns("*.csv"))
    shutil.copytree(ROOT / "models", tree / "models")
    toy = tree / "kernels/rows/toy_scale"
    toy.mkdir()
    (toy / "toy_scale.cpp").write_text(SPEC, encoding="utf-8")
    (toy / "reference.cpp").write_text(REFERENCE, encoding="utf-8")
    lines = tree / "kernels/CMakeLists.txt"
    text = lines.read_text(encoding="utf-8")
    first = text.index("orrery_add_kernel(dense/gemm")
    lines.write_text(f"{text[:first]}orrery_add_kernel(rows/toy_scale REFERENCE reference.cpp)\n{text[first:]}", encoding="utf-8")

    build = tmp_path / "build"
    options = ["ORRERY_SIMULATOR=OFF", "ORRERY_CUDA=OFF", "ORRERY_MPI=OFF", "ORRERY_TESTS=OFF", "ORRERY_UNITY=ON", "CMAKE_CXX_FLAGS_DEBUG=-O0"]
    subprocess.run(["cmake", "-S", tree, "-B", build, "-DCMAKE_BUILD_TYPE=Debug", *(f"-D{option}" for option in options)],
                   check=True, stdout=subprocess.DEVNULL)
    jobs = str(len(os.sched_getaffinity(0)))
    subprocess.run(["cmake", "--build", build, "-j", jobs, "--target", "orrery_grammar", "orrery_kernel_references"],
                   check=True, stdout=subprocess.DEVNULL)
    program = tmp_path / "main.cpp"
    program.write_text(PROGRAM, encoding="utf-8")
    libraries = [build / "sim/grammar/liborrery_grammar.a", build / "kernels/liborrery_kernel_references.a",
                 build / "kernels/liborrery_kernel_specs.a", build / "sim/plan/liborrery_plan.a", build / "sim/units/liborrery_units.a"]
    subprocess.run(["c++", "-std=c++20", f"-I{tree}", program, *libraries, "-o", tmp_path / "main"], check=True)
    said = subprocess.run([tmp_path / "main"], check=True, capture_output=True, text=True).stdout.splitlines()
    assert said[0] == "1024 bytes"  # 8 rows of 64 bf16 elements
    assert any(line.endswith(" x=t0 -> y=t1") for line in said)
    assert said[-2] == "3"  # 2 x 1.5
    assert "as y, expected activation of its dtype [tokens, hidden]" in said[-1]
