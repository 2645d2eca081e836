"""The engines that commands can be written for."""

from __future__ import annotations

from ..deployment import Engine
from . import sglang, trtllm, vllm

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (vllm.ENGINE, sglang.ENGINE, trtllm.ENGINE)}

__all__ = ["ENGINES"]
