"""The files of a run directory, and whether they are those that one run wrote there.

A run directory is copied, mended and sent around; a report of one run's requests over another's steps, or of a table that
a copy cut short, would look like any other. So a run writes SHA256SUMS, which `sha256sum -c` reads as well.
"""

from __future__ import annotations

import hashlib
import pathlib
import re

from . import files

NAMES = ("scenario.yaml", "summary.json", "requests.csv", "steps.csv", "step.trace.json")
SUMS = "SHA256SUMS"
PARQUET = ("requests.parquet", "steps.parquet")
PLAIN = (*NAMES, SUMS, "report.html")  # without PARQUET, which is written when asked for
RUN = files.Kind("run directory", required=NAMES, names=(*PLAIN, *PARQUET))
_LINE = re.compile(r"([0-9a-f]{64})  ([^/\0]+)")


def seal(directory: pathlib.Path) -> None:
    """Writes SHA256SUMS of the files that are in `directory`."""
    names = sorted(path.name for path in directory.iterdir())
    files.write_text(directory / SUMS, "".join(f"{_digest(directory / name)}  {name}\n" for name in names))


def is_sealed(directory: pathlib.Path) -> bool:
    """False of a run of a version that wrote no SHA256SUMS."""
    return (directory / SUMS).is_file()


def check(directory: pathlib.Path) -> None:
    """Raises ValueError naming the first file of a sealed directory that is missing or not as the run wrote it."""
    path = directory / SUMS
    sums = {}
    for line, text in enumerate(path.read_bytes().decode("utf-8", "replace").splitlines(), start=1):
        if not (found := _LINE.fullmatch(text)):
            raise ValueError(f"{path}:{line}: found {text[:80]!r}, expected a SHA-256 digest, two spaces and a file's name")
        sums[found[2]] = found[1]
    if missing := [name for name in NAMES if name not in sums]:
        raise ValueError(f"{path}: found no line for {', '.join(missing)}; it was cut or is of another directory")
    for name, expected in sums.items():
        if not (directory / name).is_file():
            raise ValueError(f"{directory}: no file {name}, which the run wrote")
        if (found := _digest(directory / name)) != expected:
            raise ValueError(
                f"{directory / name}: not as this run wrote it: cut, changed, or of another run "
                f"(SHA-256 {found[:12]}…, {SUMS} says {expected[:12]}…)"
            )


def _digest(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


__all__ = ["NAMES", "PARQUET", "PLAIN", "RUN", "SUMS", "check", "is_sealed", "seal"]
