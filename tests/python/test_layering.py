"""Each room includes only itself and the rooms above it; third-party code stays in its room."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Order of the rooms: one may include itself and what stands before it.
ROOMS = ["sim/units", "sim/plan", "kernels", "sim/timeline", "sim/machine", "sim/cost", "sim/des", "sim/model",
         "sim/parallel", "sim/serve", "sim/scenario", "bindings"]
# What kernels are, which the simulator sees; all else in kernels/ is the GPU side, which sees specs, plans, timelines and
# units only.
KERNELS_CMAKE = (ROOT / "kernels/CMakeLists.txt").read_text(encoding="utf-8")
KERNELS = re.findall(r"orrery_add_kernel\((\w+)/(\w+)", KERNELS_CMAKE)
# What a spec needs besides its own file: sources listed under SPEC, and what these choose among.
SPEC_SOURCES = [f"kernels/{directory}/{source.removesuffix('.cpp')}"
                for directory, sources in re.findall(r"orrery_add_kernel\(([\w/]+) SPEC ([^A-Z)]*)", KERNELS_CMAKE)
                for source in sources.split()]
SPECS = {"kernels/executable.cpp", "kernels/executable.h", "kernels/kernel_spec.h", "kernels/cuda/row_shape.h", "kernels/kernel_specs.cpp", "kernels/slots.cpp", "kernels/slots.h", "kernels/priced/mla_module.h", "kernels/verify.cpp", "kernels/work.h",
         "kernels/experts/grouped_gemm/tiled_choice.h", *(f"{source}{ending}" for source in SPEC_SOURCES for ending in (".h", ".cpp")),
         *(f"kernels/{family}/{kernel}/{kernel}.cpp" for family, kernel in KERNELS),
         *(path.relative_to(ROOT).as_posix() for path in (ROOT / "kernels/priced").glob("*.cpp"))}
GPU_MAY_INCLUDE = ("sim/units", "sim/plan", "sim/timeline", "kernels")
# Those that serve on GPUs make plans themselves and run the simulator's scheduler, which for that knows no simulator.
SCHEDULER_SOURCES = " ".join(re.findall(r"add_library\(orrery_(?:scheduler|deployment) STATIC\s+([^)]*)\)",
                                        (ROOT / "sim/serve/CMakeLists.txt").read_text(encoding="utf-8"))).split()
SCHEDULER = {"sim/serve/step_backend.h", "sim/serve/token_stream.h",
             *(f"sim/serve/{source}" for source in SCHEDULER_SOURCES),
             *(f"sim/serve/{source.removesuffix('.cpp')}.h" for source in SCHEDULER_SOURCES)}
SERVE_MAY_INCLUDE = ("sim/model", "sim/parallel", *sorted(name for name in SCHEDULER if name.endswith(".h")))
SCHEDULER_MAY_INCLUDE = ("sim/units", "sim/plan", "sim/timeline", *SERVE_MAY_INCLUDE)
# Calibration judges its tables by the simulator's own interpolation, and needs what a device is for it.
CALIBRATE_MAY_INCLUDE = ("sim/cost/interpolate.h", "sim/cost/kernel_table.h", "sim/cost/roofline.h", "sim/machine/machine.h")

# Third-party header prefix -> the only places that may include it.
THIRD_PARTY = {
    "simgrid/": ["sim/des/network_simgrid.cpp"],
    "yaml-cpp/": ["sim/scenario/"],
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


def violations(name, text):
    """What `name` includes that it must not."""
    found = []
    room = room_of(name)
    on_gpu = room == "kernels" and name not in SPECS
    for bracket, target in INCLUDE.findall(text):
        if bracket == '"':
            target_room = room_of(target)
            if target_room is None:
                found.append(f'{name}: "{target}" is not a path from the project root into a room')
            elif name.startswith("kernels/calibrate") and target in CALIBRATE_MAY_INCLUDE:
                continue
            elif name.startswith(("kernels/serve/", "kernels/tool/")) and target.startswith(SERVE_MAY_INCLUDE):
                continue
            elif name.startswith("kernels/tool/") and target.startswith("kernels/"):
                continue
            elif on_gpu and target.startswith("kernels/serve/") and not name.startswith("kernels/serve/"):
                found.append(f"{name}: only kernels/tool stands below kernels/serve ({target})")
            elif name in SCHEDULER and not target.startswith(SCHEDULER_MAY_INCLUDE):
                found.append(f"{name}: the scheduler runs on the GPU side too and may not include {target}")
            elif on_gpu and not target.startswith(GPU_MAY_INCLUDE):
                found.append(f"{name}: the GPU side may not include {target}")
            elif not on_gpu and target_room == "kernels" and target not in SPECS:
                found.append(f"{name}: the simulator may not include the GPU side ({target})")
            elif not on_gpu and ROOMS.index(target_room) > ROOMS.index(room):
                found.append(f"{name}: {room} stands above {target_room} and may not include {target}")
        for prefix, homes in THIRD_PARTY.items():
            if bracket == "<" and target.startswith(prefix) and not any(name.startswith(home) for home in homes):
                found.append(f"{name}: <{target}> belongs to {homes}")
    return found


def test_every_include_points_upwards():
    found = [line for name, text in sources() for line in violations(name, text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name, include", [
    ("sim/plan/plan.cpp", '#include "sim/cost/cost.h"'),
    ("sim/des/heap.cpp", "#include <simgrid/s4u.hpp>"),
    ("sim/serve/router.cpp", "#include <yaml-cpp/yaml.h>"),
    ("kernels/execute/execute.cu", '#include "sim/des/simulate.h"'),
    ("kernels/execute/executor.cpp", '#include "sim/model/model.h"'),
    ("kernels/execute/executor.cpp", '#include "kernels/serve/live.h"'),
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
# their work. `moe` is a section of scenarios and engine profiles too. buffers.cpp stands before the specs.
MAY_NAME_KERNELS = ("sim/model/blocks/", "sim/model/lowering.cpp", "sim/plan/buffers.cpp")
YAML_SECTIONS = {"sim/scenario/": {"moe"}}
KERNEL_NAMES = {kernel for _, kernel in KERNELS} | {path.stem for path in (ROOT / "kernels/priced").glob("*.cpp")}
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
