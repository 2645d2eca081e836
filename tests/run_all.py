"""Runs the tests of this checkout and ends with one line "N passed, N failed".

Stages: C++ build with warnings as errors, CTest, pytest (Python, bad inputs, the fuzzer, notebooks, the
report in a browser), clang-format, and clang-tidy on C++ files that differ from the last commit. Of what is long and
random, and of headers compiled alone, a fixed share runs. `--all` runs the whole of it, has clang-tidy read every
file until its time is over, those changed last first, and runs the C++ tests, bad inputs and the fuzzer again under
address and undefined behaviour sanitizers, there with the fixed share. Stages that cannot run here say so.
`--stage NAME` runs one stage.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
JOBS = str(os.cpu_count() or 2)
CXX_ROOTS = ("sim", "kernels", "bindings", "tests")
TIDY_SECONDS = 300  # all files take longer on two cores
# As many workers as cores; one that has done its part takes over half of what another has left.
PYTEST = (sys.executable, "-m", "pytest", "-n", JOBS, "--dist", "worksteal")


class Tally:
    def __init__(self):
        self.passed = 0
        self.failed = 0
        self.skipped = 0
        self.notes = []
        self.failures = []  # named again at the end, where a long log is read

    def add(self, passed, failed, skipped=0):
        self.passed += passed
        self.failed += failed
        self.skipped += skipped


def call(command, **options):
    """Runs a command with its output on ours; returns whether it succeeded."""
    print("$ " + " ".join(map(str, command)), flush=True)
    return subprocess.run(command, cwd=ROOT, **options).returncode == 0


def reason_of(case):
    """What a failed case said: pytest in its message, GoogleTest (CTest keeps all it printed) in the lines that name
    the place."""
    reason = case.find("failure") if case.find("failure") is not None else case.find("error")
    said = (reason.get("message") or reason.text or "").strip().splitlines()[:1]
    printed = (case.findtext("system-out") or "").strip().splitlines()
    places = [at for at, line in enumerate(printed) if ": Failure" in line or "ERROR: " in line or "runtime error" in line]
    said = said or [line.strip() for line in (printed[places[0]:places[0] + 5] if places else printed[-3:])]
    return " | ".join(said)[:500] or "it gave no reason"


def add_junit(tally, path):
    """Counts the cases of a JUnit file; a missing file is one failure."""
    if not path.exists():
        print(f"no results in {path}")
        tally.add(0, 1)
        return
    root = ElementTree.parse(path).getroot()
    cases = list(root.iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    for case in skipped:
        reason = case.find("skipped").get("message") or ""
        tally.notes.append(f"skipped {case.get('classname')}.{case.get('name')}: {reason[:120]}")
    tally.failures += [f"failed {case.get('classname')}.{case.get('name')}: {reason_of(case)}" for case in failed]
    tally.add(len(cases) - len(failed) - len(skipped), len(failed), len(skipped))
    if not cases:
        print(f"no test ran in {path}")
        tally.add(0, 1)


def ctest(tally, build, environment=None):
    junit = build / "ctest.xml"
    junit.unlink(missing_ok=True)
    call(["ctest", "--test-dir", str(build), "-j", JOBS, "--output-on-failure", "--no-tests=error",
          "--progress", "--quiet", "--output-junit", str(junit)],
         env={**os.environ, **(environment or {})})
    add_junit(tally, junit)


def python_options():
    """Of CMake: where Python and pybind11 are."""
    pybind11 = subprocess.run([sys.executable, "-m", "pybind11", "--cmakedir"], capture_output=True, text=True, check=True).stdout.strip()
    return [f"-DPython_EXECUTABLE={sys.executable}", f"-Dpybind11_DIR={pybind11}"]


def stage_cpp(tally, _):
    if not call(["cmake", "--build", str(BUILD), "-j", JOBS]):
        tally.add(0, 1)
        return
    tally.add(1, 0)
    ctest(tally, BUILD)


def stage_python(tally, _):
    junit = BUILD / "pytest.xml"
    junit.unlink(missing_ok=True)
    call([*PYTEST, f"--junitxml={junit}"])
    add_junit(tally, junit)


def stage_sanitizers(tally, _):
    """The C++ tests, then the Python module under the table of bad inputs and the fuzzer."""
    build = ROOT / "build-asan"
    if not (call(["cmake", "--preset", "asan", "-DORRERY_PYTHON=ON", *python_options()], stdout=subprocess.DEVNULL)
            and call(["cmake", "--build", "--preset", "asan", "-j", JOBS])):
        tally.add(0, 1)
        return
    # SimGrid keeps its engine and signals for the life of the process; that is no leak of ours.
    environment = {"ORRERY_TEST_ALL": "0", "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    ctest(tally, build, environment)
    # The module lies beside links to the package's sources; Python itself has no sanitizers, so they are loaded first.
    package = build / "python" / "orrery"
    for source in (ROOT / "bindings" / "orrery").iterdir():
        if source.suffix != ".so" and not (package / source.name).exists():
            (package / source.name).symlink_to(source)
    libraries = [subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
                 for name in ("libasan.so", "libstdc++.so")]
    junit = build / "pytest.xml"
    junit.unlink(missing_ok=True)
    call([*PYTEST, "tests/python/test_bad_inputs.py", "tests/python/test_fuzz.py", f"--junitxml={junit}"],
         env={**os.environ, **environment, "LD_PRELOAD": " ".join(libraries), "ORRERY_PACKAGE": str(package.parent)})
    add_junit(tally, junit)


def cxx_files(suffixes):
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", *CXX_ROOTS], cwd=ROOT,
                            capture_output=True, text=True, check=True).stdout.split()
    return [name for name in listed if name.endswith(suffixes) and (ROOT / name).exists()]


def stage_format(tally, _):
    tool = shutil.which("clang-format-19")
    if not tool:
        tally.notes.append("skipped clang-format: clang-format-19 is not installed")
        tally.add(0, 0, 1)
        return
    ok = call([tool, "--dry-run", "-Werror", *cxx_files((".h", ".cpp", ".cuh", ".cu"))])
    tally.add(int(ok), int(not ok))


def changed_names(*git):
    return subprocess.run(["git", *git, "--", *CXX_ROOTS], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()


def sources_of(file):
    """The C++ files that a command of the build compiles: those that a unit of several includes, or the one."""
    if file.is_relative_to(ROOT / "build-tidy"):
        return [pathlib.Path(name) for name in re.findall(r'^#include "(.+)"$', file.read_text(encoding="utf-8"), re.MULTILINE)]
    return [file]


def tidy_units(build, everything):
    """What clang-tidy reads, each with its C++ files (but for tests, which are macros to it): those changed last first. Of several files that
    are compiled together it reads the common headers once, which take most of its time."""
    edited = [*changed_names("diff", "--name-only", "HEAD"), *changed_names("ls-files", "-o", "--exclude-standard")]
    changed = [*edited, *changed_names("log", "--format=", "--name-only")]
    order = {ROOT / name: place for place, name in reversed(list(enumerate(changed)))}
    here = {ROOT / name for name in cxx_files((".cpp",)) if not name.startswith("tests/") and (everything or name in edited)}
    units = {}
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        files = [file for file in sources_of(pathlib.Path(entry["file"])) if file in here]
        if files:
            units[entry["file"]] = files
    return sorted(units.items(), key=lambda unit: (min(order.get(file, len(changed)) for file in unit[1]), unit[0]))


def stage_tidy(tally, everything):
    tool = shutil.which("clang-tidy-19")
    if not tool:
        tally.notes.append("skipped clang-tidy: clang-tidy-19 is not installed")
        tally.add(0, 0, 1)
        return
    # Nothing is built there.
    build = ROOT / "build-tidy"
    if not call(["cmake", "-G", "Ninja", "-S", str(ROOT), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release", "-DORRERY_PYTHON=ON",
                 "-DORRERY_UNITY=ON", *python_options()], stdout=subprocess.DEVNULL):  # fmt: skip
        tally.add(0, 1)
        return
    units, deadline = tidy_units(build, everything), time.monotonic() + TIDY_SECONDS
    if not units:
        print("no C++ file differs from the last commit")
        return

    def read(unit):
        if time.monotonic() > deadline:
            return None
        command = [tool, "-quiet", "-p", str(build), "-checks=-bugprone-suspicious-include", "-extra-arg=-Wno-unknown-warning-option", unit[0]]
        return unit, subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    with concurrent.futures.ThreadPoolExecutor(int(JOBS)) as pool:
        runs = [run for run in pool.map(read, units) if run]
    findings = {line for _, run in runs if run.returncode for line in (run.stdout + run.stderr).splitlines()
                if ": error:" in line or ": warning:" in line or not run.stdout}
    print("\n".join(sorted(findings)))
    num_read, num_files = (sum(len(files) for _, files in of) for of in ([unit for unit, _ in runs], units))
    if len(runs) < len(units):
        tally.notes.append(f"clang-tidy: {num_read} of {num_files} files in {TIDY_SECONDS} s, those changed last; the others were not read")
    ok = bool(runs) and not any(run.returncode for _, run in runs)
    tally.add(int(ok), int(not ok))


STAGES = {"cpp": stage_cpp, "python": stage_python, "format": stage_format,
          "tidy": stage_tidy, "sanitizers": stage_sanitizers}
ONLY_ALL = ("sanitizers",)


def cpu_seconds():
    """Of all processes that have ended under this one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main():
    parser = argparse.ArgumentParser(prog="orrery test", description=__doc__.split("\n\n")[0])
    parser.add_argument("--all", action="store_true", help="add sanitizers, clang-tidy on every file, and the whole of what is long and random")
    parser.add_argument("--stage", choices=STAGES, action="append", help="run only this stage")
    arguments = parser.parse_args()
    names = arguments.stage or [name for name in STAGES if arguments.all or name not in ONLY_ALL]
    if arguments.all:
        os.environ["ORRERY_TEST_ALL"] = "1"  # read in tests/python/share.py

    tally = Tally()
    for name in names:
        begin, used, before = time.monotonic(), cpu_seconds(), tally.failed
        print(f"\n== {name}", flush=True)
        STAGES[name](tally, arguments.all)
        result = "ok" if tally.failed == before else "FAILED"
        print(f"== {name}: {result} in {time.monotonic() - begin:.0f} s ({cpu_seconds() - used:.0f} s of CPU)", flush=True)
    for line in tally.notes + tally.failures:
        print(line)
    if not shutil.which("nvidia-smi"):
        print("no GPU here: tests labelled gpu were not run")
    print(f"{tally.passed} passed, {tally.failed} failed" + (f", {tally.skipped} skipped" if tally.skipped else ""))
    return 1 if tally.failed or not tally.passed else 0


if __name__ == "__main__":
    sys.exit(main())
