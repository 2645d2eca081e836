"""Reads back scenario.yaml of a run directory, for its titles and limits.

The file was written by `orrery run`, which has already checked every key; so this needs only the
part of YAML that an emitter produces (block and flow mappings and sequences, plain, quoted and
literal scalars) and keeps every scalar as text. It is no second reader of scenarios by users.
"""

from __future__ import annotations

import json
import pathlib
import re

_KEY = re.compile(r"""(?P<key>"(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s\[\]{},#&*!|>'"%@`][^#]*?)\s*:(?=\s|$)""")
_CLOSER = {"{": "}", "[": "]"}


def read(path: pathlib.Path) -> dict:
    """The mapping in `path`: values are str, list or dict. Throws ValueError with file and line."""
    return parse(path.read_text(encoding="utf-8"), path)


def parse(text: str, path: pathlib.Path) -> dict:
    """The mapping in `text`, which messages call `path`. Throws ValueError with file and line."""
    return _Reader(path, text).document()


def _strip_comment(line: str) -> str:
    quote = ""
    for i, c in enumerate(line):
        if quote:
            quote = "" if c == quote and not (c == '"' and line[i - 1] == "\\") else quote
        elif c in "'\"" and (i == 0 or line[i - 1] in " [{,:"):
            quote = c
        elif c == "#" and (i == 0 or line[i - 1] in " \t"):
            return line[:i].rstrip()
    return line.rstrip()


def _unquote(text: str) -> str:
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] == '"':
        try:
            return json.loads(text)
        except ValueError:  # YAML has escapes that JSON has not
            return text[1:-1]
    if len(text) >= 2 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    return text


class _Reader:
    # Invariant: lines[at:] is what has not been read; entries are (line number, indent, text).
    def __init__(self, path: pathlib.Path, text: str) -> None:
        self.path = path
        self.raw = text.splitlines()
        self.at = 0
        self.lines = []
        for number, raw in enumerate(self.raw, start=1):
            body = _strip_comment(raw)
            if body.strip() and body.strip() not in ("---", "..."):
                self.lines.append((number, len(body) - len(body.lstrip()), body.strip()))

    def fail(self, line: int, what: str) -> ValueError:
        return ValueError(f"{self.path}:{line}: {what}")

    def document(self) -> dict:
        if not self.lines:
            raise self.fail(1, "found an empty file, expected a scenario")
        value = self.block(self.lines[0][1])
        if self.at < len(self.lines):
            number, _, text = self.lines[self.at]
            raise self.fail(number, f"found '{text}' at an indent that fits nothing above it")
        if not isinstance(value, dict):
            raise self.fail(1, "found no 'key: value', expected a scenario")
        return value

    def block(self, indent: int) -> dict | list | str:
        number, _, text = self.lines[self.at]
        if text == "-" or text.startswith("- "):
            return self.sequence(indent)
        if _KEY.match(text):
            return self.mapping(indent)
        self.at += 1
        return self.scalar_or_flow(number, indent, text)

    def sequence(self, indent: int) -> list:
        items = []
        while self.at < len(self.lines):
            number, at_indent, text = self.lines[self.at]
            if at_indent != indent or not (text == "-" or text.startswith("- ")):
                break
            rest = text[1:].lstrip()
            if rest:  # the item's own text becomes a line, indented as if the dash were a space
                self.lines[self.at] = (number, indent + len(text) - len(rest), rest)
            else:
                self.at += 1
            if self.at >= len(self.lines) or self.lines[self.at][1] <= indent:
                items.append("")
            else:
                items.append(self.block(self.lines[self.at][1]))
        return items

    def mapping(self, indent: int) -> dict:
        result: dict = {}
        while self.at < len(self.lines):
            number, at_indent, text = self.lines[self.at]
            if at_indent != indent:
                break
            match = _KEY.match(text)
            if not match:
                raise self.fail(number, f"found '{text}', expected 'key: value'")
            key, rest = _unquote(match["key"]), text[match.end() :].strip()
            if key in result:
                raise self.fail(number, f"found the key '{key}' twice")
            self.at += 1
            result[key] = self.value(number, indent, rest)
        return result

    def value(self, number: int, indent: int, rest: str) -> dict | list | str:
        if rest[:1] in ("|", ">"):
            return self.literal(indent, folded=rest[0] == ">")
        if rest:
            return self.scalar_or_flow(number, indent, rest)
        if self.at < len(self.lines):
            _, next_indent, text = self.lines[self.at]
            if next_indent > indent or (next_indent == indent and text.startswith("- ")):
                return self.block(next_indent)
        return ""

    def literal(self, indent: int, folded: bool) -> str:
        taken = []
        while self.at < len(self.lines) and self.lines[self.at][1] > indent:
            taken.append(self.raw[self.lines[self.at][0] - 1].strip())
            self.at += 1
        return (" " if folded else "\n").join(taken)

    def scalar_or_flow(self, number: int, indent: int, text: str) -> dict | list | str:
        # A scalar or a bracket may go on in the following, deeper lines.
        while self.at < len(self.lines) and self.lines[self.at][1] > indent:
            text += " " + self.lines[self.at][2]
            self.at += 1
        if text[0] not in _CLOSER:
            return _unquote(text)
        value, end = self.flow(number, text, 0)
        if text[end:].strip():
            raise self.fail(number, f"found '{text[end:].strip()}' after a closing bracket")
        return value

    def flow(self, number: int, text: str, at: int) -> tuple[dict | list | str, int]:
        """Value that starts at text[at] inside brackets, and the position after it."""
        while at < len(text) and text[at] == " ":
            at += 1
        if at < len(text) and text[at] in _CLOSER:
            return self.flow_collection(number, text, at)
        match = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|(?:[^,\[\]{}:]|:(?!\s|$))*""").match(text, at)
        return _unquote(match[0]), match.end()

    def flow_collection(self, number: int, text: str, at: int) -> tuple[dict | list, int]:
        closer, is_mapping = _CLOSER[text[at]], text[at] == "{"
        result: dict | list = {} if is_mapping else []
        at += 1
        while True:
            while at < len(text) and text[at] in " ,":
                at += 1
            if at >= len(text):
                raise self.fail(number, f"found no '{closer}' to close a bracket")
            if text[at] == closer:
                return result, at + 1
            item, end = self.flow(number, text, at)
            if end == at:
                raise self.fail(number, f"found '{text[at]}', expected a value or '{closer}'")
            at = end
            if not is_mapping:
                result.append(item)
                continue
            while at < len(text) and text[at] == " ":
                at += 1
            if at >= len(text) or text[at] != ":":
                raise self.fail(number, f"found '{item}' without a value in a mapping")
            result[item], at = self.flow(number, text, at + 1)
