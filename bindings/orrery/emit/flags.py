"""Which options a program has, by version: the tables in flags/, and command lines checked against them."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import math
import pathlib
import re
import tomllib
from typing import Any

_DIRECTORY = pathlib.Path(__file__).parent / "flags"
Order = tuple[tuple[int, ...], int, int]


class UnknownFlag(ValueError):
    """An option, or a value of one, that the program of that version has not."""


@dataclasses.dataclass(frozen=True)
class Flag:
    takes: str  # count, number, text, json, switch, toggle, choice, list, settings
    since: str
    until: str
    values: dict[str, str]  # of a choice: to the first version that has it
    settings: dict[str, tuple[str, ...]]  # of settings, kind=K,key=value: the keys of each kind


@dataclasses.dataclass(frozen=True)
class Table:
    """The options of `program` in the versions whose sources were read."""

    program: str
    versions: tuple[str, ...]
    default: str
    source: str
    image: str
    flags: dict[str, Flag]

    def nearest(self, version: str | None) -> tuple[str, str]:
        """The version of the table that stands for `version`, and a sentence about it where it is another one."""
        if version is None or version in self.versions:
            return version or self.default, ""
        older = [known for known in self.versions if order(known) <= order(version)]
        found = older[-1] if older else self.versions[0]
        return found, (f"{self.program} {version} is not among the versions whose options were read ({', '.join(self.versions)});"
                       f" the options are those of {found}")  # fmt: skip

    def has(self, name: str, version: str, value: object = None) -> bool:
        """Whether that version has the option, and the value where the option is a choice."""
        flag = self.flags.get(name)
        if flag is None or not _within(version, flag.since, flag.until):
            return False
        return flag.takes != "choice" or value is None or (str(value) in flag.values and _within(version, flag.values[str(value)], ""))

    def check(self, name: str, version: str, value: object) -> str:
        """The value as it is typed; raises UnknownFlag for what the version has not."""
        flag = self.flags.get(name)
        if flag is None:
            near = difflib.get_close_matches(name, self.flags, n=1)
            raise UnknownFlag(f"{self.program}: found no option {name} in its table" + (f"; nearest: {near[0]}" if near else ""))
        if not _within(version, flag.since, flag.until):
            bounds = " ".join(filter(None, (flag.since and f"since {flag.since}", flag.until and f"until {flag.until}")))
            raise UnknownFlag(f"{self.program} {version} has no {name}; it is there {bounds}")
        if flag.takes == "choice" and not self.has(name, version, value):
            known = [each for each, since in flag.values.items() if _within(version, since, "")]
            raise UnknownFlag(f"{self.program} {version}: found {name} {value}; expected one of {', '.join(known)}")
        if flag.takes == "settings":
            return _settings(self.program, name, flag, value)
        return _typed(self.program, name, flag.takes, value)


def _settings(program: str, name: str, flag: Flag, value: object) -> str:
    """kind=poisson,rate=4: of a mapping that has a kind, and keys that the kind has."""
    assert isinstance(value, dict), "settings are a mapping"
    keys = flag.settings.get(value["kind"])
    if keys is None:
        raise UnknownFlag(f"{program}: found {name} kind={value['kind']}; expected one of {', '.join(flag.settings)}")
    if unknown := [key for key in value if key != "kind" and key not in keys]:
        raise UnknownFlag(f"{program}: found {unknown[0]} in {name} kind={value['kind']}; expected {', '.join(keys)}")
    return ",".join(f"{key}={item}" for key, item in value.items())


def _typed(program: str, name: str, takes: str, value: object) -> str:
    if takes == "json":
        return json.dumps(value, separators=(", ", ": "))
    is_whole = isinstance(value, int) and not isinstance(value, bool) and value >= -1
    is_finite = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if (takes == "count" and not is_whole) or (takes == "number" and not is_finite):
        raise UnknownFlag(f"{program}: found {name} {value!r}; expected a {takes}")
    return f"{value:.6g}" if isinstance(value, float) else str(value)


class Command:
    """A command line under construction; every option goes through the table of its program."""

    def __init__(self, table: Table, version: str, *words: str) -> None:
        self.table = table
        self.version = version
        self.words: list[str] = list(words)

    def has(self, name: str, value: object = None) -> bool:
        return self.table.has(name, self.version, value)

    def add(self, name: str, value: Any = True) -> Command:
        """Appends an option. True and False of a toggle become --x and --no-x; a switch takes True alone."""
        takes = self.table.flags[name].takes if name in self.table.flags else "text"
        text = self.table.check(name, self.version, value)
        if takes == "toggle":
            self.words.append(name if value else f"--no-{name.removeprefix('--')}")
        elif takes == "switch":
            self.words.append(name)
        elif takes == "list":
            self.words += [name, *map(str, value)]
        else:
            self.words += [name, text]
        return self


@functools.cache
def table(name: str) -> Table:
    """The table flags/NAME.toml."""
    content = tomllib.loads((_DIRECTORY / f"{name}.toml").read_text(encoding="utf-8"))
    flags = {
        key: Flag(entry["takes"], entry.get("since", ""), entry.get("until", ""), entry.get("values", {}),
                  {kind: tuple(keys) for kind, keys in entry.get("settings", {}).items()})  # fmt: skip
        for key, entry in content["flags"].items()
    }
    return Table(content["program"], tuple(content["versions"]), content["default"], content["source"], content.get("image", ""), flags)


def names() -> list[str]:
    """The tables that there are."""
    return sorted(path.stem for path in _DIRECTORY.glob("*.toml"))


def order(version: str) -> Order:
    """Orders versions as PyPI does: 1.3.0rc20 before 1.3.0 before 1.3.0.post1. Raises ValueError for what is none."""
    match = re.fullmatch(r"v?(\d+(?:\.\d+)*)(?:\.?(rc|post|dev)(\d+))?(?:\.post\d+)?", version)
    if not match:
        raise ValueError(f"found version '{version}'; expected one such as 0.24.0 or 1.3.0rc20")
    release = tuple(int(part) for part in match[1].split("."))
    release += (0,) * (4 - len(release))
    return release, {"dev": -2, "rc": -1, None: 0, "post": 1}[match[2]], int(match[3] or 0)


def _within(version: str, since: str, until: str) -> bool:
    at = order(version)
    return (not since or order(since) <= at) and (not until or at <= order(until))


__all__ = ["Command", "Flag", "Table", "UnknownFlag", "names", "order", "table"]
