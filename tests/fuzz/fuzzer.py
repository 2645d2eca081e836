"""Random damage to whatever a run reads, for some seconds: `python tests/fuzz --seconds 600 --seed 7`.

Each case runs in a child of its own with 25 s and 6 GB. It ends with exit code 0 and a run directory whose figures are
consistent (invariants.py), or it is refused with a message; anything else is a failure, and is written to a
file that `--repeat FILE` runs again. Same seed, same cases.
"""

import argparse
import collections
import pathlib
import tempfile
import time

import cases
import forked


def fuzz(*, seconds: float, seed: int, failures: pathlib.Path, first: int = 0) -> tuple[collections.Counter, list[str]]:
    """Runs cases until the time is over; how many ended how, by kind, and the failures in words."""
    counts: collections.Counter = collections.Counter()
    found = []
    deadline = time.monotonic() + seconds
    number = first
    while time.monotonic() < deadline:
        case = cases.draw(seed, number)
        with tempfile.TemporaryDirectory(prefix="orrery-fuzz-") as scratch:
            directory = pathlib.Path(scratch) / "case"
            directory.mkdir()
            ended, wrong = cases.run(case, directory)
        counts[case.kind, "failed" if wrong else f"exit {ended.exit}"] += 1
        if wrong:
            found.append(f"{case.kind}, number {number}: {'; '.join(wrong[:3])}; repeat with --repeat {case.write(failures)}")
        number += 1
    return counts, found


def table(counts: collections.Counter) -> str:
    columns = ("exit 0", "exit 2", "failed")
    lines = [f"{'':16}" + "".join(f"{column:>8}" for column in columns)]
    for kind in (*cases.KINDS, "all"):
        chosen = [sum(count for (of, end), count in counts.items() if end == column and kind in (of, "all")) for column in columns]
        lines.append(f"{kind:16}" + "".join(f"{count:>8,}" for count in chosen))
    return "\n".join(lines)


def repeat(file: pathlib.Path) -> int:
    case = cases.Case.read(file)
    with tempfile.TemporaryDirectory(prefix="orrery-fuzz-") as scratch:
        directory = pathlib.Path(scratch) / "case"
        directory.mkdir()
        ended, wrong = cases.run(case, directory)
    print(ended.output, end="")
    print(f"exit {ended.exit} {ended.signal} after {ended.cpu_s:.1f} s with {ended.memory_bytes / 1e9:.2f} GB")
    print("\n".join(wrong) or "nothing is wrong with it")
    return int(bool(wrong))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/fuzz", description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, metavar="N", help="number of the first case (0)")
    parser.add_argument("--failures", type=pathlib.Path, default=forked.ROOT / "build" / "fuzz", metavar="DIR", help="where failures go")
    parser.add_argument("--repeat", type=pathlib.Path, metavar="FILE", help="run one failure again")
    options = parser.parse_args()
    if options.repeat:
        return repeat(options.repeat)
    counts, found = fuzz(seconds=options.seconds, seed=options.seed, failures=options.failures, first=options.first)
    print(f"seed {options.seed}, {options.seconds:.0f} s\n{table(counts)}")
    print("\n".join(found))
    return int(bool(found) or not counts)

