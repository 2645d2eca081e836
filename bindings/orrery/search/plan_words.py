"""How a plan is named in sentences and tables."""

from __future__ import annotations

import collections.abc

_PLACES = ("placement", "disaggregation.prefill", "disaggregation.decode")
_SHORT_NAMES = {"tp": "TP", "pp": "PP", "dp": "DP", "ep": "EP", "cp": "CP"}
_OF_ATTENTION_AND_FFN = ("tp", "dp", "ep", "ffn_instances", "ffn_tp", "num_micro_batches", "ffn_schedule")
# What goes without saying.
_USUAL = {"ffn_instances": "0", "ffn_tp": "1", "num_micro_batches": "1", "ffn_schedule": "pipelined", "cp_weights": "split",
          "cp_prefill": "all_gather", "cp_decodes": "all", "dp_rows": "own"}  # fmt: skip
_CHOICES = {("cp_weights", "replicated"): "replicated weights", ("cp_prefill", "ring"): "ring", ("cp_decodes", "dealt"): "decodes dealt out",
            ("dp_rows", "balanced"): "even rows"}  # fmt: skip


def words(assignments: list[str], own: collections.abc.Mapping[str, str] | None = None) -> str:
    """'6 × TP2', '8 attention + 8 FFN GPUs (EP8), 3 micro-batches', '2 × TP4 prefill + 4 × TP4 decode, max_num_seqs 512'.

    `own`: keys of the placement that the search does not vary, of which those of attention and FFNs apart are said.
    """
    sides: dict[str, dict[str, str]] = {}
    others = []
    for assignment in assignments:
        path, _, value = assignment.partition("=")
        place, _, key = path.rpartition(".")
        if place in _PLACES:
            sides.setdefault(place, {})[key] = value
        else:
            others.append(f"{key} {value}")
    parts = []
    for place in _PLACES:
        if place in sides:
            name = "" if place == "placement" else " " + place.rpartition(".")[2]
            parts.append(_side(sides[place], own if own and place == "placement" else {}) + name)
    return ", ".join([" + ".join(parts), *others])


def _side(mesh: dict[str, str], own: collections.abc.Mapping[str, str]) -> str:
    """Of the only side, or of one of two."""
    replicas = mesh.get("replicas", "1")
    whole = {key: own[key] for key in _OF_ATTENTION_AND_FFN if key in own} | mesh
    if whole.get("ffn_instances", "0") != "0":
        text = _attention_and_ffn(whole)
        return text if replicas == "1" else f"{replicas} × [{text}]"
    ways = " ".join(f"{_SHORT_NAMES[k]}{v}" for k, v in mesh.items() if k in _SHORT_NAMES and v != "1")
    rest = _rest(mesh, ("replicas", *_SHORT_NAMES))
    return f"{replicas} × {ways or '1 GPU'}" + (f" ({', '.join(rest)})" if rest else "")


def _attention_and_ffn(mesh: dict[str, str]) -> str:
    """One replica with FFNs on GPUs of their own."""

    def ways(key: str) -> int:
        return int(mesh.get(key, "1"))

    attention, ffn, batches = ways("dp") * ways("tp"), ways("ffn_instances") * ways("ffn_tp"), ways("num_micro_batches")
    shared = f" (TP{ways('tp')})" if ways("tp") > 1 else ""
    split = " ".join(f"{name}{ways(key)}" for name, key in (("TP", "ffn_tp"), ("EP", "ep")) if ways(key) > 1)
    text = f"{attention} attention{shared} + {ffn} FFN GPU{'s' if attention + ffn > 2 else ''}{f' ({split})' if split else ''}"
    each = f"{batches} micro-batch{'es' if batches > 1 else ''}"
    locked = ", locked" if mesh.get("ffn_schedule") == "lock" else ""
    return ", ".join([text, each + locked, *_rest(mesh, ("replicas", *_OF_ATTENTION_AND_FFN))])


def _rest(mesh: dict[str, str], said: tuple[str, ...]) -> list[str]:
    """What is left to say of a mesh and is not as usual."""
    rest = []
    for key, value in mesh.items():
        if key in said or value in ("false", _USUAL.get(key)):
            continue
        if key == "num_micro_batches":
            rest.append(f"{value} micro-batches")
        else:
            rest.append(_CHOICES.get((key, value), f"{_SHORT_NAMES.get(key, key)} {value}"))
    return rest
