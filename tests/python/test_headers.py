"""Every header compiles alone: what it uses, it includes."""

import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sysconfig

import pytest

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
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        broken = [f"{name}\n{errors}" for name, errors in pool.map(compile_alone, headers) if errors]
    assert not broken, "\n".join(broken)
