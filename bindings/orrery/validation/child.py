"""Runs orrery-gpu as a child, which a Ctrl-C ends with it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence


def run_program(command: Sequence[str]) -> int:
    """Exit code of the program; 1 when a signal ended it.

    On Ctrl-C the program is told, has ten seconds to end (none after a second Ctrl-C), and KeyboardInterrupt goes on.
    """
    # A Ctrl-C while the program is being started waits until there is one to tell: it would be left alone otherwise.
    early: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: early.append(number))
    try:
        # In a group of its own, so that a terminal's Ctrl-C reaches it once: from here.
        with subprocess.Popen(command, stdout=sys.stderr, process_group=0) as child:
            try:
                signal.signal(signal.SIGINT, before)
                if early:
                    raise KeyboardInterrupt
                code = child.wait()
            except KeyboardInterrupt:
                child.send_signal(signal.SIGINT)
                try:
                    child.wait(timeout=10)
                except (subprocess.TimeoutExpired, KeyboardInterrupt):
                    child.kill()
                raise KeyboardInterrupt from None
    finally:
        signal.signal(signal.SIGINT, before)
    return code if code >= 0 else 1
