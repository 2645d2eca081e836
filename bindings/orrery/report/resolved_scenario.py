"""YAML files of the project with every scalar as the text that stands there: scenario.yaml of a run directory, profiles, devices.

The program's own reader reads them; a number that a report shows is then as its file has it.
"""

from __future__ import annotations

import pathlib
from typing import Any

from .. import _core


def read(path: pathlib.Path) -> dict[str, Any]:
    """The mapping in `path`: values are str, list or dict. Raises ValueError with file and line."""
    return _mapping(_core.YamlNode.read(path), path)


def parse(text: str, path: pathlib.Path) -> dict[str, Any]:
    """The mapping in `text`, which messages call `path`. Raises ValueError with file and line."""
    return _mapping(_core.YamlNode.parse(text, str(path)), path)


def _mapping(node: _core.YamlNode, path: pathlib.Path) -> dict[str, Any]:
    found = node.to_texts()
    if not isinstance(found, dict):
        raise ValueError(f"{path}:1: found no 'key: value', expected a scenario")
    return found


__all__ = ["parse", "read"]
