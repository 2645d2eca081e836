"""What a command's process does at its edges: signals, streams, errors, exit codes."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

from .text_table import printable


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP: everything ends as it does on Ctrl-C."""


def exit_code(command: Callable[[], int]) -> int:
    """What `command` returns; 2 after bad input and 1 after any other failure, said in one line on stderr."""
    _replace_closed_streams()
    with _signals_raise():
        try:
            code = command()
            _flush()
            return code
        except KeyboardInterrupt as stop:
            print(f"\norrery: {'terminated' if isinstance(stop, Terminated) else 'interrupted'}", file=sys.stderr)
            return 1
        except BrokenPipeError:
            _drop_output()
            return 1
        except (ValueError, FileExistsError) as error:  # ScenarioError is a ValueError
            print(f"error: {printable(str(error))}", file=sys.stderr)
            return 2
        except (OSError, RuntimeError, MemoryError, ImportError) as error:  # ImportError: a package that a report needs
            print(f"error: {printable(str(error) or type(error).__name__)}", file=sys.stderr)
            return 1


def _flush() -> None:
    """Finds a full disk while it can still be said, not when Python ends."""
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()
        raise


def _drop_output() -> None:
    """What is left to print goes nowhere: Python would complain about it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _replace_closed_streams() -> None:
    """Output that nobody wants (`>&-`) goes nowhere, instead of into the first file that is opened."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # until the process ends


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP are exceptions, so that whatever is being written is undone; one that is ignored stays so."""

    def stop(number: int, _: object) -> None:
        raise KeyboardInterrupt if number == signal.SIGINT else Terminated

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {}
    if threading.current_thread() is threading.main_thread():  # only there may they be set
        before = {number: signal.getsignal(number) for number in numbers}
        before = {number: handler for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}
    try:
        for number in before:
            signal.signal(number, stop)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


__all__ = ["Terminated", "exit_code"]
