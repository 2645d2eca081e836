"""Runs something in a forked child with a directory, an output file and limits of its own.

The parent has imported the package once, so a case takes what it computes and not the start of a Python; a signal, an
endless loop or a full memory ends the child alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import os
import pathlib
import resource
import signal
import sys
import traceback
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parents[2]
# A directory with the package `orrery`, such as that of a sanitizer build; bindings/ of the checkout without it.
PACKAGE = pathlib.Path(os.environ.get("ORRERY_PACKAGE", ROOT / "bindings"))
# Sanitizers reserve terabytes of addresses and slow everything down.
SANITIZED = "asan" in os.environ.get("LD_PRELOAD", "")
SLOWER = 8 if SANITIZED else 1


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a child ended: `exit` is None where a signal ended it."""

    exit: int | None
    signal: str
    output: str
    cpu_s: float
    memory_bytes: int

    @property
    def complaint(self) -> str:
        """What no case may do, in words; empty when it did none of that."""
        if self.signal in ("SIGPROF", "SIGALRM"):
            return f"it did not end in time ({self.cpu_s:.0f} s of computing)"
        if self.signal:
            return f"it died of {self.signal}"
        for words in ("Traceback (most recent call last)", "runtime error:", "AddressSanitizer"):
            if words in self.output:
                return f"its output has '{words}'"
        return ""


def run(case: Callable[[], int], directory: pathlib.Path, *, seconds: float, gigabytes: float = 6) -> Ended:
    """Calls `case` in a child whose working directory is `directory`; its result is the exit code.

    stdout and stderr go into one file beside `directory`. After `seconds` of computing, or four times as long by
    the clock, the child is ended.
    """
    captured = directory.parent / f"{directory.name}.output"
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _child(case, directory, captured, seconds * SLOWER, gigabytes)
    _, status, usage = os.wait4(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what the case itself had started
    ended_by = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else ""
    output = captured.read_text(encoding="utf-8", errors="replace")
    captured.unlink()
    return Ended(None if ended_by else os.WEXITSTATUS(status), ended_by, output, usage.ru_utime + usage.ru_stime,
                 usage.ru_maxrss * 1024)  # fmt: skip


def _child(case: Callable[[], int], directory: pathlib.Path, captured: pathlib.Path, seconds: float, gigabytes: float) -> None:
    """Never returns, whatever happens: the parent's tests must not run twice."""
    code = 1
    try:
        faulthandler.disable()  # pytest's would print the stack of the tests
        os.setpgid(0, 0)
        # The default action of both timers' signals ends the process, in C++ code as well.
        for number in (signal.SIGALRM, signal.SIGPROF):
            signal.signal(number, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, 4 * seconds)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if not SANITIZED:
            resource.setrlimit(resource.RLIMIT_AS, (int(gigabytes * 2**30),) * 2)
        file = os.open(captured, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (file, 1), (file, 2)):
            os.dup2(source, target)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
        os.chdir(directory)
        code = case()
    except SystemExit as end:  # argparse
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # as the interpreter does for what nobody caught
        traceback.print_exc()
        code = 1
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def command_line(arguments: list[str]) -> Callable[[], int]:
    """The command line of `arguments` as a case."""

    def case() -> int:
        from orrery import cli

        return cli.main(arguments)

    return case


def import_package() -> None:
    """Imports what any case may need before the first fork, so that no child pays for it."""
    if str(PACKAGE) not in sys.path:
        sys.path.insert(0, str(PACKAGE))
    os.environ["COLUMNS"] = "100"  # the width of argparse's messages
    import orrery.bench
    import orrery.calibrate
    import orrery.cli
    import orrery.importers.aiconfigurator.command
    import orrery.moe
    import orrery.report
    import orrery.scorecard.command
    import orrery.validation.command  # noqa: F401
