"""Which release of an engine a build was made after: rows name nightly images, branches and commits, or nothing.

A release is known from the first day on which a launch script of launch_settings.csv named its image.
"""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Mapping

from . import launch as launches

IMAGES = {"vllm": "vllm-openai:", "sglang": "/sglang:", "trtllm": "tensorrt-llm/release:"}
RELEASE = re.compile(r":v?(\d+\.\d+\.\d+[\w.]*)")
NIGHTLY = re.compile(r"\bnightly\b", re.IGNORECASE)
DATE = re.compile(r"(?<!\d)(20\d\d)[-.]?(\d\d)[-.]?(\d\d)(?!\d)")


def is_release(version: str) -> bool:
    """Whether the text is a release's number; "nightly", "main" and commits are none."""
    return re.match(r"v?\d+\.\d", version) is not None


def day_of_build(version: str, image: str, day: datetime.date | None) -> datetime.date | None:
    """The date inside of the version or of the image that a script names, else the row's day."""
    for text in (version, image):
        if (found := DATE.search(text)) and (date := launches.date_of("-".join(found.groups()))):
            return date
    return day


@functools.cache
def known(engine: str) -> tuple[tuple[datetime.date, str, str], ...]:
    """First day, number and source of each release."""
    first: dict[str, tuple[datetime.date, str, str]] = {}
    for line in launches.shipped():
        if line["setting"] != launches.IMAGE or IMAGES.get(engine, "?") not in line["value"] or not (found := RELEASE.search(line["value"])):
            continue
        if found[1] not in first or line.begin < first[found[1]][0]:
            first[found[1]] = (line.begin, found[1], line.source)
    return tuple(sorted(first.values()))


def newest(engine: str, day: datetime.date | None) -> tuple[str, str] | None:
    """The newest release known on `day` and where it stands: of all without a day, the first for days before it."""
    found = known(engine)
    if not found:
        return None
    until = [release for release in found if day is None or release[0] <= day] or found[:1]
    return max(until, key=_number)[1:]


def following(engine: str, day: datetime.date) -> tuple[str, str] | None:
    """The first release that scripts named after `day` and that is newer than those before."""
    before = newest(engine, day)
    later = [release for release in known(engine) if before and release[0] > day and _number(release) > launches.version_key(before[0])]
    return min(later)[1:] if later else None


def _number(release: tuple[datetime.date, str, str]) -> tuple[int, ...]:
    return launches.version_key(release[1])


def inferred(fields: Mapping[str, str], image: str, day: datetime.date | None) -> tuple[str, str] | None:
    """The release that a row without one is taken to be of, and why. A build of the main branch has what the next release
    has, if one is known; else, and where nothing is stated, it is the newest known by then."""
    stated = fields["engine_version"]
    built = day_of_build(stated, image, day)
    is_build = stated not in ("", "latest", "stable") or any(NIGHTLY.search(text) for text in (image, fields["notes"]))
    found = following(fields["engine"], built) if built and is_build else None
    words = f"the next known after {built}" if found else f"the newest known {f'on {built}' if built else 'at all'}"
    found = found or newest(fields["engine"], built)
    what = f"'{stated}' is no release" if stated else "the row states no release"
    return (found[0], f"{what}; {words}: {found[1]}") if found else None
