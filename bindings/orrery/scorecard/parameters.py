"""The few numbers of an engine profile that published measurements may set, and their candidate values.

Each stands for one physical cost of every model and machine; none is per case or per model. Key paths are
those of scenarios/engines/<profile>.yaml; what a profile and those that it extends do not have is left out.
"""


def _steps(unit: str, *values: float) -> tuple[str, ...]:
    return tuple(f"{value:g} {unit}".strip() for value in values)


CANDIDATES: dict[str, tuple[str, ...]] = {
    "host.scheduler_base": _steps("ms", 0, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 6),
    "host.scheduler_per_sequence": _steps("us", 0, 2, 5, 10, 15, 20, 30, 40, 50, 70, 100),
    "host.piece_launch": _steps("us", 10, 20, 30, 45, 60, 80, 100, 120, 150, 200),
    "host.eager_launch": _steps("us", 5, 10, 20, 30, 40, 50, 60, 80, 100, 120),
    "kernel_time.eager": _steps("", 0.9, 0.95, 1, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5),
    "kernel_time.eager_moe": _steps("", 0.9, 1, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.8, 2),
    "kernel_time.graph": _steps("", 0.9, 0.94, 0.97, 1, 1.03, 1.06, 1.1, 1.15, 1.2),
    "front_end.cold_start": _steps("ms", 0, 50, 100, 200, 300, 500, 1000, 2000),
    "front_end.per_request": _steps("ms", 0.25, 0.5, 1, 2, 3, 4, 6, 8, 12, 16),
    "front_end.per_prompt_token": _steps("us", 0, 0.5, 1, 2, 3, 4, 6, 8, 12, 16),
    "front_end.per_output_token": _steps("us", 0, 10, 20, 30, 40, 50, 60, 70, 80, 100),
    "front_end.stream_latency": _steps("ms", 0, 0.5, 1, 2, 4, 6, 8, 12, 16),
}
