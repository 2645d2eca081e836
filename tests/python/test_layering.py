"""Each room includes only itself and the rooms above it; third-party code stays in its room."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Order of the rooms: one may include itself and what stands before it.
ROOMS = ["sim/units", "sim/plan", "kernels", "sim/grammar", "sim/memory", "sim/megakernel", "sim/timeline", "sim/machine", "sim/cost", "sim/des",
         "sim/model", "sim/parallel", "sim/serve", "sim/scenario", "sim/explore", "bindings"]


def library(directory, name):
    """Files of a library as its CMake list has them, each source with its header, from the project's root."""
    text = (ROOT / directory / "CMakeLists.txt").read_text(encoding="utf-8")
    return with_headers(directory, re.search(rf"add_library\({name} STATIC\s+([^)]*)\)", text).group(1).split())


def with_headers(directory, sources):
    names = {f"{directory}/{source}" for source in sources}
    return names | {re.sub(r"\.c(pp|u)$", ".h", name) for name in names}


# Lines of the list of kernels: directory, name, sources that the spec needs.
KERNELS = re.findall(r"^orrery_add_kernel\((\w+)/(\w+)(?: SPEC ((?:\w+\.\w+ ?)+))?",
                     (ROOT / "kernels/CMakeLists.txt").read_text(encoding="utf-8"), re.MULTILINE)
# What kernels are, which the simulator sees: no CUDA. What stands in kernels/ itself, the kernels' specs and what these
# need, and what references are made of.
SPECS = {path.relative_to(ROOT).as_posix() for path in [*(ROOT / "kernels").glob("*.*"), *(ROOT / "kernels/priced").glob("*.*")]}
SPECS |= library("kernels", "orrery_kernel_references")
for family, kernel, sources_of_spec in KERNELS:
    SPECS |= {f"kernels/{family}/{kernel}/{kernel}.cpp"} | with_headers(f"kernels/{family}/{kernel}", sources_of_spec.split())

# All else in kernels/ is the GPU side. Its rooms by floor: one may include those of its own floor and of floors before.
FAMILIES = {f"kernels/{family}" for family, _, _ in KERNELS} - {"kernels/priced"} | {"kernels/comm", "kernels/probes"}
FLOORS = [{"kernels/cuda"}, {"kernels/harness"}, {"kernels/binding"}, FAMILIES, {"kernels/calibrate"}, {"kernels/megakernel"},
          {"kernels/execute"},
          {"kernels/serve"}, {"kernels/compare"}, {"kernels/tool"}]
GPU_MAY_INCLUDE = ("sim/units", "sim/plan", "sim/memory", "sim/megakernel", "sim/timeline")
# Those that serve on GPUs make plans themselves and run the simulator's scheduler, which for that knows no simulator: its
# libraries are what it is made of.
SCHEDULER = library("sim/serve", "orrery_scheduler") | library("sim/serve", "orrery_deployment")
SERVE_MAY_INCLUDE = ("sim/model", "sim/parallel", *sorted(SCHEDULER))
SCHEDULER_MAY_INCLUDE = ("sim/units", "sim/plan", "sim/timeline", *SERVE_MAY_INCLUDE)
# Calibration judges its tables by the simulator's own interpolation, and needs what a device is for it.
CALIBRATE_MAY_INCLUDE = ("sim/machine", *sorted(library("sim/cost", "orrery_kernel_tables")))
# By room of the GPU side: what it sees of the simulator besides.
SEES = {"kernels/calibrate": CALIBRATE_MAY_INCLUDE, "kernels/execute": ("sim/model/expert_load.h",), "kernels/serve": SERVE_MAY_INCLUDE,
        "kernels/tool": (*SERVE_MAY_INCLUDE, *CALIBRATE_MAY_INCLUDE)}

# Third-party header prefix -> the only places that may include it.
THIRD_PARTY = {
    "simgrid/": ["sim/des/network_simgrid.cpp"],
    "yaml-cpp/": ["sim/scenario/"],
    "nlohmann/": ["sim/serve/mooncake_trace.cpp", "sim/timeline/perfetto.cpp", "sim/scenario/", "sim/explore/"],  # not the GPU side
    "pybind11/": ["bindings/"],
    "cuda": ["kernels/"],
    "nccl": ["kernels/"],
    "mpi": ["kernels/execute/mpi_processes.cpp"],
}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^">]+)[">]', re.MULTILINE)


def sources():
    for folder in ("sim", "kernels", "bindings"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".h", ".cpp", ".cuh", ".cu"):
                yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def room_of(name):
    rooms = [room for room in ROOMS if name == room or name.startswith(room + "/")]
    return max(rooms, key=len) if rooms else None


def floor_of(name):
    """Of a file of the GPU side; None where its room has no floor."""
    room = "/".join(name.split("/")[:2])
    return next((i for i, rooms in enumerate(FLOORS) if room in rooms), None)


def gpu_violation(name, target):
    """Why the file of the GPU side may not include `target`; None where it may."""
    floor = floor_of(name)
    if floor is None:
        return f"{name}: its room has no floor"
    if target.startswith("kernels/"):
        if target in SPECS or (floor_of(target) is not None and floor_of(target) <= floor):
            return None
        return f"{name}: stands before {target} and may not include it"
    if target.startswith((*GPU_MAY_INCLUDE, *SEES.get("/".join(name.split("/")[:2]), ()))):
        return None
    return f"{name}: the GPU side may not include {target}"


def violation(name, target):
    """Why the file may not include "target"; None where it may."""
    room, target_room = room_of(name), room_of(target)
    if target_room is None:
        return f'{name}: "{target}" is not a path from the project root into a room'
    if room == "kernels" and name not in SPECS:
        return gpu_violation(name, target)
    if name in SCHEDULER and not target.startswith(SCHEDULER_MAY_INCLUDE):
        return f"{name}: the scheduler runs on the GPU side too and may not include {target}"
    if target_room == "kernels" and target not in SPECS:
        return f"{name}: the simulator may not include the GPU side ({target})"
    if ROOMS.index(target_room) > ROOMS.index(room):
        return f"{name}: {room} stands above {target_room} and may not include {target}"
    return None


def violations(name, text):
    """What `name` includes that it must not."""
    found = []
    for bracket, target in INCLUDE.findall(text):
        if bracket == '"' and (why := violation(name, target)) is not None:
            found.append(why)
        for prefix, homes in THIRD_PARTY.items():
            if bracket == "<" and target.startswith(prefix) and not any(name.startswith(home) for home in homes):
                found.append(f"{name}: <{target}> belongs to {homes}")
    return found


def test_every_include_points_upwards():
    found = [line for name, text in sources() for line in violations(name, text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name, include", [
    ("sim/plan/plan.cpp", '#include "sim/cost/cost.h"'),
    ("sim/plan/plan.cpp", '#include "kernels/kernel_spec.h"'),
    ("sim/des/heap.cpp", "#include <simgrid/s4u.hpp>"),
    ("sim/serve/router.cpp", "#include <yaml-cpp/yaml.h>"),
    ("kernels/execute/execute.cu", '#include "sim/des/simulate.h"'),
    ("kernels/execute/executor.cpp", '#include "sim/model/model.h"'),
    ("kernels/execute/executor.cpp", '#include "kernels/serve/live.h"'),
    ("kernels/cuda/device.cpp", '#include "kernels/harness/grid.h"'),
    ("kernels/harness/check.cpp", '#include "kernels/dense/gemm/gemm.h"'),
    ("kernels/binding/bind_resources.h", '#include "kernels/dense/gemm/gemm.h"'),
    ("kernels/dense/gemm/bind.cpp", '#include "kernels/execute/executor.h"'),
    ("kernels/probes/trace.cu", '#include "kernels/execute/rank_step.h"'),
    ("kernels/nowhere/new.cpp", '#include "kernels/cuda/check.h"'),
    ("kernels/serve/live.cpp", '#include "sim/serve/capacity.h"'),
    ("kernels/serve/live.cpp", '#include "sim/des/simulate.h"'),
    ("sim/serve/replica.cpp", '#include "sim/des/simulate.h"'),
    ("sim/serve/replica.cpp", '#include "sim/serve/simulated_steps.h"'),
    ("kernels/calibrate/tables.cpp", '#include "sim/cost/cost.h"'),
    ("sim/model/lower.cpp", '#include "kernels/cuda/stream.h"'),
    ("sim/cost/roofline.cpp", '#include "kernels/dense/gemm/gemm.h"'),
    ("kernels/dense/gemm/gemm.cpp", '#include "kernels/dense/gemm/gemm.h"'),
    ("kernels/dense/gemm/gemm_sm90.cu", '#include "sim/cost/kernel_table.h"'),
    ("sim/model/lower.cpp", '#include "model.h"'),
])
def test_a_wrong_include_is_found(name, include):
    assert violations(name, include + "\n")


@pytest.mark.parametrize("header", sorted(
    path.relative_to(ROOT).as_posix() for folder in ("sim", "kernels", "bindings")
    for path in (ROOT / folder).rglob("*.h")))
def test_header_begins_with_pragma_once_and_says_what_it_is_for(header):
    lines = (ROOT / header).read_text(encoding="utf-8").splitlines()
    assert lines[0] == "#pragma once"
    comment = next(line for line in lines[1:] if line.strip())
    assert comment.startswith("//"), f"{header}: the first thing after #pragma once is a comment"


# What each kernel is says its spec; rooms of the simulator ask it. Blocks of models are lowered to kernels by name, which is
# their work, and an instruction of the megakernel stands for several; texts of the first form are of kernels of then. `moe` is
# a section of scenarios and engine profiles too, and a kind of layer in configs of nemotron_h.
MAY_NAME_KERNELS = ("sim/model/blocks/", "sim/model/lowering.cpp", "sim/megakernel/program.cpp", "sim/grammar/first_form.cpp")
YAML_SECTIONS = {"sim/scenario/": {"moe"}, "sim/model/layer_lists.cpp": {"moe"}}
KERNEL_NAMES = {kernel for _, kernel, _ in KERNELS}
QUOTED = re.compile(r'"((?:[^"\\\n]|\\.)*)"')


def quoted_kernels(name, text):
    """Names of kernels that `text` quotes in code, not in comments."""
    if not name.startswith("sim/") or name.startswith(MAY_NAME_KERNELS):
        return []
    allowed = {key for room, keys in YAML_SECTIONS.items() if name.startswith(room) for key in keys}
    code = "\n".join(line.split("//")[0] for line in text.splitlines() if not line.lstrip().startswith("#include"))
    return [f'{name}: quotes the kernel "{word}"; its spec (kernels/kernel_spec.h) is to be asked'
            for word in QUOTED.findall(code) if word in KERNEL_NAMES - allowed]


def test_the_simulator_names_no_kernel():
    found = [line for name, text in sources() for line in quoted_kernels(name, text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name, text, is_found", [
    ("sim/cost/roofline.cpp", 'if (kernel == "gemm") {', True),
    ("sim/scenario/experts.cpp", 'if (kernel == "quantize") {', True),
    ("sim/cost/clock.cpp", 'if (root.has("moe")) {', True),
    ("sim/scenario/experts.cpp", 'if (root.has("moe")) {', False),
    ("sim/model/blocks/gqa.cpp", 'add("rope");', False),
    ("sim/cost/clock.cpp", '// "gemm" is one', False),
])
def test_a_quoted_kernel_is_found(name, text, is_found):
    assert bool(quoted_kernels(name, text)) == is_found
