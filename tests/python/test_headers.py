"""Every header compiles alone: what it uses, it includes.

A run of everything compiles those that the last 60 commits or the working tree changed and a third of the others, which break only by what they
include; a run of less those that differ from the last commit and a share of the others.
"""

import collections
import concurrent.futures
import functools
import os
import pathlib
import re
import shutil
import subprocess
import sysconfig

import pytest
from share import ALL

ROOT = pathlib.Path(__file__).resolve().parents[2]


def include_directories():
    import pybind11
    yield str(ROOT)
    yield pybind11.get_include()
    yield sysconfig.get_paths()["include"]
    yield "/usr/include/eigen3"
    nvcc = shutil.which("nvcc")
    if nvcc:
        yield str(pathlib.Path(nvcc).resolve().parents[1] / "include")


_RECENT = (["log", "-60", "--format=", "--name-only"],)


@functools.cache
def changed():
    """Files that differ from the last commit, or that the last ones changed; none where git does not know."""
    listed = [subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=False).stdout.splitlines()
              for command in (["diff", "--name-only", "HEAD"], ["ls-files", "-o", "--exclude-standard"], *(_RECENT if ALL else ()))]
    return {ROOT / name for names in listed for name in names}


def compile_alone(header):
    flags = [part for directory in include_directories() for part in ("-isystem", directory)]
    result = subprocess.run(["g++", "-std=c++20", "-fsyntax-only", "-x", "c++", *flags, "-include", str(header), "/dev/null"],
                            capture_output=True, text=True, check=False)
    return header.relative_to(ROOT).as_posix(), result.stderr if result.returncode else ""


@pytest.mark.slow
def test_every_header_compiles_alone():
    if not shutil.which("g++"):
        pytest.skip("g++ is not installed")
    headers = [path for folder in ("sim", "kernels", "bindings") for path in sorted((ROOT / folder).rglob("*.h"))
               if shutil.which("nvcc") or folder != "kernels"]
    assert headers
    headers = [*(path for path in headers if path in changed()), *[path for path in headers if path not in changed()][:: 3 if ALL else 12]]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        broken = [f"{name}\n{errors}" for name, errors in pool.map(compile_alone, headers) if errors]
    assert not broken, "\n".join(broken)


def test_a_type_has_one_definition():
    """Two of one name in one namespace link, and a destructor of either then ends both."""
    definition = re.compile(r"^(?:template <[^>]*>\n)?(?:class|struct|enum class) (\w+)(?: final)?(?: : [^;{]*)?\s*\{", re.M)
    files = collections.defaultdict(set)
    for folder in ("sim", "kernels", "bindings"):
        for path in (path for end in ("*.h", "*.cuh") for path in (ROOT / folder).rglob(end)):
            text = path.read_text(encoding="utf-8")
            for found in definition.finditer(text):
                namespace = re.findall(r"^namespace ([\w:]+) \{", text[: found.start()], re.M)[-1:]
                files[(*namespace, found[1])].add(path.relative_to(ROOT).as_posix())
    assert {("orrery", "ScheduledStep"), ("orrery", "RankStep")} <= files.keys()
    assert not {"::".join(name): sorted(where) for name, where in files.items() if len(where) > 1}
