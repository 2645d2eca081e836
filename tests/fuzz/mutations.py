"""Random damage: to trees of values, and to text."""

from __future__ import annotations

import copy
import random
import re
from typing import Any

NUMBERS = ("0", "-1", "1", "2", "3", "17", "1.5", "-0.0", "1e-300", "1e300", "1e999", ".nan", ".inf", "nan", "2147483648",
           "9007199254740993", "9223372036854775807", "-9223372036854775808", "9223372036854775808", "100000000000000000000",
           "0x10", "1_000", "٣")  # fmt: skip
WORDS = ("", "x", "null", "~", "true", "no", "é", "\x00", "\x1b[31m", "a" * 3000, "1 ms", "-1 ms", "1e999 GB/s", "1 parsec", "&a", "*a",
         "!!python/object/apply:os.system", "{", "[", "]", "}", "'", '"', "%", "../../..", "/dev/null", ".", "\ufeff", "\u202e", "\r", "\t", ",",
         "[" * 200, "{a: " * 200)  # fmt: skip
# What is legal somewhere.
KNOWN = ("bf16", "fp8", "fp8_block", "mxfp4", "none", "heap", "all_ranks", "vllm", "sglang", "least_loaded", "llama-3.1-8b", "qwen3-30b-a3b",
         "deepseek-v2-lite", "hgx-b200", "silu", "10 us", "1 ms", "2 GiB", "100 GB/s", "uniform", "balanced", "eager", "graph")  # fmt: skip
NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


def _paths(tree: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    found = []
    for key, value in items:
        found += [(*prefix, key), *_paths(value, (*prefix, key))]
    return found


def _at(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _value(rng: random.Random, old: Any) -> Any:
    """Something in place of `old`, often a near miss."""
    if isinstance(old, bool):
        return rng.choice((not old, "yes", 1, None))
    if isinstance(old, (int, float)) and rng.random() < 0.6:
        return rng.choice((old + 1, old - 1, -old, old * 2, old * 10, old / 2, old / 1000, str(old), [old]))
    if isinstance(old, str) and rng.random() < 0.4:
        return rng.choice(KNOWN)
    return rng.choice((int(rng.choice(NUMBERS[:6])), 2**31, 2**63 - 1, 10**20, 1e300, float("nan"), float("inf"), None, [], {}, [1, "x"],
                       {"x": 1}, rng.choice(WORDS)))  # fmt: skip


def tree(rng: random.Random, original: Any) -> Any:
    """A copy with one to three places changed, removed, renamed or exchanged."""
    changed = copy.deepcopy(original)
    for _ in range(rng.choice((1, 1, 2, 3))):
        paths = _paths(changed)
        if not paths:
            break
        *parent, key = rng.choice(paths)
        holder = _at(changed, tuple(parent))
        what = rng.random()
        if what < 0.65:
            holder[key] = _value(rng, holder[key])
        elif what < 0.8:
            del holder[key]
        elif what < 0.9 and isinstance(holder, dict):
            name = str(key)
            cut = rng.randrange(len(name) + 1)
            holder[name[:cut] + rng.choice(("", "x", "_", " ")) + name[cut + 1 :]] = holder.pop(key)
        else:
            holder[key] = copy.deepcopy(_at(changed, tuple(rng.choice(paths))))
    return changed


def text(rng: random.Random, original: bytes) -> bytes:
    """A copy with one to four pieces replaced, cut, doubled or moved."""
    changed = original
    for _ in range(rng.choice((1, 1, 2, 4))):
        if not changed:
            break
        start = rng.randrange(len(changed))
        end = min(len(changed), start + rng.choice((1, 2, 8, 40, 400)))
        what = rng.random()
        numbers = list(NUMBER.finditer(changed))
        if what < 0.4 and numbers:
            found = rng.choice(numbers)
            near = (b"%d" % (int(found[0]) + rng.choice((-1, 1))) if found[0].isdigit() and len(found[0]) < 99 else b"1", found[0] + b"0", found[0][:-1])
            number = rng.choice(near) if rng.random() < 0.6 else rng.choice(NUMBERS).encode()
            changed = changed[: found.start()] + number + changed[found.end() :]
        elif what < 0.55:
            changed = changed[:start] + changed[end:]
        elif what < 0.65:
            changed = changed[:end] + changed[start:]
        elif what < 0.8:
            changed = changed[:start] + rng.choice(WORDS).encode() + changed[start:]
        elif what < 0.87:
            changed = changed[:start] + bytes((rng.randrange(256),)) + changed[start + 1 :]
        elif what < 0.95:
            lines = changed.splitlines(keepends=True)
            i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
            lines[i], lines[j] = lines[j], lines[i] * rng.choice((1, 2, 300))
            changed = b"".join(lines)
        else:
            changed = changed[:start]
    return changed
