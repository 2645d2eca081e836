"""The program behind `./orrery` and `python -m orrery`."""

import os
import signal
import sys


def _quit(*_: object) -> None:
    # Modules are still loading and nothing is written: there is nothing to undo, and nobody to show a traceback to.
    os.write(2, b"\norrery: interrupted\n")
    os._exit(1)


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _quit)
    from orrery.cli import main

    sys.exit(main())
