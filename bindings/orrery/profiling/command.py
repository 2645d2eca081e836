"""`orrery profile recipe` and `orrery profile load`."""

from __future__ import annotations

import argparse
import asyncio
import json
import pathlib
import sys

from .. import files
from ..arguments import whole_number
from ..text_table import printable

_ENGINES = ("vllm", "sglang", "trtllm", "transformers")
_RECIPE = files.Kind("recipe", required=("trace.sh",), names=("trace.sh", "load.py", "requests/*.jsonl"))


def add_options(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    plan = actions.add_parser("recipe", help="which batches of an engine to trace for a scenario, and a script that does it")
    plan.add_argument("run", type=pathlib.Path, metavar="RUN", help="run directory, or a scenario, which is simulated")
    plan.add_argument("--engine", required=True, choices=_ENGINES)
    plan.add_argument("--model", metavar="NAME", help="what the server serves (the scenario's model)")
    plan.add_argument("-o", "--output", type=pathlib.Path, metavar="DIR", help="write the script, its client and its requests there")
    plan.add_argument("--force", action="store_true", help="replace an earlier recipe in DIR")
    plan.set_defaults(command=_recipe)
    load = actions.add_parser("load", help="replay a scenario's requests on a server and write what orrery compare reads")
    load.add_argument("url", metavar="URL", help="OpenAI-compatible server, http://HOST:PORT")
    source = load.add_mutually_exclusive_group(required=True)
    source.add_argument("--run", type=pathlib.Path, metavar="RUN", help="run directory, or a scenario, whose requests are sent")
    source.add_argument("--requests", type=pathlib.Path, metavar="FILE.jsonl", help="requests: start_s, prompt_tokens, output_tokens a line")
    load.add_argument("--model", metavar="NAME", help="model as the server calls it (the scenario's)")
    load.add_argument("--concurrency", type=whole_number(0, 1 << 20), default=0, metavar="N", help="most requests at once (no limit)")
    load.add_argument("--timeout", type=float, default=600.0, metavar="S", help="seconds after which a request has failed (600)")
    load.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("bench.json"), metavar="FILE", help="where to write (bench.json)")
    load.add_argument("--force", action="store_true", help="replace FILE")
    load.set_defaults(command=_load)


def _recipe(options: argparse.Namespace) -> int:
    from .. import finished_run
    from . import load as client
    from . import recipe

    run = finished_run.open_run(options.run)
    config = str(run.scenario["model"]["config"])
    model = options.model or config
    phases = recipe.phases_of(run)
    if options.output is not None and options.engine != "transformers":
        with files.publishing(options.output, _RECIPE, force=options.force) as folder:
            (folder / "requests").mkdir()
            for name, text in recipe.files_of(phases).items():
                files.write_text(folder / name, text)
            files.write_text(folder / "load.py", pathlib.Path(client.__file__).read_text(encoding="utf-8"))
            script = folder / "trace.sh"
            files.write_text(script, recipe.script_of(options.engine, model, config, phases))
            script.chmod(0o755)
    print(recipe.text_of(options.engine, model, phases, str(options.output or "DIR")))
    return 0


def _load(options: argparse.Namespace) -> int:
    from . import load

    if options.output.exists() and not options.force:
        raise FileExistsError(f"'{options.output}' exists; expected a new file, or --force to replace it")
    if not options.timeout > 0:
        raise ValueError(f"found --timeout {options.timeout:g}; expected seconds above 0")
    model = options.model or "model"
    if options.requests is not None:
        if not options.requests.is_file():
            raise ValueError(f"found no file '{options.requests}'; expected a JSON line for each request")
        requests = load.read_requests(options.requests)
    else:
        from .. import finished_run

        run = finished_run.open_run(options.run)
        model = options.model or str(run.scenario["model"]["config"])
        found = run.requests
        first = float(min(found["arrival_s"]))
        starts = [float(at) - first for at in found["arrival_s"]]
        requests = load.requests_of(starts, list(map(int, found["prompt_tokens"])), list(map(int, found["output_tokens"])))
    records = asyncio.run(load.replay(options.url, model, requests, timeout_s=options.timeout, concurrency=options.concurrency))
    bench = load.bench_of(model, records)
    files.write_text(options.output, json.dumps(bench))
    failed = [error for error in bench["errors"] if error]
    print(f"{bench['completed']} of {bench['num_prompts']} requests ended, {bench['output_throughput']:.1f} tokens/s")
    for error in dict.fromkeys(failed):
        print(f"failed: {failed.count(error)} requests: {printable(error)}", file=sys.stderr)
    print(f"written: {options.output}; orrery compare RUN {options.output}")
    return 1 if failed else 0
