"""How long rows are on their way between attention and FFNs, from executed steps: rows of topologies/MACHINE/send_recv.orrery.csv.

    python docs/tools/side_ways.py runs/fit_1a1f    # of scenarios/validate/fit_1a1f.yaml, one micro-batch, executed

A way is the time from the end of the kernel that wrote the rows to the start of the one that reads them on the other GPU, which waits for them. Of it the
plan has the gaps between ops apart: what the engine profile says of them is taken off (GAPS). Median and spread (interquartile range over the
median) over the layers and both directions, bytes of one rank's message.
"""

import csv
import pathlib
import statistics
import sys

GAPS = {"graph": 0.2, "eager": 2.4}  # us: scenarios/engines/orrery.yaml, before and behind an exchange


def ways(path):
    spans = {}
    for row in csv.DictReader(path.open()):
        spans[row["op"], int(row["copy"]), int(row["rank"])] = float(row["start_s"]), float(row["end_s"])
    layers = 1 + max(copy for _, copy, _ in spans)
    for layer in range(layers):
        yield spans["layers.0.gate_up_proj", layer, 1][0] - spans["layers.0.ffn_norm", layer, 0][1]
        if layer + 1 < layers:
            yield spans["layers.0.attn_norm", layer + 1, 0][0] - spans["layers.0.down_proj", layer, 1][1]


def message_bytes(plan):
    line = next(line for line in plan.read_text().splitlines() if "layers.0.to_ffn comm" in line)
    return int(next(word for word in line.split() if word[:-1].isdigit() and word.endswith("B"))[:-1])


def main(directory):
    rows = []
    for path in sorted((directory / "executed").glob("*.spans.csv")):
        name = path.name.removesuffix(".spans.csv")
        mode = name.rpartition("_")[2]
        times = [1e6 * way - GAPS[mode] for way in ways(path)]
        low, middle, high = statistics.quantiles(times, n=4)
        size = message_bytes(directory / "steps" / f"{name}.plan")
        rows.append((mode, size, middle, (high - low) / middle, len(times)))
    for mode, size, time, spread, samples in sorted(rows):
        print(f"orrery_copies,1,{mode},bf16,2,{size},{time:.3f},{spread:.4f},{samples}")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
