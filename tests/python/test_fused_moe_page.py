"""The layer of experts as one kernel as it was measured: docs/kernels/fused_moe_h200.json, and the tables of its page."""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from orrery import _core, layer_trace, moe
from orrery.spans import timeline_spans

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "kernels/fused_moe.md").read_text(encoding="utf-8")
ROWS = json.loads((DOCS / "kernels/fused_moe_h200.json").read_text(encoding="utf-8"))
FIELDS = {"kernel", "dtype", "shape", "ours_us", "peer", "peer_us", "gpus", "device", "revision", "date"}
SHAPE = {"tokens", "hidden", "ffn", "experts", "topk", "activation"}


def number(text: str) -> float:
    return float(text.replace(",", ""))


def lines_of(page: str, header: str) -> Iterator[list[str]]:
    """Cells of the table whose header begins so."""
    (begin,) = [place.end() for place in re.finditer(rf"^{re.escape(header)}.*\n\|[-|]+\n", page, re.MULTILINE)]
    for line in page[begin:].splitlines():
        if not line.startswith("|"):
            return
        yield [cell.strip() for cell in line.strip("|").split("|")]


def key(row: dict) -> tuple:
    shape = row["shape"]
    return (row["gpus"], *(shape[name] for name in ("tokens", "hidden", "ffn", "experts", "topk")), row["dtype"], shape["activation"],
            shape.get("shared", 0))  # fmt: skip


BY_SHAPE = {key(row): row for row in ROWS}


def test_each_row_has_its_fields_a_shape_that_the_kernel_takes_and_where_it_comes_from() -> None:
    assert len(BY_SHAPE) == len(ROWS)  # a shape has one row
    for row in ROWS:
        assert set(row) == FIELDS and SHAPE <= set(row["shape"]) <= SHAPE | {"shared"}, row
        assert row["kernel"] == "fused_moe" and row["device"] == "NVIDIA H200" and row["dtype"] in ("bf16", "fp8")
        shape = row["shape"]
        assert shape["topk"] <= shape["experts"] and shape["experts"] % row["gpus"] == 0 and row["gpus"] in (1, 2, 4)
        assert re.fullmatch(r"[0-9a-f]{8,12}", row["revision"]) and re.fullmatch(r"2026-\d\d-\d\d", row["date"])
        # us, of a layer that computes: between the data sheets' rate and a hundredth of it.
        matrices = 3 if shape["activation"] == "swiglu" else 2
        flops = 2 * shape["tokens"] * shape["topk"] * shape["hidden"] * shape["ffn"] * matrices
        least_us = 1e6 * flops / (989e12 if row["dtype"] == "bf16" else 1979e12)
        assert least_us < row["ours_us"] < 1e5 and least_us < row["peer_us"] < 1e5, row


def test_the_page_s_table_is_that_of_the_rows() -> None:
    lines = list(lines_of(PAGE, "| GPUs | tokens a GPU | hidden |"))
    assert len(lines) == 38
    for gpus, tokens, hidden, ffn, experts, topk, dtype, ours, pipeline, exchange, ratio, rate, efficiency in lines:
        shape = (*(int(number(cell)) for cell in (tokens, hidden, ffn, experts, topk)), dtype, "swiglu", 0)
        row = BY_SHAPE[int(gpus), *shape]
        assert (number(ours), number(pipeline)) == (row["ours_us"], row["peer_us"]), (shape, row)
        assert (exchange or "in a graph") in row["peer"]
        assert number(ratio) == pytest.approx(row["peer_us"] / row["ours_us"], abs=0.0051)
        assert number(rate) == pytest.approx(int(gpus) * number(tokens) / row["ours_us"], abs=0.0051)  # per us: millions a second
        alone = BY_SHAPE.get((1, *shape))
        assert bool(efficiency) == (gpus != "1" and alone is not None), shape
        if efficiency:
            assert number(efficiency.removesuffix(" %")) == pytest.approx(100 * alone["ours_us"] / row["ours_us"], abs=0.51)


def test_layers_of_other_numbers_of_experts_are_those_of_the_rows() -> None:
    lines = list(lines_of(PAGE, "| experts | tokens a GPU | 1 GPU |"))
    assert [(line[0], line[1]) for line in lines] == [
        ("32", "4,096"), ("32", "8,192"), ("32", "16,384"), ("8", "16,384"), ("16", "16,384"), ("64", "16,384"), ("128", "16,384")]  # fmt: skip
    for experts, tokens, *cells in lines:
        times = [tuple(number(text) for text in cell.split(" / ")) for cell in cells[:3]]
        for gpus, (ours, pipeline) in zip((1, 2, 4), times, strict=True):
            row = BY_SHAPE[gpus, int(number(tokens)), 2048, 2048, int(experts), 2, "bf16", "swiglu", 0]
            if experts == "64" and gpus < 4:  # another run than that of the table above
                assert (ours, pipeline) == pytest.approx((row["ours_us"], row["peer_us"]), rel=0.02)
            else:
                assert (ours, pipeline) == pytest.approx((row["ours_us"], row["peer_us"]), abs=0.51)
        assert number(cells[3].removesuffix(" %")) == pytest.approx(100 * times[0][0] / times[2][0], abs=0.51)
        rates = [gpus * number(tokens) / ours for gpus, (ours, _) in zip((1, 2, 4), times, strict=True)]
        assert [number(text) for text in cells[4].split(", ")] == pytest.approx(rates, abs=0.0051)


def test_where_the_time_of_sms_goes_is_simulated_as_its_table_says() -> None:
    lines = list(lines_of(PAGE, "| GPUs | tokens a GPU | | us | routing |"))
    simulated = [line for line in lines if line[2] == "simulated"]
    assert [(line[0], line[1]) for line in simulated] == [(gpus, tokens) for gpus in "12" for tokens in ("128", "1,024", "8,192")]
    for line in simulated:
        (found,) = layer_trace.splits(
            layer_trace.simulated(tokens=int(number(line[1])), ranks=int(line[0]), hidden=2048, ffn=2048, experts=64, topk=2)
        )
        shares = [100 * getattr(found, share) for share in layer_trace.SHARES]
        assert [number(cell) for cell in line[3:11]] == pytest.approx([1e6 * found.duration_s, *shares], abs=0.051)


def test_blocks_that_look_ahead_win_as_little_as_the_page_says() -> None:
    layers = ({"ffn": 2048, "experts": 64, "topk": 2}, {"ffn": 768, "experts": 128, "topk": 8})
    gains, waits = [], []
    for layer, is_fp8, ranks, tokens in itertools.product(layers, (False, True), (1, 2, 4), (128, 1024, 8192)):
        shape = {"tokens": tokens, "hidden": 2048, "ranks": ranks, "is_fp8": is_fp8, **layer}
        behind, ahead = (_core.moe_tiles(order=order, **shape)["duration_s"] for order in ("behind", "ready_first"))
        gains.append(100 * (1 - ahead / behind))
        waits.append(100 * layer_trace.splits(layer_trace.simulated(**shape))[0].task_ready)
    assert (max(gains), min(gains), max(waits)) == pytest.approx((0.04, -0.29, 0.47), abs=0.0051)
    assert "waits of the first kind are 0.47 %" in PAGE and "win 0.04 % of a layer's time at most" in PAGE and "lose up to 0.3 %" in PAGE


def test_launches_of_scout_s_layer_are_simulated_as_its_table_says() -> None:
    lines = list(lines_of((DOCS / "moe.md").read_text(encoding="utf-8"), "| stream | kernel | launches | us | simulated |"))
    layer = moe.layer("llama-4-scout-17b-16e", tokens=64, streams=2, tp=8, machine="hgx-h200")
    spans = [span for span in timeline_spans(layer.timeline._timeline.columns()) if span.rank == 0 and span.kind == "kernel"]
    spans.sort(key=lambda span: (span.stream, span.start_s))
    assert [line[0] for line in lines] == [str(span.stream) for span in spans]
    for line, span in zip(lines, spans, strict=True):
        assert number(line[4]) == pytest.approx(1e6 * (span.end_s - span.start_s), rel=0.02, abs=0.1), f"{span.op}: the table's last column is of prices before"
