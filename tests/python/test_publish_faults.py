"""Imports and validations, stopped at every call that touches the file system: the old stays whole, or the new is there whole.

Each writer runs in forked children; in the k-th the k-th such call fails or is the last thing that the process does, and k
goes up until a child gets through. Python announces these calls to audit hooks, so that none can be forgotten here.
"""

import errno
import functools
import os
import pathlib
import shutil
import signal
import sys

import pytest

from orrery.importers import aiconfigurator
from orrery.validation import command, page, recalibrate, trace

CALLS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir", "os.listdir", "fcntl.flock"}
DONE, STOPPED, UNTOUCHED = 0, 1, 2
SOURCE = "kernel_source,gemm_dtype,m,n,k,latency\ncublas,bfloat16,{m},64,32,0.1\n"


def import_tables(folder):
    with aiconfigurator.staging(folder / "into", force=True) as staged:
        listing = aiconfigurator.find_tables(folder.parent / "source")
        aiconfigurator.import_provider(listing, staged, engine="vllm", version="1", device="gpu")


def old_tables(folder):
    source = folder.parent / "source"
    source.mkdir()
    (source / "gemm_vllm_1.csv").write_text(SOURCE.format(m=3))
    import_tables(folder)
    (folder / "into/devices/gpu/vllm-1/rope.csv").write_text("dtype,tokens,heads,head_dim,time_us\nbf16,1,2,64,1\n")
    (source / "gemm_vllm_1.csv").write_text(SOURCE.format(m=5))


class Made:
    """Stands in for a prediction and a case."""

    def __init__(self, directory):
        self.directory = directory

    def write(self, directory):
        (pathlib.Path(directory) / "predicted").mkdir()
        (pathlib.Path(directory) / "predicted" / "steps.csv").write_text("new" * 5000)


def predict_again(folder):
    recalibrate.calibrate.install = lambda *_, **__: folder  # in the child only, as all below
    recalibrate.simulation.load = lambda *_: None
    recalibrate.directory.read = lambda *_: None
    recalibrate._core.predict_validation = lambda _: Made(folder)
    recalibrate.predict_again(folder, folder, folder, 1)


def old_predictions(folder):
    for name in ("predicted", "recalibration_1"):
        (folder / name).mkdir()
    (folder / "predicted" / "steps.csv").write_text("old" * 7000)
    (folder / "predicted" / "a.spans.csv").write_text("old")


def write_results(folder):
    page.html = lambda *_: "new" * 5000
    trace.text = lambda *_: "new trace"
    recalibrate.calls_text = lambda *_: "new calls"
    command.write_results(Made(folder), {"new": 1})


def old_results(folder):
    for name in command.RESULTS:
        (folder / name).write_text(f"old {name}" * 1000)


WRITERS = {"import": (old_tables, import_tables), "predictions": (old_predictions, predict_again), "results": (old_results, write_results)}
APART = {"recalibration_1", *command.RESULTS}  # each whole by itself
FAULTS = {
    "no permission": lambda: (_ for _ in ()).throw(OSError(errno.EACCES, "no permission")),
    "no space": lambda: (_ for _ in ()).throw(OSError(errno.ENOSPC, "no space")),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


def in_child(action, prepare=list):
    if (pid := os.fork()) == 0:
        code = STOPPED
        try:
            fired = prepare()
            action()
            code = DONE if fired else UNTOUCHED
        except BaseException:
            pass
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def at_call(number, fault, folder):
    seen = 0
    fired = []

    def hook(event, arguments):
        nonlocal seen
        if event in CALLS and (not isinstance(arguments[0], str | os.PathLike) or str(folder) in str(arguments[0])):
            seen += 1
            if seen == number:
                fired.append(event)
                fault()

    sys.addaudithook(hook)
    return fired


def parts(folder):
    """What must be whole, by name: the directory, and what in it is whole by itself; not what was about to be written."""
    found = {}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_file() and "-partial" not in str(inside):
            found.setdefault(inside.parts[0] if inside.parts[0] in APART else "", {})[str(inside)] = path.read_bytes()
    return found


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("writer", WRITERS)
def test_whatever_stops_a_writer_what_was_there_or_what_is_new_is_whole(writer, fault, tmp_path):
    make, write = WRITERS[writer]
    place = tmp_path / "place" / "folder"
    place.mkdir(parents=True)
    make(place)
    done = tmp_path / "done"
    shutil.copytree(place.parent, done)
    assert in_child(functools.partial(write, done / "folder")) == UNTOUCHED
    old, new = parts(place), parts(done / "folder")
    assert old != new
    for number in range(1, 1000):
        folder = tmp_path / "tried" / "folder"
        shutil.copytree(place.parent, folder.parent)
        code = in_child(functools.partial(write, folder), functools.partial(at_call, number, FAULTS[fault], folder))
        found = parts(folder)
        for name in found | old:
            assert found.get(name, {}) in (old.get(name, {}), new.get(name, {})), (number, name)
        # Once more, without a fault: what a stopped writer left is in nobody's way.
        if code not in (DONE, UNTOUCHED):
            again = in_child(functools.partial(write, folder))
            assert writer == "predictions" or (again, parts(folder)) == (UNTOUCHED, new), number
        shutil.rmtree(folder.parent)
        if code == UNTOUCHED:
            return
    raise AssertionError("the writer never came to its end")
