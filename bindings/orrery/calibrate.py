"""`orrery calibrate`: runs orrery-gpu on the GPU here and puts its tables under topologies/devices/<gpu>/orrery/."""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

from . import device_probes, files, hardware

PROVIDER = "orrery"
TABLES = files.Kind(
    "directory of tables", required=(), names=("*.csv", "*.yaml", "NOTICE", "held_out.txt", "links/*.csv", "links/*.yaml", "device/*.csv")
)
BUILDS = ("build-gpu", "build")
PROGRAM = pathlib.Path("kernels", "tool", "orrery-gpu")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the command, most of them those of `orrery-gpu calibrate`."""
    parser.add_argument("--kernels", metavar="A,B", help="only these kernels (all)")
    parser.add_argument("--quick", action="store_true", help="fewer points, in at most 90 s")
    parser.add_argument("--budget", type=int, metavar="SECONDS", help="time to spend (540, with --quick 75)")
    parser.add_argument("--check", action="store_true", help="measure shapes that the tables do not hold, print the errors")
    parser.add_argument("--device", type=int, default=0, metavar="N", help="GPU, counted from 0")
    parser.add_argument("--fresh", action="store_true", help="discard what was measured before")
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("calibration"), metavar="DIR",
                        help="where measurements are collected; started again it goes on (calibration)")  # fmt: skip
    parser.add_argument("--from", type=pathlib.Path, metavar="DIR", dest="measured",
                        help="measure nothing, take what 'orrery-gpu calibrate -o DIR' measured on another host")  # fmt: skip
    parser.add_argument("--machine", metavar="NAME",
                        help="also time collectives among all GPUs here, which must be one host of topologies/NAME.yaml")  # fmt: skip
    parser.add_argument("--into", type=pathlib.Path, metavar="DIR", help="where tables go (the project's topologies/)")


def run(options: argparse.Namespace, root: pathlib.Path) -> int:
    """Measures, then installs the tables; returns the exit code. Raises ValueError for what cannot be used."""
    topologies = options.into or root / "topologies"
    if not (topologies / "devices").is_dir():
        raise ValueError(f"found no directory '{topologies / 'devices'}'; expected one with the known devices")
    if options.machine and not (topologies / f"{options.machine}.yaml").is_file():
        known = ", ".join(sorted(path.stem for path in topologies.glob("*.yaml")))
        raise ValueError(f"--machine: found no topologies/{options.machine}.yaml; there are {known}")
    if options.measured:
        print(f"tables in {install(options.measured, topologies)}")
        return 0
    program = str(find_program(root))
    command = [program, "calibrate", "-o", str(options.output), "--device", str(options.device)]
    for name in ("kernels", "budget"):
        value = getattr(options, name)
        command += [f"--{name}", str(value)] if value is not None else []
    for name in ("quick", "check", "fresh"):
        command += [f"--{name}"] if getattr(options, name) else []
    code = subprocess.run(command, check=False).returncode
    if code != 0:
        return code if code > 0 else 1  # killed by a signal
    print(f"tables in {install(options.output, topologies)}")
    if not options.machine:
        return 0
    collectives = options.output / "collectives"
    code = subprocess.run([program, "time", "collectives", "-o", str(collectives)], stdout=sys.stderr, check=False).returncode
    if code != 0:
        return code if code > 0 else 1
    provenance = (options.output / "meta.yaml").read_text(encoding="utf-8")
    print(f"collectives in {install_collectives(collectives, provenance, topologies / options.machine)}")
    return 0


def built_program(root: pathlib.Path) -> pathlib.Path | None:
    """orrery-gpu where there is one: ORRERY_GPU, a build of the checkout at `root`, PATH."""
    if named := os.environ.get("ORRERY_GPU"):
        if not os.access(named, os.X_OK):
            raise ValueError(f"ORRERY_GPU names '{named}', which is no program")
        return pathlib.Path(named)
    for build in BUILDS:
        if os.access(program := root / build / PROGRAM, os.X_OK):
            return program
    found = shutil.which("orrery-gpu")
    return pathlib.Path(found) if found else None


def find_program(root: pathlib.Path) -> pathlib.Path:
    """orrery-gpu as it is found, or built now where nvcc and a GPU are."""
    if program := built_program(root):
        return program
    if not (root / "CMakePresets.json").is_file() or not _nvcc():
        raise ValueError("found no orrery-gpu: neither ORRERY_GPU nor PATH has it, and there is no nvcc to build it with; "
                         "install the CUDA toolkit (13.0 or later) beside a checkout of the project")  # fmt: skip
    if not hardware.nvidia_gpus():
        raise ValueError("found no NVIDIA GPU here, so that orrery-gpu, which runs on one, is not built; expected one of sm_90a (H100, H200),"
                         " or a program that ORRERY_GPU names")  # fmt: skip
    print("building orrery-gpu (once; a few minutes)", file=sys.stderr)
    for step in (["cmake", "--preset", "gpu"], ["cmake", "--build", "--preset", "gpu", "--target", "orrery-gpu"]):
        built = subprocess.run(step, cwd=root, capture_output=True, text=True, check=False)
        if built.returncode != 0:
            raise RuntimeError(f"{' '.join(step)} failed:\n{(built.stdout + built.stderr)[-3000:]}")
    return root / BUILDS[0] / PROGRAM


def _nvcc() -> bool:
    return bool(shutil.which("nvcc") or os.environ.get("CUDACXX"))


def install(measured: pathlib.Path, topologies: pathlib.Path, *, keep_rows: bool = False) -> pathlib.Path:
    """Copies tables and meta.yaml of a calibration to the device's directory; returns that.

    All of it or, when it is stopped, nothing. Tables of kernels that were not measured stay, with what meta.yaml says of them. With `keep_rows` so do the rows of
    points that were not measured, and meta.yaml says of a table how many rows are newer than it. Where the GPU's and its host's
    own costs were measured, device/ of them goes beside the tables and what follows from them to device_probes.NAME. Raises ValueError when
    nothing was measured or when topologies/ does not know the device.
    """
    meta = measured / "meta.yaml"
    if not meta.is_file():
        raise ValueError(f"found no tables in '{measured}'; expected what 'orrery calibrate' measured there")
    text = meta.read_text(encoding="utf-8")
    name = re.search(r"^device: (\S+)$", text, re.MULTILINE)
    if not name:
        raise ValueError(f"{meta}: found no line 'device: <name>'")
    device = topologies / "devices" / name[1]
    if not (device / "device.yaml").is_file():
        raise ValueError(f"{device}: found no device.yaml for this GPU; describe it as its neighbours do, then run again")
    target = device / PROVIDER
    with files.amending(target, TABLES) as new:
        meta = new / "meta.yaml"
        known = meta.read_text(encoding="utf-8") if meta.is_file() else ""
        for table in _csv_files(measured):
            rows = table.read_text(encoding="utf-8")
            if keep_rows and (new / table.name).is_file():
                num_new = len(rows.splitlines()) - 1
                rows = merged_rows((new / table.name).read_text(encoding="utf-8"), rows)
                text = remeasured(known, text, table.stem, len(rows.splitlines()) - 1, num_new)
            files.write_text(new / table.name, rows)
        files.write_text(meta, merged(known, text))
        if not keep_rows and (measured / "held_out.txt").is_file():
            files.write_text(new / "held_out.txt", (measured / "held_out.txt").read_text(encoding="utf-8"))
        probes = [measured / "device" / name for name in device_probes.FILES if (measured / "device" / name).is_file()]
        profile = device_probes.profile(measured / "device") if probes else ""
        if probes:
            (new / "device").mkdir(exist_ok=True)
        for probe in probes:
            files.write_text(new / "device" / probe.name, probe.read_text(encoding="utf-8"))
    if profile:
        files.write_text(device / device_probes.NAME, profile)
    return target


def install_collectives(measured: pathlib.Path, provenance: str, machine: pathlib.Path) -> pathlib.Path:
    """Copies <collective>.csv to the machine's directory as <collective>.orrery.csv; returns that directory.

    meta.orrery.yaml gets the device, driver and revision from `provenance`, the meta.yaml of the kernels measured
    before. Raises ValueError when nothing was measured.
    """
    tables = _csv_files(measured)
    found = re.search(r"^    measured_with:\n((?:      .*\n?)+)", provenance, re.MULTILINE)
    if not tables or not found:
        raise ValueError(f"found no collectives in '{measured}'; expected what 'orrery-gpu time collectives' measured there")
    measured_with = "".join(line[4:] + "\n" for line in found[1].splitlines())
    with files.amending(machine, TABLES) as new:
        for table in tables:
            files.write_text(new / f"{table.stem}.{PROVIDER}.csv", table.read_text(encoding="utf-8"))
        files.write_text(new / f"meta.{PROVIDER}.yaml",
                         f"machine: {machine.name}\nfiles: <collective>.{PROVIDER}.csv\nmeasured_by: orrery-gpu time collectives\n"
                         f'units: "bytes: the whole buffer as nccl-tests prints it, of send_recv the message; time_us: microseconds"\nmeasured_with:\n{measured_with}')  # fmt: skip
    return machine


def _csv_files(directory: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in directory.iterdir() if path.suffix == ".csv")  # glob passes over what it may not read


def merged(old: str, new: str) -> str:
    """meta.yaml `new` with the entries of those tables of `old` that it does not have."""
    head, tables = _tables(new)
    tables = _tables(old)[1] | tables
    return head + "".join(tables[name] for name in sorted(tables))


def merged_rows(old: str, new: str) -> str:
    """Table `old` with the rows of `new`: in the place of the same points, others at the end.

    Raises ValueError when the two have different columns.
    """
    header = old.partition("\n")[0]
    if new.partition("\n")[0] != header:
        raise ValueError(f"the new rows have columns {new.partition(chr(10))[0]}; the table has {header}")
    columns = header.split(",")
    point = [*range(columns.index("time_us")), *(columns.index(name) for name in ("l2", "mode") if name in columns)]

    def by_point(text: str) -> dict[tuple[str, ...], str]:
        return {tuple(row.split(",")[i] for i in point): row for row in text.splitlines()[1:] if row}

    return "\n".join([header, *(by_point(old) | by_point(new)).values()]) + "\n"


def remeasured(old: str, new: str, kernel: str, num_rows: int, num_new: int) -> str:
    """meta.yaml `new` with the entry that `old` has of a table, and with what its `num_new` newer rows were measured.

    What newer rows of `old` were measured with stays named: facts that differ stand one after the other, and rows of a
    point measured again twice count twice.
    """
    head, tables = _tables(new)
    before = _tables(old)[1].get(kernel)
    if before is None:
        return new
    facts = _facts(before, "remeasured_with")
    for name, value in _facts(tables[kernel], "measured_with").items():
        earlier = facts.get(name, "").strip('"')
        is_said = not earlier or value.strip('"') in earlier.split(", ")
        facts[name] = (facts[name] if earlier else value) if is_said else f'"{earlier}, {value.strip(chr(34))}"'
    counted = re.search(r"^    remeasured_rows: (\d+)$", before, re.MULTILINE)
    num_newer = min(num_new + (int(counted[1]) if counted else 0), num_rows)
    entry = re.sub(r"^    remeasured\w*:.*\n(?:      .*\n)*", "", before, flags=re.MULTILINE)
    entry = re.sub(r"^    rows: \d+$", f"    rows: {num_rows}", entry, flags=re.MULTILINE)
    tables[kernel] = f"{entry.rstrip()}\n    remeasured_rows: {num_newer}\n"
    if facts:
        tables[kernel] += "    remeasured_with:\n" + "".join(f"      {name}: {value}\n" for name, value in facts.items())
    return head + "".join(tables[name] for name in sorted(tables))


def _facts(entry: str, key: str) -> dict[str, str]:
    """The lines under `key` of a table's entry in meta.yaml, values as they are written."""
    found = re.search(rf"^    {key}:\n((?:      .*\n?)+)", entry, re.MULTILINE)
    return dict(line.strip().split(": ", 1) for line in found[1].splitlines()) if found else {}


def _tables(text: str) -> tuple[str, dict[str, str]]:
    """What stands before the entries under the key `tables`, which is the last one, and each entry by its name."""
    head, key, rest = text.partition("\ntables:\n")
    entries = re.split(r"^(?=  \w)", rest, flags=re.MULTILINE)
    return head + key, {entry.strip().partition(":")[0]: entry for entry in entries if entry.strip()}
