"""Runs command lines in forked children, each with a directory, an output file and limits of its own.

Children are forked from a server, a process that has imported the package and does nothing else: a case takes what it
computes and not the start of a Python, and a signal, an endless loop or a full memory ends the child alone. (Not from the
tests' own process: one that has run SimGrid cannot be forked.)
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import traceback

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


def run(arguments: list[str], directory: pathlib.Path, *, seconds: float, gigabytes: float = 6) -> Ended:
    """Runs the command line of `arguments` in a child whose working directory is `directory`.

    stdout and stderr go into one file beside `directory`. After `seconds` of computing, or four times as long by
    the clock, the child is ended.
    """
    server = _server()
    case = {"arguments": arguments, "directory": str(directory), "seconds": seconds * SLOWER, "gigabytes": gigabytes}
    server.stdin.write(json.dumps(case) + "\n")
    server.stdin.flush()
    answer = server.stdout.readline()
    if not answer:
        raise RuntimeError(f"the server of forked children ended with {server.wait()} on {arguments}")
    return Ended(**json.loads(answer))


@functools.cache
def _server() -> subprocess.Popen[str]:
    """Ends when its stdin is closed, at the latest with this process."""
    return subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _serve() -> None:
    """Answers each line of stdin, a case, with how it ended."""
    sys.path.insert(0, str(PACKAGE))
    os.environ["COLUMNS"] = "100"  # the width of argparse's messages
    # What any case may need, so that no child pays for it.
    import orrery.bench
    import orrery.calibrate
    import orrery.cli
    import orrery.importers.aiconfigurator.command
    import orrery.moe
    import orrery.report
    import orrery.scorecard.command
    import orrery.validation.command  # noqa: F401

    for line in sys.stdin:
        print(json.dumps(dataclasses.asdict(_forked(**json.loads(line)))), flush=True)


def _forked(*, arguments: list[str], directory: str, seconds: float, gigabytes: float) -> Ended:
    captured = pathlib.Path(f"{directory}.output")
    captured.write_bytes(b"")
    child = os.fork()
    if child == 0:
        _child(arguments, directory, captured, seconds, gigabytes)
    _, status, usage = os.wait4(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what the case itself had started
    ended_by = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else ""
    output = captured.read_text(encoding="utf-8", errors="replace")
    captured.unlink()
    return Ended(None if ended_by else os.WEXITSTATUS(status), ended_by, output, usage.ru_utime + usage.ru_stime,
                 usage.ru_maxrss * 1024)  # fmt: skip


def _child(arguments: list[str], directory: str, captured: pathlib.Path, seconds: float, gigabytes: float) -> None:
    """Never returns, whatever happens: there is one server."""
    code = 1
    try:
        os.setpgid(0, 0)
        # The default action of both timers' signals ends the process, in C++ code as well.
        for number in (signal.SIGALRM, signal.SIGPROF):
            signal.signal(number, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, 4 * seconds)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**31, 2**31))
        if not SANITIZED:
            resource.setrlimit(resource.RLIMIT_AS, (int(gigabytes * 2**30),) * 2)
        file, nothing = os.open(captured, os.O_WRONLY), os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (file, 1), (file, 2)):
            os.dup2(source, target)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)
        os.chdir(directory)
        from orrery import cli

        code = cli.main(arguments)
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


if __name__ == "__main__":
    _serve()
