"""Whether plans stand in the order in which they were measured: those that were executed here, and published ones at equal load.

    python -m orrery.scorecard.order [--list]

Own plans: the rows of docs/validation/results.json, predictions as they were made before each run. Published: the cases that were also
measured with another parallelism under equal load are simulated anew. With --list, every pair in the other order.
"""

from __future__ import annotations

import argparse
import collections
import os
import sys
from collections.abc import Sequence

from ..simulation import project_root
from ..text_table import aligned, printable
from ..validation import order
from ..validation.results import Row, load
from . import statistics
from .cases import Case, read_cases
from .outcomes import Outcome, compare

OWN = (
    ("decode steps by TPOT", lambda rows: order.step_pairs(rows, per_gpu=False)),
    ("decode steps by throughput of a GPU", lambda rows: order.step_pairs(rows, per_gpu=True)),
    ("services of equal load by mean TPOT", lambda rows: order.service_pairs(rows, "tpot_mean", same_load=True)),
    ("services of equal load by throughput", lambda rows: order.service_pairs(rows, "output_tokens_per_s", same_load=True)),
    ("services of equal load by throughput of a GPU", lambda rows: order.service_pairs(rows, "output_tokens_per_s", per_gpu=True, same_load=True)),
)


def ranked(cases: Sequence[Case]) -> list[Case]:
    """Closed loops that another case of equal load may be ranked with."""
    closed = [case for case in cases if case.fields["load_kind"] == "closed_loop"]
    counts = collections.Counter(statistics.load_key(case, load) for case in closed for load in statistics.LOADS)
    return [case for case in closed if any(counts[statistics.load_key(case, load)] > 1 for load in statistics.LOADS)]


def own_text(rows: Sequence[Row], *, lists: bool) -> str:
    """Pairs of own plans in the measured order, by what they are ordered."""
    table = []
    lines = []
    for what, pairs_of in OWN:
        pairs = list(pairs_of(rows))
        table.append((what, str(sum(same for *_, same in pairs)), str(len(pairs))))
        lines += [f"  {what}: {a['plan']} before {b['plan']} ({a['metric']}, {a['mode']}): measured {a['measured']:.5g} and {b['measured']:.5g},"
                  f" predicted {a['predicted']:.5g} and {b['predicted']:.5g}" for a, b, same in pairs if not same]  # fmt: skip
    head = aligned(("own plans that differ by more than 3 %", "as measured", "of pairs"), table, right=(1, 2))
    return "\n".join([head, *(lines if lists else [])])


def published_text(outcomes: Sequence[Outcome], *, lists: bool) -> str:
    """Kendall's tau over published parallelisms under equal load."""
    rankings = statistics.rankings(outcomes)
    table = [(row["load"], row["measure"], str(row["groups"]), str(row["pairs"]), f"{row['tau']:.3f}") for row in rankings.to_dict("records")]
    head = aligned(("published, equal", "by", "groups", "pairs", "Kendall tau"), table, right=(2, 3, 4))
    lines = []
    for load_name in statistics.LOADS if lists else ():
        for measure in statistics.MEASURES:
            lines += [f"  {measure}, equal {load_name}: {one}, {other} of {' '.join(str(part) for part in key if part)}: published {a:.4g} and {b:.4g},"
                      f" simulated {x:.4g} and {y:.4g}"
                      for key, one, other, (a, x), (b, y) in statistics.misordered(outcomes, load_name, measure)]  # fmt: skip
    return "\n".join([head, *lines])


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m orrery.scorecard.order", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--list", action="store_true", help="name the pairs in the other order")
    options = parser.parse_args(words)
    print(printable(own_text(load(project_root() / "docs" / "validation" / "results.json"), lists=options.list)) + "\n", flush=True)
    cases = ranked(read_cases(project_root() / "data" / "serving" / "published_serving.csv"))
    print(printable(published_text(compare(cases, threads=os.cpu_count() or 1), lists=options.list)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
