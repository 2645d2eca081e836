"""`orrery doctor`: what is here, and which commands can run with it."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
from typing import Any

from . import _core, calibrate, hardware
from .catalogue import SCHEMA_VERSION
from .scenarios import project_root
from .text_table import aligned

_EXTRAS = {  # package: what needs it
    "pyarrow": "run --format parquet, Parquet traces and tables (orrery[parquet])",
    "distributed": "explore --dask (orrery[dask])",
    "ipykernel": "notebooks (orrery[notebook])",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print what was found as JSON")


def run(options: argparse.Namespace) -> int:
    found = facts()
    if options.json:
        print(json.dumps({"schema_version": SCHEMA_VERSION, **found}, indent=2))
        return 0
    gpus = found["gpus"]
    rows = [
        ("Orrery", f"{found['version']} in {found['project']}"),
        ("documentation", found["docs"] or "not here"),
        ("Python", f"{found['python']}, {found['cores']} cores, {found['free_disk_bytes'] / 2**30:.0f} GiB of disk free here"),
        ("NVIDIA GPUs", f"{len(gpus)}: {', '.join(dict.fromkeys(gpus))}" if gpus else "none"),
        ("nvcc", found["nvcc"] or "none"),
        ("orrery-gpu", found["orrery_gpu"] or "not built"),
        *((name, "there" if is_there else f"not there: {_EXTRAS[name]}") for name, is_there in found["packages"].items()),
        ("", ""),
        *((command, "can run" if not why else f"cannot run: {why}") for command, why in found["commands"].items()),
    ]
    print(aligned((), rows))
    return 0


def facts() -> dict[str, Any]:
    """What is here; of each group of commands why it cannot run, "" where it can."""
    gpus = hardware.nvidia_gpus()
    nvcc = shutil.which(os.environ.get("CUDACXX") or "nvcc")
    program = calibrate.built_program(project_root())
    missing = "" if gpus else "no NVIDIA GPU here"
    if not missing and not program and not nvcc:
        missing = "no orrery-gpu, and no nvcc to build it with"
    return {
        "version": _core.__version__,
        "project": str(project_root()),
        "docs": str(docs) if (docs := project_root() / "docs").is_dir() else "",
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "free_disk_bytes": shutil.disk_usage(".").free,
        "gpus": gpus,
        "nvcc": nvcc,
        "orrery_gpu": None if program is None else str(program),
        "packages": {name: importlib.util.find_spec(name) is not None for name in _EXTRAS},
        "commands": {"run, explore, saturate, compare, emit, scorecard": "", "validate --plan-only": "", "validate, calibrate": missing},
    }


__all__ = ["add_options", "facts", "run"]
