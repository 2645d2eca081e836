"""What a step's time is made of: parts of hand-made timelines, and that they always add up."""

import random

import pytest

from orrery.validation.attribution import parts_of, tasks_of
from orrery.validation.directory import Span


def op(name, kind="kernel", *, ranks=(0,), stream=0, reads=(), writes=(), after=(), copy=0):
    body = {"kind": kind, "name": name, "dtype": "bf16", "dims": {}}
    return {
        "op": name,
        "copy": copy,
        "body": body,
        "ranks": list(ranks),
        "stream": stream,
        "reads": list(reads),
        "writes": list(writes),
        "after": list(after),
    }


def span(name, start, end, *, rank=0, kind="kernel", stream=0, copy=0):
    return Span(op=name, copy=copy, rank=rank, stream=stream, kind=kind, basis="measured", start_s=start, end_s=end)


def parts(ops, spans):
    return parts_of(ops, tasks_of(ops, spans))


def test_a_chain_is_its_kernels_and_the_gaps_between_them():
    ops = [op("a", writes=[0]), op("b", reads=[0])]
    found = parts(ops, [span("a", 1, 11), span("b", 13, 33)])
    assert (found.kernel, found.lead, found.gap) == (30, 1, 2)
    assert found.makespan == 33
    assert found.overlap == found.imbalance == found.communication == 0


def test_what_runs_beside_the_critical_path_is_overlap():
    ops = [op("a", writes=[0]), op("b", stream=1, writes=[1]), op("c", reads=[0, 1])]
    found = parts(ops, [span("a", 0, 10), span("b", 0, 6, stream=1), span("c", 10, 15)])
    assert found.kernel == 21
    assert found.overlap == -6  # b
    assert found.makespan == 15


def test_a_rank_that_is_slower_makes_imbalance_and_waiting_is_no_communication():
    ranks = (0, 1)
    ops = [op("a", ranks=ranks, writes=[0]), op("r", "comm", ranks=ranks, reads=[0], writes=[0])]
    spans = [
        span("a", 0, 10),
        span("a", 0, 12, rank=1),
        span("r", 10, 15, kind="comm"),
        span("r", 12, 15, rank=1, kind="comm"),
    ]
    found = parts(ops, spans)
    assert found.kernel == 11  # the mean
    assert found.imbalance == 1  # rank 1 takes one more than it
    assert found.communication == 3  # from 12 on
    assert found.makespan == 15


def test_a_late_rank_is_a_gap_on_the_path():
    ranks = (0, 1)
    ops = [op("a", ranks=ranks, writes=[0]), op("r", "comm", ranks=ranks, reads=[0], writes=[0])]
    spans = [
        span("a", 0, 10),
        span("a", 0, 10, rank=1),
        span("r", 10, 17, kind="comm"),
        span("r", 14, 17, rank=1, kind="comm"),
    ]
    found = parts(ops, spans)
    assert (found.kernel, found.gap, found.communication, found.imbalance) == (10, 4, 3, 0)


def test_pipeline_stages_follow_each_other_on_the_path():
    ops = [
        op("a", ranks=(0,), writes=[0]),
        op("s", "comm", ranks=(0, 1), reads=[0], writes=[1]),
        op("b", ranks=(1,), reads=[1]),
    ]
    spans = [
        span("a", 0, 10),
        span("s", 10, 12, kind="comm"),
        span("s", 0, 12, rank=1, kind="comm"),
        span("b", 12, 20, rank=1),
    ]
    found = parts(ops, spans)
    assert (found.kernel, found.communication, found.gap) == (18, 2, 0)
    assert found.makespan == 20


def test_a_kernel_launched_early_counts_from_the_end_of_the_one_before():
    ops = [op("a", writes=[0]), op("b", reads=[0])]
    found = parts(ops, [span("a", 0, 10), span("b", 8, 20)])
    assert (found.kernel, found.gap, found.overlap) == (20, 0, 0)


def test_several_spans_of_a_task_count_from_first_to_last():
    found = parts([op("a")], [span("a", 0, 4), span("a", 5, 9)])
    assert found.kernel == 9


def test_an_empty_timeline_has_no_parts():
    assert parts([op("a")], []).makespan == 0


@pytest.mark.parametrize("seed", range(30))
def test_parts_add_up_to_the_makespan_of_any_timeline(seed):
    """Random ops on two ranks and two streams; clocks of the ranks err, so that dependencies may even be violated."""
    draw = random.Random(seed)
    ops, spans, clock = [], [], {(rank, stream): draw.random() for rank in (0, 1) for stream in (0, 1)}
    for index in range(40):
        kind = draw.choice(["kernel", "kernel", "comm", "host"])
        ranks = (0, 1) if kind == "comm" else draw.choice([(0,), (1,), (0, 1)])
        stream = draw.randrange(2)
        name = f"op{index}"
        reads = [tensor for tensor in range(4) if draw.random() < 0.3]
        ops.append(op(name, kind, ranks=ranks, stream=stream, reads=reads, writes=[draw.randrange(4)]))
        for rank in ranks:
            if draw.random() < 0.05:
                continue  # a span that was lost
            start = clock[rank, stream] + draw.uniform(-0.3, 0.5)
            end = max(start, 0) + draw.random()
            clock[rank, stream] = end
            spans.append(span(name, max(start, 0), end, rank=rank, kind=kind, stream=stream))
    found = parts(ops, spans)
    assert found.makespan == pytest.approx(max(one.end_s for one in spans), rel=1e-12), f"seed {seed}"
