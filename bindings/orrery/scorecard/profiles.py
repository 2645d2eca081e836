"""Engine profiles as files: which numbers of theirs are fitted, read and set where they stand.

A fitted profile states every parameter itself, one to a line, with a source that begins with FITTED; a profile that
extends one of these and states none runs with its numbers (sglang_mixed with those of sglang).
"""

from __future__ import annotations

import pathlib
import re
import shutil
from collections.abc import Mapping

from .. import files
from .parameters import PARAMETERS, Values

FITTED = "fitted"


def owner(directory: pathlib.Path, profile: str) -> str | None:
    """The profile whose fitted numbers `profile` runs with: itself or the nearest that it extends; None without any."""
    text = _read(directory, profile)
    if FITTED in (_line(text, PARAMETERS[0].path) or ""):
        return profile
    base = re.search(r"^extends: (\S+)", text, re.MULTILINE)
    return owner(directory, base[1]) if base else None


def fitted(directory: pathlib.Path) -> list[str]:
    """Names of the profiles that state fitted numbers."""
    names = sorted(path.stem for path in directory.glob("*.yaml"))
    return [name for name in names if owner(directory, name) == name]


def values(directory: pathlib.Path, profile: str) -> dict[str, float]:
    """Every parameter of a fitted profile. Throws ValueError for one that it does not state."""
    text, found = _read(directory, profile), {}
    for parameter in PARAMETERS:
        line = _line(text, parameter.path)
        cell = re.search(r"\{value: ([^,}]+)", line or "")
        if not cell:
            raise ValueError(f"{directory / profile}.yaml: found no '{{value: ...}}' of {parameter.path}, expected one of every parameter")
        found[parameter.path] = parameter.number(cell[1].strip())
    return found


def set_values(directory: pathlib.Path, profile: str, numbers: Values) -> None:
    """Writes the numbers, each with its source, over those in the profile's file, and nothing else of it."""
    text = _read(directory, profile)
    for parameter in PARAMETERS:
        section, _, key = parameter.path.partition(".")
        line, body = _line(text, parameter.path), _section(text, section)
        if line is None or body is None:
            raise ValueError(f"{directory / profile}.yaml: found no line of {parameter.path}")
        source = f"{f'{FITTED} to published cases' if parameter.is_fitted else 'estimated'} (docs/accuracy.md): {parameter.what}"
        changed = f'  {key}: {{value: {parameter.text(numbers[parameter.path])}, source: "{source}"}}'
        text = text[: body.start()] + body[0].replace(line, changed, 1) + text[body.end() :]
    files.write_text(directory / f"{profile}.yaml", text)


def chain(directory: pathlib.Path, profile: str) -> str:
    """The texts of a profile and of all that it extends."""
    text = _read(directory, profile)
    base = re.search(r"^extends: (\S+)", text, re.MULTILINE)
    return text + (chain(directory, base[1]) if base else "")


def copy_with(source: pathlib.Path, target: pathlib.Path, numbers: Mapping[str, Values]) -> None:
    """All profiles of `source` in `target`, which is made, with these numbers in those that are named."""
    target.mkdir(parents=True)
    for path in source.glob("*.yaml"):
        shutil.copy(path, target)
    for profile, values_of in numbers.items():
        set_values(target, profile, values_of)


def _read(directory: pathlib.Path, profile: str) -> str:
    return (directory / f"{profile}.yaml").read_text(encoding="utf-8")


def _section(text: str, name: str) -> re.Match[str] | None:
    return re.search(rf"^{re.escape(name)}:\n((?:[ #].*\n?)*)", text, re.MULTILINE)


def _line(text: str, path: str) -> str | None:
    """The line of "section.key" that a profile's text itself has."""
    section, _, key = path.partition(".")
    body = _section(text, section)
    found = body and re.search(rf"^  {re.escape(key)}: .*$", body[1], re.MULTILINE)
    return found[0] if found else None
