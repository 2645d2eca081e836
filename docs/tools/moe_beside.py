"""Draws a simulated layer of experts as several kernels and as one beside each other, by stream and by SM, as SVG.

Run from the project: PYTHONPATH=bindings python docs/tools/moe_beside.py docs/images/moe_beside.svg
"""

from __future__ import annotations

import argparse
import html
import pathlib

from orrery import files, layer_trace, moe
from orrery.perfetto.layer import one_kernel
from orrery.spans import timeline_spans

MODEL, TOKENS, GPUS = "qwen3-30b-a3b", 1024, 2
LEFT, WIDTH, BAR, SM = 70, 830, 24, 2.0  # px
COLOURS = {"kernel": "#4c72b0", "comm": "#c44e52", "host": "#8c8c8c", "routing": "#8c8c8c", "first layer": "#4c72b0", "second layer": "#dd8452", "waits": "#c44e52"}


class Drawing:
    """Rectangles and text at times in us."""

    def __init__(self, last_us: float) -> None:
        self._scale = WIDTH / last_us
        self._lines: list[str] = []

    def bar(self, begin_us: float, end_us: float, top: float, height: float, colour: str, name: str = "") -> None:
        left, width = LEFT + begin_us * self._scale, (end_us - begin_us) * self._scale
        self._lines.append(f'<rect x="{left:.2f}" y="{top:g}" width="{width:.2f}" height="{height:g}" fill="{colour}"/>')
        if width > 6 * len(name) > 0:
            self.text(left + width / 2, top + height / 2 + 3, name, "middle", "white")

    def text(self, left: float, top: float, text: str, anchor: str = "start", colour: str = "black") -> None:
        self._lines.append(f'<text x="{left:.1f}" y="{top:.1f}" text-anchor="{anchor}" fill="{colour}">{html.escape(text)}</text>')

    def key(self, left: float, top: float, name: str) -> float:
        """What a colour is; where the next one may stand."""
        self._lines.append(f'<rect x="{left:g}" y="{top - 8:g}" width="10" height="9" fill="{COLOURS[name]}"/>')
        self.text(left + 14, top, name)
        return left + 34 + 6 * len(name)

    def axis(self, last_us: float, step_us: int, top: float) -> None:
        for us in range(0, int(last_us) + 1, step_us):
            left = LEFT + us * self._scale
            self._lines.append(f'<path d="M{left:.1f} {top:g}v5" stroke="black"/>')
            self.text(left, top + 16, f"{us} us" if us == 0 else str(us), "middle")

    def svg(self, height: float) -> str:
        size = f'width="{LEFT + WIDTH + 20}" height="{height:g}" viewBox="0 0 {LEFT + WIDTH + 20} {height:g}"'
        return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="10">\n<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(self._lines) + "\n</svg>\n"  # fmt: skip


def drawn() -> str:
    """The picture of both."""
    keys = {"tokens": TOKENS * GPUS, "machine": "hgx-h200", "dp": GPUS, "ep": GPUS}
    several = moe.layer(MODEL, design="shuffling", **keys)
    (one,) = moe.persistent(MODEL, **keys)
    blocks = one_kernel(one)
    ops = [span for span in timeline_spans(several._result.timeline.columns()) if span.rank == 0]
    kernel_us = 1e6 * max(span.end_s for span in blocks)
    last_us = max(1e6 * several.duration_s, kernel_us)
    drawing = Drawing(last_us)
    drawing.text(LEFT, 14, f"{several.label}, {several.mode}: {1e6 * several.duration_s:.1f} us, rank 0")
    rows = sorted({span.stream if span.kind != "host" else 99 for span in ops})
    top = 22.0
    for row in rows:
        drawing.text(LEFT - 6, top + BAR / 2 + 3, "host" if row == 99 else f"stream {row}", "end")
        for span in ops:
            if row == (span.stream if span.kind != "host" else 99):
                drawing.bar(1e6 * span.start_s, 1e6 * span.end_s, top, BAR - 2, COLOURS[span.kind], span.op)
        top += BAR
    top += 18
    drawing.text(LEFT, top, f"one kernel, tile by tile: {kernel_us:.1f} us, each line an SM of rank 0")
    left = LEFT + 420.0
    for name in ("routing", "first layer", "second layer", "waits"):
        left = drawing.key(left, top, name)
    top += 6
    for span in blocks:
        if span.what in layer_trace.PHASES:
            drawing.bar(1e6 * span.begin_s, 1e6 * span.end_s, top + SM * span.block, SM, COLOURS["routing"])
    for work in layer_trace.works(blocks):
        what = "waits" if work.is_wait else "first layer" if work.task.layer == 1 else "second layer"
        gap_us = 0.0 if work.is_wait else 0.3  # so that tasks can be told apart
        drawing.bar(1e6 * work.start_s, 1e6 * work.end_s - gap_us, top + SM * work.block, SM - 0.3, COLOURS[what])
    drawing.text(LEFT - 6, top + 10, "SM 0", "end")
    top += SM * (1 + max(span.block for span in blocks))
    drawing.text(LEFT - 6, top, f"SM {max(span.block for span in blocks)}", "end")
    drawing.axis(last_us, 50, top + 4)
    return drawing.svg(top + 28)


def main() -> None:
    parser = argparse.ArgumentParser(description="The picture of docs/kernels/fused_moe.md.")
    parser.add_argument("figure", type=pathlib.Path, metavar="FILE", help="the SVG to write")
    files.write_text(parser.parse_args().figure, drawn())


if __name__ == "__main__":
    main()
