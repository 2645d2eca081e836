"""The few numbers of an engine profile that published measurements may set.

Each stands for one physical cost of every model and machine; none is per case or per model. `path` is the key path in
scenarios/engines/<profile>.yaml. Without measurements a parameter has the value `prior`, which comes from what the
cost is; measurements have to show why it should be elsewhere, the more so the more `deviation`s away.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Parameter:
    path: str  # "section.key"
    unit: str  # "ms", "us" or "" of the numbers here and in profiles
    prior: float
    deviation: float
    low: float
    high: float
    what: str

    @property
    def is_fitted(self) -> bool:
        return self.low < self.high

    def text(self, value: float) -> str:
        """As profiles have it, to three digits: more than the measurements say."""
        return f"{value:.3g} {self.unit}".strip()

    def number(self, text: str) -> float:
        """Of a profile's text, in `unit`. Throws ValueError for another kind of quantity."""
        number, _, unit = text.partition(" ")
        if bool(unit) != bool(self.unit) or unit not in _SECONDS:
            raise ValueError(f"{self.path}: found '{text}', expected a {'time' if self.unit else 'plain number'}")
        return float(number) if unit == self.unit else float(number) * _SECONDS[unit] / _SECONDS[self.unit]


_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}

PARAMETERS = (
    Parameter("host.scheduler_base", "ms", 1, 1, 0, 6, "a step's scheduler, input tensors and tokens read back, in Python"),
    Parameter("host.scheduler_per_sequence", "us", 10, 10, 0, 100, "loops over requests of the same"),
    Parameter("host.eager_launch", "us", 20, 20, 3, 120, "Python between two kernels; torch alone takes 5 to 10 us (devices/h200-sxm/launch.csv)"),
    Parameter("kernel_time.eager", "", 1, 0.1, 0.8, 1.6, "kernels beside prompts against the same alone in the tables"),
    Parameter("kernel_time.eager_moe", "", 1, 0.2, 0.8, 2, "experts beside prompts against the same alone in the tables"),
    Parameter("kernel_time.graph", "", 1, 0.05, 0.8, 1.3, "kernels of decodes in graphs against the same alone in the tables"),
    # Not fitted. One process takes in one request after another, so the two together take no more than the fastest published row
    # does of a request: 9.57 ms of 1,000 tokens (448 clients of SGLang 0.5.6.post2 on 8 H200), 1.9 times what they take here. That is
    # a few ms of a TTFT, which published rows do not tell from what prompts wait for one another.
    Parameter("front_end.per_request", "ms", 3, 3, 3, 3, "HTTP, JSON, chat template, request object and its way to the engine"),
    Parameter("front_end.per_prompt_token", "us", 2, 2, 2, 2, "tokenizing and what else grows with the prompt"),
    # No higher than what the fastest published row takes of a token and client, 51 us: 512 clients of SGLang 0.5.6.post2 on 8 H200.
    Parameter("front_end.per_output_token", "us", 20, 20, 0, 50, "detokenizing and sending of one process, tokens one after another"),
    # Not fitted either: clients on the same host.
    Parameter("front_end.stream_latency", "ms", 1, 2, 1, 1, "a token's way out that holds up no other token"),
)  # fmt: skip

Values = Mapping[str, float]  # path -> number in the parameter's unit


def priors() -> dict[str, float]:
    """Every parameter as it is without measurements."""
    return {parameter.path: parameter.prior for parameter in PARAMETERS}
