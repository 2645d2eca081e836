"""Compares what is frozen, or writes it anew: `python tests/frozen [--write] [KIND...]` (README.md)."""

import argparse
import os
import pathlib
import subprocess
import sys

os.environ["ORRERY_TEST_ALL"] = "1"  # before frozen is imported, which reads it
sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parents[2] / "bindings")]

import frozen


def build() -> None:
    """Programs and module as the sources are now, where they were built before."""
    directory = frozen.ROOT / "build"
    if (directory / "CMakeCache.txt").exists():
        subprocess.run(["cmake", "--build", str(directory), "--target", "frozen"], check=True, stdout=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/frozen", description=__doc__)
    names = [kind.name for kind in frozen.KINDS]
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(names)}; all of them without any")
    parser.add_argument("--write", action="store_true", help="write the digests into the tree")
    options = parser.parse_args()
    if unknown := set(options.kinds) - set(names):
        parser.error(f"found {', '.join(sorted(unknown))}; expected {', '.join(names)}")
    build()
    num_moved = 0
    for kind in frozen.KINDS:
        if options.kinds and kind.name not in options.kinds:
            continue
        try:
            found = kind.make()
        except frozen.NotBuilt as error:
            print(f"{kind.name}: left out, {error}")
            continue
        lines = frozen.moved(frozen.read(kind.path) if kind.path.exists() else {}, found)
        print("\n".join([f"{kind.name}: {len(found)} digests, {sum(line[0] == '+' for line in lines)} new or moved", *lines]))
        num_moved += len(lines)
        if options.write:
            frozen.write(kind.path, found)
    return 1 if num_moved and not options.write else 0


if __name__ == "__main__":
    sys.exit(main())
