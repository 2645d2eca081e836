"""YAML as manifests need it: nested mappings and lists of plain values, strings quoted where they must be."""

from __future__ import annotations

import json
import re
from typing import Any

# What YAML 1.1 and 1.2 readers take for a string without quotes, and nothing that one of them takes for something else.
_PLAIN = re.compile(r"(?!(?:true|false|yes|no|on|off|null|y|n)$)[A-Za-z_./][A-Za-z0-9_./@-]*(?::[A-Za-z0-9_./@-]+)*", re.IGNORECASE)


def block(value: Any, indent: int = 0) -> str:
    """`value` in block style, two spaces a level; ends with a newline."""
    return "".join(f"{' ' * indent}{line}\n" for line in _lines(value))


def _lines(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [line for key, item in value.items() for line in _entry(f"{_scalar(str(key))}:", item)]
    return [line for item in value for line in _item(item)]


def _entry(key: str, item: Any) -> list[str]:
    if isinstance(item, str) and "\n" in item:
        return [f"{key} |", *(f"  {line}" for line in item.splitlines())]
    if isinstance(item, (dict, list, tuple)) and item:
        return [key, *(f"  {line}" for line in _lines(item))]
    return [f"{key} {_scalar(item)}"]


def _item(item: Any) -> list[str]:
    if not (isinstance(item, (dict, list, tuple)) and item):
        return [f"- {_scalar(item)}"]
    first, *rest = _lines(item)
    return [f"- {first}", *(f"  {line}" for line in rest)]


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    return json.dumps(value, ensure_ascii=False)


__all__ = ["block"]
