"""Every writer of the package, stopped at every point: what was there stays whole, or what is new is, and nothing else is left.

Each writer runs in forked children. In the k-th of them the k-th call that touches the file system fails, is interrupted, or
is the last thing that the process does; k goes up until a child gets through. Python announces these calls to audit hooks,
so no list of them can be forgotten here. Bytes that do not fit are made by a limit on the size of files.
"""

from __future__ import annotations

import ast
import errno
import functools
import os
import pathlib
import resource
import shutil
import signal
import sys

import pytest
from validation_runs import ROOT

sys.path.insert(0, str(ROOT / "tests" / "browser"))
import synthetic_run  # noqa: E402

import orrery  # noqa: E402
from orrery import calibrate, files, report, run_files, simulation  # noqa: E402

PACKAGE = ROOT / "bindings" / "orrery"
CALLS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir", "os.listdir", "fcntl.flock", "ctypes.dlsym"}
KIND = files.Kind("thing", required=("a",), names=("a", "b", "sub/c"))
DONE, STOPPED, UNTOUCHED = 0, 1, 2  # exit codes of a child; UNTOUCHED: done before it came to its fault


def fail(number):
    raise OSError(number, os.strerror(number))


def interrupt():
    raise KeyboardInterrupt


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def in_child(action, prepare):
    """Exit code of a process that runs `action` after `prepare`; less than 0 when a signal ended it."""
    if (pid := os.fork()) == 0:
        code = STOPPED
        try:
            fired = prepare()
            action()
            code = UNTOUCHED if fired == [] else DONE
        except BaseException:
            pass
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def at_call(number, fault, *, always, folder):
    """Lets the call of `number` that touches `folder` end in `fault`; with `always` every later one of its kind as well.

    Returns a list to which the event is added when it comes to that.
    """
    seen = 0
    fired = []

    def hook(event, arguments):
        nonlocal seen
        if event not in CALLS or (isinstance(arguments[0], str | os.PathLike) and not is_below(arguments[0])):
            return
        seen += 1
        if seen == number:
            fired.append(event)
            fault()
        elif always and event in fired:
            fault()

    def is_below(path):  # relative ones are names in a directory that rmtree has open
        return not os.path.isabs(path) or str(path).startswith(str(folder))

    sys.addaudithook(hook)
    return fired


def tree(folder):
    """Content of every file below `folder`, by path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# Writers: (what is there before, what writes). Each writes below `folder`.


def write_a_file(folder):
    files.write_text(folder / "page.html", "new" * 5000)


def replace_a_file(folder):
    files.write_text(folder / "page.html", "new" * 5000)


def publish(folder, **options):
    with files.publishing(folder / "out", KIND, **options) as new:
        (new / "a").write_text("new" * 5000)
        (new / "sub").mkdir()
        (new / "sub" / "c").write_text("new")


def publish_by_force(folder):
    publish(folder, force=True)


def publish_without_exchange(folder):
    files._exchange = lambda a, b: False  # in the child only
    publish(folder, force=True)


def amend(folder):
    with files.amending(folder / "out", KIND) as new:
        files.write_text(new / "b", "new" * 5000)


@functools.cache
def result():
    small = ("workload={closed_loop: {concurrency: 2, num_requests: 3, prompt_tokens: 64, output_tokens: 4}}",)
    return orrery.simulate(orrery.load(ROOT / "scenarios" / "quickstart.yaml", overrides=small))


def write_a_run(folder):
    result().write(folder / "out", force=True, report=False)


def render_a_report(folder):
    report._html = lambda run: "new" * 5000  # in the child only
    report.render(folder / "out")


def install_tables(folder):
    calibrate.install(folder.parent / "measured", folder)


def install_collectives(folder):
    measured = folder.parent / "measured"
    calibrate.install_collectives(measured, (measured / "meta.yaml").read_text(), folder / "machine")


def nothing(folder):
    pass


def a_file(folder):
    (folder / "page.html").write_text("old" * 7000)


def a_directory(folder):
    (folder / "out" / "sub").mkdir(parents=True)
    for name in ("a", "b", "sub/c"):
        (folder / "out" / name).write_text(f"old {name}")


def a_run(folder):
    result().write(folder / "out", report=False)
    for path in (folder / "out").iterdir():
        path.write_bytes(path.read_bytes() + b"old")


def a_run_with_a_report(folder):
    synthetic_run.write(folder / "out", num_requests=20)
    (folder / "out" / "report.html").write_text("old")


def tables(folder):
    measured = folder.parent / "measured"
    measured.mkdir(exist_ok=True)
    (measured / "meta.yaml").write_text("device: gpu\ntables:\n  gemm:\n    measured_with:\n      driver: 2\n")
    (measured / "gemm.csv").write_text("dtype,m\nbf16,2\n")
    provider = folder / "devices" / "gpu" / "orrery"
    provider.mkdir(parents=True)
    (folder / "devices" / "gpu" / "device.yaml").write_text("name: gpu\n")
    (provider / "meta.yaml").write_text("device: gpu\ntables:\n  gemm:\n    driver: 1\n  rope:\n    driver: 1\n")
    for name in ("gemm", "rope"):
        (provider / f"{name}.csv").write_text("dtype,m\nbf16,1\n")
    (folder / "machine").mkdir()
    (folder / "machine" / "all_reduce.csv").write_text("ranks\n2\n")


WRITERS = {
    "a new file": (nothing, write_a_file),
    "a file over another": (a_file, replace_a_file),
    "a new directory": (nothing, publish),
    "a directory over another": (a_directory, publish_by_force),
    "a directory over another in two renames": (a_directory, publish_without_exchange),
    "a directory changed": (a_directory, amend),
    "a run over another": (a_run, write_a_run),
    "a report over another": (a_run_with_a_report, render_a_report),
    "tables of a device": (tables, install_tables),
    "tables of a machine": (tables, install_collectives),
}
FAULTS = {
    "no permission": (functools.partial(fail, errno.EACCES), False),
    "no space from then on": (functools.partial(fail, errno.ENOSPC), True),
    "interrupted": (interrupt, False),
    "killed": (kill, False),
}


@pytest.fixture(scope="module")
def old_and_new(tmp_path_factory):
    """Content of the folder before and after each writer, and the folder to copy from."""
    cases = {}
    for name, (make, write) in WRITERS.items():
        folder = tmp_path_factory.mktemp("place") / "folder"
        folder.mkdir()
        make(folder)
        done = tmp_path_factory.mktemp("done") / "folder"
        for sibling in folder.parent.iterdir():
            shutil.copytree(sibling, done.parent / sibling.name)
        assert in_child(functools.partial(write, done), lambda: None) == DONE
        cases[name] = (folder, tree(folder), tree(done))
        assert cases[name][1] != cases[name][2]
    return cases


def visible(folder):
    """Of a tree, what stands under names of its own; not what a stopped writer was about to write."""
    return {name: data for name, data in tree(folder).items() if "-partial" not in name}


def leftovers(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*-partial"))


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", WRITERS)
def test_a_writer_that_is_stopped_anywhere_leaves_old_or_new(old_and_new, tmp_path, name, fault):
    source, old, new = old_and_new[name]
    happens, always = FAULTS[fault]
    number = 0
    code = STOPPED
    while code != UNTOUCHED:
        number += 1
        assert number < 500
        place = tmp_path / str(number)
        shutil.copytree(source.parent, place)
        folder = place / "folder"
        write = functools.partial(WRITERS[name][1], folder)
        code = in_child(write, functools.partial(at_call, number, happens, always=always, folder=place))
        if name == "a directory over another in two renames" and not (folder / "out").exists():
            assert happens is kill or always, number  # the old one is kept for whoever comes next
            files.restore(folder / "out", KIND)
            assert visible(folder) == old
        seen = visible(folder)
        assert seen in (old, new), (number, sorted(seen))
        if code == STOPPED and seen == old and not always:
            assert leftovers(folder) == [], number
        if leftovers(folder):  # the next one clears them, even where it refuses to write a directory that is there
            expected = STOPPED if name == "a new directory" and seen == new else DONE
            assert in_child(write, lambda: None) == expected, number
            assert tree(folder) == new and leftovers(folder) == [], number
        shutil.rmtree(place)
    assert number > 3  # there was something to stop


@pytest.mark.parametrize("name", WRITERS)
def test_what_does_not_fit_leaves_the_old(old_and_new, tmp_path, name):
    source, old, new = old_and_new[name]
    largest = max(len(data) for path, data in new.items() if old.get(path) != data)
    for size in (0, 1, largest // 2, largest - 1):
        place = tmp_path / str(size)
        shutil.copytree(source.parent, place)
        limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, size))
        assert in_child(functools.partial(WRITERS[name][1], place / "folder"), limit) == STOPPED
        assert tree(place / "folder") == old and leftovers(place) == []


# Calls by which a module could write past files.py, with what they are for; importers and validation have tests of their own.
ELSEWHERE = {
    ("process.py", "open"): "/dev/null",
    ("compare/fit.py", "copy"): "profiles into a temporary directory",
    ("compare/fit.py", "write_text"): "a profile in a temporary directory",
    ("compare/replay.py", "write_text"): "a scenario in a temporary directory",
    ("search/command.py", "unlink"): "the outcomes of a search, once its answer is there",
    ("search/store.py", "mkdir"): "the directory of an SQLite file, which keeps itself whole",
    ("scorecard/profiles.py", "mkdir"): "a temporary directory for profiles",
    ("scorecard/profiles.py", "copy"): "profiles into a temporary directory",
    ("scorecard/outcomes.py", "write_text"): "a scenario in a temporary directory",
    ("scorecard/steady.py", "write_text"): "a scenario in a temporary directory",
    ("calibrate.py", "mkdir"): "a directory within the new tables, which take their place as a whole",
    ("profiling/command.py", "mkdir"): "a directory within the new recipe, which takes its place as a whole",
    ("profiling/load.py", "write_text"): "the client by itself, on hosts that have nothing but this file",
    ("traces.py", "write_bytes"): "an unpacked trace in a temporary directory",
}
WRITING = {"write_text", "write_bytes", "mkdir", "makedirs", "rename", "unlink", "rmtree", "rmdir", "copy", "copyfile", "copytree",
           "move", "touch", "symlink_to", "hardlink_to", "savefig", "to_csv", "to_parquet", "write_html"}  # fmt: skip
TESTED_APART = ("importers", "validation")


def writes(tree):
    """Names of the calls that write: attributes of WRITING, os.replace, and open for anything but reading."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        owner = getattr(getattr(node.func, "value", None), "id", "")
        modes = [word.value for word in node.args + [key.value for key in node.keywords if key.arg == "mode"]
                 if isinstance(word, ast.Constant) and isinstance(word.value, str)]  # fmt: skip
        if (name in WRITING and owner not in ("files", "dict")) or (owner == "os" and name in ("replace", "open", "link", "symlink")):
            yield name
        elif name in ("open", "fdopen") and any(set(mode) <= set("rwxab+t") and set(mode) & set("wxa+") for mode in modes):
            yield name


def test_nothing_writes_past_files_py():
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        inside = path.relative_to(PACKAGE)
        if inside.name != "files.py" and inside.parts[0] not in TESTED_APART:
            found |= {(str(inside), name) for name in writes(ast.parse(path.read_text(encoding="utf-8")))}
    assert found == set(ELSEWHERE)


def test_the_search_for_writers_finds_them():
    code = "p.write_text('')\nopen(p, 'w')\np.open(mode='ab')\nos.replace(a, b)\ns.replace('a', 'b')\nopen(p)\nopen(p, 'rb')\nfiles.write_text(p, '')"
    assert sorted(writes(ast.parse(code))) == ["open", "open", "replace", "write_text"]


def test_a_run_says_which_files_it_writes(tmp_path):
    folder = result().write(tmp_path / "out")
    assert {path.name for path in folder.iterdir()} == set(run_files.PLAIN)
    assert files.foreign(folder, run_files.RUN) == []
    assert simulation.project_root() == pathlib.Path(ROOT)
