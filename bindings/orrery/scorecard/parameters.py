"""The few numbers of an engine profile that published measurements may set, and their candidate values.

Each stands for one physical cost of every model and machine; none is per case or per model. Key paths are
those of scenarios/engines/<profile>.yaml.
"""

CANDIDATES: dict[str, tuple[str, ...]] = {
    "host.scheduler_base": ("0.25 ms", "0.5 ms", "1 ms", "1.5 ms", "2 ms", "3 ms", "5 ms", "8 ms"),
    "host.scheduler_per_sequence": ("0 us", "5 us", "10 us", "20 us", "40 us", "80 us", "120 us"),
    "host.eager_launch": ("5 us", "10 us", "20 us", "40 us", "60 us", "90 us"),
    "front_end.per_request": ("0.5 ms", "1 ms", "2 ms", "4 ms", "6 ms", "10 ms", "15 ms", "25 ms"),
    "front_end.per_prompt_token": ("0 us", "1 us", "2 us", "4 us", "8 us", "16 us"),
    "front_end.stream_latency": ("0 ms", "1 ms", "2 ms", "4 ms", "8 ms", "16 ms"),
}
