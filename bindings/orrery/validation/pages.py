"""docs/validation: results.json as pages with tables and plots.

python3 -m orrery.validation.pages [DIR…] [--alone TABLES] [-o docs/validation]     DIRs of `orrery validate` replace their plans' rows
"""

from __future__ import annotations

import argparse
import collections
import pathlib
import sys
from collections.abc import Callable, Iterable, Sequence

from . import order
from .results import Row, error, load, merge, quantile, rows_alone, rows_of, save, times_alone

TITLE = "Predicted and executed"
INTRODUCTION = """\
Plans that the simulator predicted and our executor ran, on the GPUs named, with random weights and tokens. Errors are
(predicted - measured) / measured; tables give their absolute median and 95th percentile, and the mean with its sign (bias).

* *Step time*: from the first launch of a step until its tokens are on the host; the median of up to 20 runs. Predicted is the
  simulated step and the engine's own time around it (`scenarios/engines/orrery.yaml`).
* *Kernels alone*: each kernel call of a step timed by itself as nodes of a CUDA graph (`orrery-gpu calibrate --ops`); their sum is
  what the executor's overhead is held against; they are of revision bbca38181466, since which these kernels have not changed. No prediction is
  made from these times.
* *Calibration*: kernels come from tables that were measured in other runs, at the revisions in `results.json`, and hold no row of a
  kernel call that any judged step contains (`bindings/orrery/validation/held_out.py` leaves them out, at the cost of the basis
  "measured"); which steps a service makes is not known before, so its may have some. Collectives come from `topologies/hgx-h200/*.orrery.csv`.
* *Not judged*: the engine profile takes what arithmetic costs at the power limit from `topologies/devices/h200-sxm/power_limit.csv` and, between its
  figures, FP8 GEMMs from `scenarios/validate/fit_8b_fp8.yaml`; what serving takes of the host and decodes at a throttled clock from
  `scenarios/validate/fit_serve_8b.yaml`; attention of contexts that differ from `topologies/devices/h200-sxm/uneven_attention.csv`, of up to 8
  sequences from `fit_serve_8b`. How a service's clock follows its steps was found on executed steps of earlier runs, of that plan and of
  judged ones. The share of arithmetic that the limit bears and its transition (`share`, `sim/cost/power_limit.cpp`) were chosen among ten pairs
  with an eye on judged steps as measured before, where the probes alone show a slower onset; so was the part of a warm L2's saving that a
  step has (0.4, `sim/cost`). What is judged here was measured after that.
* *Scenarios*: `scenarios/validate/<plan>.yaml`. Anyone with the GPUs repeats it: `orrery validate scenarios/validate/<plan>.yaml`;
  `kernels/tool/run_prepared.sh` runs many prepared directories within a time limit.
* *Mixtures of experts*: random weights choose experts by themselves; predictions count on even choices (`expert_load: uniform`).
* *Where*: services on one GPU ran one after the other on one H200; all else ran on a host of eight, four plans beside each other, services of two and
  four GPUs too. The program was of revision 0a53a9949db0; driver 580.159.04, CUDA 13.0. Plans of DeepSeek-V2-Lite and of four layers of DeepSeek-V3
  ran again on a host of two, services of DeepSeek-V2-Lite for the first time, with a program of revision 0a6c5ebe0356. On 2026-11-29 all plans and
  services of four GPUs but `llama_70b_pp2_tp2` ran on a host of four, one after the other, of a program of revision 3e0ce1719036 and predicted
  before with the tables of that day; at most 12 runs of a step within a second.
"""
MISSES = """\
What is known of the largest errors:

* *Decodes of one and four sequences on two GPUs, launched eagerly*: in some plans of 2026-11-22 they wait for their host, -10 to -22 %
  (`deepseek_v2_lite_tp2`, `qwen3_30b_tp2`, `qwen3_30b_ep2`): the profile had one time for a launch, 2.72 us. It has one for each kind now (3.2 us
  of kernels of rows, 4.7 of GEMMs and attention, 10.2 of exchanges), and on four GPUs such steps err by -5.5 to +4.4 %, where the profile before
  gave -41 (`qwen3_30b_tp4`). As graphs they err by -5 to +3 %. The three pairs of plans that are ordered otherwise than predicted have such a step
  of 2026-11-22.
* *Two batches that overlap* (`qwen3_30b_ep4_tbo`) take 4 to 23 % longer than predicted: a kernel with a block for each SM that finds some of them held
  takes up to twice as long, not as many more rounds.
* *`qwen3_30b_dp2_tp2_ep4`* takes 2 to 9 % longer: experts' rows of 830 tokens a rank 10 %, what moves them 15 to 28 %.
* *Services of DeepSeek-V2-Lite*: served decodes lacked the absorbed GEMMs of latent attention in all layers but two until these runs; TPOT would have
  been 2.3 and 2.2 % too short (`serve_v2_lite_closed_32`, `serve_v2_lite_azure_50`) and is -0.4 and +0.4 %. First tokens come 5 and 9 % later than
  predicted, as steps of few prompt tokens beside decodes do.
* *One decode of Qwen3-30B-A3B at a context of 16,384*, as a graph, takes 8 % less than predicted, which is not explained.
* *Decodes of 256 sequences at 512 on four GPUs* draw more than the power limit while they stream weights and compute: -3 to -8 %; on two 0 to -5 %.
* *Mixed steps* take 1 to 10 % (in two batches 13 %) longer than predicted, most in mixtures of experts: attention beside the prompts' takes longer than alone.
* *Prefills* of mixtures of experts over two and four GPUs take up to 8 % longer; of 512 tokens in two stages of Llama-3.1-70B 7 % less, and of 2,048
  tokens of Llama-3.2-1B and of Llama-3.1-8B in FP8 5 to 6 % less.
* *`serve_8b_azure_95`*: near saturation a service that is a little slower than predicted waits much longer: its steps take 1 % longer, its
  first tokens come 14 % later.
* *`serve_8b_1p1d_closed_32`*: requests of equal length go round in groups, and which prompts meet in a step of the prefill instance hangs on less
  than a percent of TPOT: its steps are right within 2 %, TTFT is not.
* *Steps of services* (`executed_step/` of a plan's page: each executed step against the price of the same batch): on the whole within 2 %; in FP8
  decodes take 3 to 5 % longer than predicted and prompts of up to 2,048 rows 4 to 8 %; part of it is that decodes right after FP8 prompts take
  up to 13 % longer than later ones, where the profile has 6 %. On two GPUs decodes of 33 to 64 and the shortest prompts take 8 % longer. Both show
  at half load.
* *KV transfers* of Llama-3.1-8B take 0.58 ms where 0.44 are predicted: beside a decode step they reach 280 GB/s, the table is of idle GPUs. What a
  request waits for one is a whole decode step or nearly nothing: 9 of 60 did where 3 are predicted, 0.70 and 0.23 ms on average.
* *The GPU itself*: decodes of up to 8 sequences took 4.50, 4.50 and 4.57 ms, steps with 1,025 to 2,048 prompt tokens 30.1, 30.4 and 31.3 ms in three
  runs of `fit_serve_8b` on H200s, with nearly the same code.
"""
UNSEEN = """\
Models that no calibration point was placed for, at sizes that no table was measured at (`scenarios/validate/unseen`, `scenarios/validate/h100`); of
mixtures of experts with the default load of a scenario, imposed on the router. No figure above counts them, none of what is fitted has seen them.
"""
OTHER_GPU = """\
The plans above on one H100 (`scenarios/validate/h100`), predicted from tables and probes of an H100 (`topologies/devices/h100-sxm/orrery`).
"""
MEMORY_TERM_LIMITS = (0.10, 0.2e9)
DETAILS_BELOW = "[{plan}]({plan}.md)"
STEP_LIMITS = (0.03, 0.08)
OVERHEAD_LIMIT = 0.03
MEMORY_LIMIT = 0.03
TRANSFORMERS_LIMIT = 1.2
SERVICE_LIMITS = {"tpot_mean": 0.05, "tpot_p99": 0.10, "ttft_mean": 0.08, "ttft_p99": 0.15}


def readme(rows: Sequence[Row], decodes: Sequence[Row]) -> str:
    """The first page; `decodes` are the rows of transformers.json."""
    lines = [f"# {TITLE}", "", INTRODUCTION]
    dates = sorted({row["date"] for row in rows})
    unseen = [row for row in rows if "unseen_" in row["plan"]]
    other_gpu = [row for row in rows if row["plan"].startswith("h100_") and row not in unseen]
    rows = [row for row in rows if row not in unseen and row not in other_gpu]
    lines += [f"{len(rows)} figures of {len(_by_plan(rows))} plans, measured {' and '.join(dates)}.", "", "## Aims", "", *_aims(rows, decodes), ""]
    steps = _of(rows, "step_time/")
    if steps:
        lines += ["## Step times", "", "![error of predicted step times over their length](errors.svg)", "", *_error_table(steps, "plan", lambda row: row["plan"]),
                  "", *_error_table(steps, "steps", _kind), ""]  # fmt: skip
    service = [row for row in rows if row["mode"] == "serve"]
    if service:
        lines += ["## Serving", "", *_service_table(service), ""]
    if steps or service:
        lines += ["## Misses", "", MISSES]
    memory = _of(rows, "memory/total/")
    if memory:
        lines += ["## Memory", "", "Bytes in use on a GPU at the end of a run, everything included.", "",
                  "| plan | rank | predicted GiB | measured GiB | error |", "|---|---|---|---|---|"]  # fmt: skip
        lines += [f"| {row['plan']} | {row['metric'].removeprefix('memory/total/rank')} | {row['predicted'] / 2**30:.2f} | {row['measured'] / 2**30:.2f} "
                  f"| {_percent(error(row))} |" for row in memory] + [""]  # fmt: skip
    for title, words, group in (("Not calibrated for", UNSEEN, unseen), ("One H100", OTHER_GPU, other_gpu)):
        lines += _apart(title, words, group)
    if decodes:
        lines += ["## Beside transformers", "", *_transformers_table(decodes), ""]
    return "\n".join(lines)


def _apart(title: str, words: str, rows: Sequence[Row]) -> list[str]:
    """A section of plans that no figure before counts; nothing where there are none."""
    if not rows:
        return []
    lines = [f"## {title}", "", words]
    if steps := _of(rows, "step_time/"):
        lines += [f"{_inside(rows)}", "", *_error_table(steps, "plan", lambda row: row["plan"]), "", *_error_table(steps, "steps", _kind), ""]
    if service := [row for row in rows if row["mode"] == "serve"]:
        lines += [*_service_table(service), ""]
    if memory := _of(rows, "memory/"):
        share, least = MEMORY_TERM_LIMITS
        far = [row for row in memory if abs(error(row)) > share and abs(row["predicted"] - row["measured"]) > least]
        worst = ", ".join(f"{row['plan']} {row['metric'].removeprefix('memory/')} {_percent(error(row))}" for row in far)
        lines += [f"Terms of memory within {100 * share:.0f} % or {least / 2**30:.1f} GiB: {len(memory) - len(far)} of {len(memory)}" + (f"; not: {worst}." if far else "."), ""]
    return lines


def _inside(rows: Sequence[Row]) -> str:
    """How many steps lie in their 80 % intervals."""
    ends = {(row["plan"], row["metric"], row["mode"]): row["predicted"] for row in rows}
    steps = [row for row in _of(rows, "step_low/")]
    inside = sum(row["predicted"] <= row["measured"] <= ends[row["plan"], row["metric"].replace("step_low/", "step_high/"), row["mode"]] for row in steps)
    return f"In their 80 % intervals: {inside} of {len(steps)} steps, {100 * inside / max(1, len(steps)):.0f} %."


def plan_page(plan: str, rows: Sequence[Row]) -> str:
    """Every figure of one plan."""
    first = rows[0]
    lines = [f"# {plan}", "", f"{first['model']} on {first['gpus']} GPU{'s' if first['gpus'] > 1 else ''}, measured {first['date']}; "
             f"tables of revision {first['calibration_revision']}.", ""]  # fmt: skip
    if _of(rows, "step_time/"):
        lines += [f"![error of predicted step times of {plan}]({plan}.svg)", ""]
    lines += ["| figure | mode | predicted | measured | error | basis |", "|---|---|---|---|---|---|"]
    for row in rows:
        lines.append(f"| {row['metric']} | {row['mode'] or '-'} | {_value(row['predicted'], row['unit'])} | {_value(row['measured'], row['unit'])} "
                     f"| {_percent(error(row))} | {row['basis'] or '-'} |")  # fmt: skip
    return "\n".join([*lines, ""])


def render(rows: Sequence[Row], decodes: Sequence[Row], directory: pathlib.Path) -> None:
    """Writes README.md, a page per plan and the plots."""
    (directory / "README.md").write_text(readme(rows, decodes), encoding="utf-8")
    steps = _of(rows, "step_time/")
    if steps:
        _plot(steps, lambda row: row["plan"], directory / "errors.svg")
    for plan, group in _by_plan(rows).items():
        (directory / f"{plan}.md").write_text(plan_page(plan, group), encoding="utf-8")
        if steps := _of(group, "step_time/"):
            _plot(steps, _kind, directory / f"{plan}.svg")


def _by_plan(rows: Iterable[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["plan"], []).append(row)
    return groups


def _of(rows: Iterable[Row], prefix: str) -> list[Row]:
    return [row for row in rows if row["metric"].startswith(prefix)]


def _kind(row: Row) -> str:
    """ "prefill", "decode, graph", "mixed", ..."""
    name = row["metric"].removeprefix("step_time/")
    kind = next((word for word in ("prefill", "decode", "mixed") if name.startswith(word)), "other")
    return f"decode, {row['mode']}" if kind == "decode" else kind


def _percent(value: float) -> str:
    return f"{100 * value:+.1f} %"


def _value(value: float, unit: str) -> str:
    if unit == "s":
        return f"{1e3 * value:.3f} ms"
    return f"{value / 2**30:.3f} GiB" if unit == "bytes" else f"{value:,.1f} {unit}"


def _errors(rows: Iterable[Row]) -> list[float]:
    return [abs(error(row)) for row in rows]


def _error_table(rows: Sequence[Row], heading: str, group_of: Callable[[Row], str]) -> list[str]:
    groups: dict[str, list[Row]] = collections.defaultdict(list)
    for row in rows:
        groups[group_of(row)].append(row)
    lines = [f"| {heading} | figures | median | p95 | bias | worst |", "|---|---|---|---|---|---|"]
    for name, group in [*sorted(groups.items()), ("all", list(rows))]:
        errors = _errors(group)
        worst = max(group, key=lambda row: abs(error(row)))
        shown = DETAILS_BELOW.format(plan=name) if heading == "plan" and name != "all" else name
        lines.append(f"| {shown} | {len(group)} | {100 * quantile(errors, 0.5):.1f} % | {100 * quantile(errors, 0.95):.1f} % "
                     f"| {_percent(sum(map(error, group)) / len(group))} | {_percent(error(worst))} "
                     f"({worst['plan']}, {worst['metric'].removeprefix('step_time/')}, {worst['mode']}) |")  # fmt: skip
    return lines


def _service_table(rows: Sequence[Row]) -> list[str]:
    names = [*SERVICE_LIMITS, "output_tokens_per_s", "executed_step/all"]
    lines = ["Measured, and the error of the prediction.", "", "| plan | TPOT mean | TPOT p99 | TTFT mean | TTFT p99 | output tokens/s | a step, mean, for the batches executed |",
             "|---|---|---|---|---|---|---|"]  # fmt: skip
    for plan, group in _by_plan(rows).items():
        found = {row["metric"]: row for row in group}
        cells = [f"{_value(found[name]['measured'], found[name]['unit'])}, {_percent(error(found[name]))}" if name in found else "-" for name in names]
        lines.append(f"| {DETAILS_BELOW.format(plan=plan)} | " + " | ".join(cells) + " |")
    return lines


def _transformers_table(decodes: Sequence[Row]) -> list[str]:
    lines = ["A token of greedy decoding on the same GPU in one run: our step in graph mode, tokens on the host included, against transformers with a",
             "static cache, `torch.compile(mode=\"reduce-overhead\")` and its faster way of the two (host waiting for each token, or tokens queued);",
             "`kernels/compare/llama_decode.py`.", "",
             "| model | batch | context | ours | transformers | ratio | versions |", "|---|---|---|---|---|---|---|"]  # fmt: skip
    for row in decodes:
        lines.append(f"| {row['model']} | {row['batch']} | {row['context']} | {1e3 * row['ours_s']:.3f} ms | {1e3 * row['transformers_s']:.3f} ms "
                     f"| {row['ratio']:.2f} | torch {row['torch']}, transformers {row['transformers']} |")  # fmt: skip
    return lines


def _aims(rows: Sequence[Row], decodes: Sequence[Row]) -> list[str]:
    """What was aimed at, what was reached."""
    lines = ["| aim | reached | |", "|---|---|---|"]

    def add(aim: str, figure: str, is_reached: bool | None) -> None:
        lines.append(f"| {aim} | {figure} | {'not measured' if is_reached is None else 'reached' if is_reached else 'missed'} |")

    errors = _errors(_of(rows, "step_time/"))
    if errors:
        median, p95 = quantile(errors, 0.5), quantile(errors, 0.95)
        add("step time, all plans: median error at most 3 %, p95 8 %", f"{100 * median:.1f} %, {100 * p95:.1f} % of {len(errors)} steps",
            median <= STEP_LIMITS[0] and p95 <= STEP_LIMITS[1])  # fmt: skip
    else:
        add("step time, all plans: median error at most 3 %, p95 8 %", "-", None)
    for name, limit in SERVICE_LIMITS.items():
        figures = [row for row in rows if row["metric"] == name]
        worst = max(figures, key=lambda row: abs(error(row)), default=None)
        aim = f"{name.replace('_', ' ').replace('tpot', 'TPOT').replace('ttft', 'TTFT')} under load: error at most {100 * limit:.0f} %"
        reached = sum(abs(error(row)) <= limit for row in figures)
        add(aim, f"{reached} of {len(figures)} services; worst {_percent(error(worst))} ({worst['plan']})" if worst else "-",
            reached == len(figures) if worst else None)  # fmt: skip
    for what, per_gpu in (("TPOT", False), ("throughput", True)):
        agreed, pairs = order.steps(rows, per_gpu=per_gpu)
        add(f"order of plans by {what}, of a model's decode steps that differ by more than 3 %: as measured", f"{agreed} of {pairs} pairs" if pairs else "-",
            agreed == pairs if pairs else None)  # fmt: skip
    for what, metric, per_gpu in (("mean TPOT", "tpot_mean", False), ("throughput", "output_tokens_per_s", False),
                                  ("throughput of a GPU", "output_tokens_per_s", True)):  # fmt: skip
        agreed, pairs = order.services(rows, metric, per_gpu=per_gpu)
        agreed_same, pairs_same = order.services(rows, metric, per_gpu=per_gpu, same_load=True)
        add(f"order of services by {what}, of a model and trace, that differ by more than 3 %: as measured",
            f"{agreed} of {pairs} pairs" + (f" ({agreed_same} of {pairs_same} of equal load)" if pairs_same else "") if pairs else "-",
            agreed == pairs if pairs else None)  # fmt: skip
    overheads = overheads_of(rows)
    aim = "single-GPU decode step in graph mode, 8B, batch 1 and 64: at most the sum of its kernels' times + 3 %"
    worst_name = max(overheads, key=lambda name: overheads[name], default=None)
    add(aim, f"{_percent(overheads[worst_name])} at worst ({worst_name})" if worst_name else "-",
        overheads[worst_name] <= OVERHEAD_LIMIT if worst_name else None)  # fmt: skip
    judged = [row for row in decodes if row["batch"] == 1]
    ratio = min((row["ratio"] for row in judged), default=None)
    add("Llama-3.1-8B decode, batch 1, against transformers with torch.compile and CUDA graphs: at least 1.2 times as fast",
        f"{ratio:.2f} x at least" if ratio else "-", ratio >= TRANSFORMERS_LIMIT if ratio else None)  # fmt: skip
    memory = _of(rows, "memory/total/")
    worst_memory = max(memory, key=lambda row: abs(error(row)), default=None)
    add("peak memory of a GPU: error at most 3 %", f"{_percent(error(worst_memory))} at worst ({worst_memory['plan']})" if worst_memory else "-",
        abs(error(worst_memory)) <= MEMORY_LIMIT if worst_memory else None)  # fmt: skip
    return lines


def overheads_of(rows: Iterable[Row]) -> dict[str, float]:
    """Measured step time over the summed times of its kernels alone, less 1: decodes of Llama-3.1-8B on one GPU, batch 1 and 64."""
    return {row["metric"].removeprefix("kernels_alone/"): row["measured"] / row["predicted"] - 1 for row in rows
            if row["plan"] == "llama_8b" and row["metric"].startswith(("kernels_alone/decode_1_", "kernels_alone/decode_64_"))}  # fmt: skip


def _plot(rows: Sequence[Row], group_of: Callable[[Row], str], path: pathlib.Path) -> None:
    """Error over measured time, one mark per step."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "orrery", "font.size": 9})
    from matplotlib import pyplot

    names = sorted({group_of(row) for row in rows})
    many = [*matplotlib.colormaps["tab20"].colors, *matplotlib.colormaps["tab20b"].colors]
    colors = many if len(names) > 10 else matplotlib.colormaps["tab10"].colors
    legend = 0.17 * (len(names) + 2) + 0.2  # inches
    figure, axes = pyplot.subplots(figsize=(9.2, max(3.9, legend)), layout="constrained")
    for i, name in enumerate(names):
        for mode, marker in (("graph", "o"), ("eager", "^")):
            group = [row for row in rows if group_of(row) == name and row["mode"] == mode]
            if group:
                axes.plot([1e3 * row["measured"] for row in group], [100 * error(row) for row in group], marker, color=colors[i % len(colors)], markersize=4.5,
                          markerfacecolor="none" if mode == "eager" else colors[i % len(colors)], linestyle="none")  # fmt: skip
    for limit in (0.03, 0.08):
        axes.axhspan(-100 * limit, 100 * limit, color="grey", alpha=0.12, linewidth=0)
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("measured step time [ms]")
    axes.set_ylabel("error of the prediction [%]")
    axes.grid(True, alpha=0.25)
    dots = {name: {"marker": "o", "color": colors[i % len(colors)]} for i, name in enumerate(names)}
    modes = {"graph": {"marker": "o", "color": "grey"}, "eager": {"marker": "^", "color": "grey", "markerfacecolor": "none"}}
    handles = [pyplot.Line2D([], [], linestyle="none", markersize=4.5, label=name, **look) for name, look in (dots | modes).items()]
    figure.legend(handles=handles, fontsize=7, loc="outside right upper", framealpha=0.6)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main(arguments: Sequence[str]) -> int:
    """Merges directories into results.json and writes the pages again."""
    from ..simulation import project_root

    parser = argparse.ArgumentParser(prog="orrery.validation.pages", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("directories", nargs="*", type=pathlib.Path, metavar="DIR", help="directories of orrery validate")
    parser.add_argument("-o", "--output", type=pathlib.Path, default=project_root() / "docs/validation", help="where results.json lies")
    parser.add_argument("--alone", type=pathlib.Path, metavar="TABLES", help="kernels of these steps timed one by one, by orrery-gpu calibrate --ops")
    options = parser.parse_args(arguments)
    rows = load(options.output / "results.json")
    times = times_alone(options.alone) if options.alone else {}
    for directory in options.directories:
        rows = merge(rows, [*rows_of(directory), *rows_alone(directory, times)])
    options.output.mkdir(parents=True, exist_ok=True)
    save(options.output / "results.json", rows)
    render(rows, load(options.output / "transformers.json"), options.output)
    print(options.output / "README.md")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
