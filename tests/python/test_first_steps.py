"""What somebody types first: names instead of paths, the same command twice, what is here, files to start from."""

import json
import os
import subprocess

import orrery
import pytest
from orrery import arguments, calibrate, doctor, hardware, simulation


@pytest.fixture
def here(workdir):
    """A command in a directory of its own, `here.folder`."""

    def command(*words):
        return workdir.orrery(*words)

    command.folder = workdir.directory
    return command


def printed(result):
    assert result.returncode == 0, result.stderr
    return result.stdout


SMALL = ("--set", "workload={closed_loop: {concurrency: 2, num_requests: 4, prompt_tokens: 64, output_tokens: 8}}", "--no-report")


def test_a_shipped_scenario_runs_by_its_name_twice_and_keeps_the_first_run(here):
    assert printed(here("run", "quickstart", "--quiet", *SMALL)) == "runs/quickstart\n"
    first = (here.folder / "runs/quickstart/summary.json").read_bytes()
    assert printed(here("run", "quickstart", "--quiet", *SMALL)) == "runs/quickstart-2\n"
    assert (here.folder / "runs/quickstart/summary.json").read_bytes() == first
    assert printed(here("run", "quickstart", "--quiet", "--force", *SMALL)) == "runs/quickstart\n"  # replaces, as it says


def test_a_file_goes_before_a_scenario_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert arguments.scenario_file("quickstart") == simulation.project_root() / "scenarios" / "quickstart.yaml"
    (tmp_path / "quickstart").touch()
    assert str(arguments.scenario_file("quickstart")) == "quickstart"


def test_plan_is_another_name_of_explore(here):
    question = ("--model", "llama-3.1-8b", "--gpu", "h200-sxm", "--rate", "2", "--prompt", "200", "--output", "20", "--ttft", "p99=1s", "--json")
    plans = [json.loads(printed(here(command, *question, "-o", command))) for command in ("plan", "explore")]
    assert plans[0]["best"] == plans[1]["best"]


def test_quiet_says_no_warning(here):
    loud, quiet = (here("run", "quickstart", "--set", "provider=none", *SMALL, *words) for words in ((), ("-q",)))
    assert "warning" in loud.stderr
    assert quiet.stderr == ""


def test_json_of_a_run_says_what_was_asked_and_reads_as_the_same_scenario(here):
    found = json.loads(printed(here("run", "quickstart", "--json", *SMALL)))
    assert found["schema_version"] == 1
    assert found["requests"] == 4
    asked = orrery.Scenario.from_dict(found["inputs"])
    assert asked.machine == "hgx-h200"
    assert orrery.simulate(asked).summary.ttft_s == found["ttft_s"]


@pytest.mark.parametrize("command", ["models", "machines", "devices", "providers", "kernels"])
def test_listings_have_a_line_or_an_entry_for_each_thing(here, command):
    lines = printed(here(command)).splitlines()
    found = json.loads(printed(here(command, "--json")))
    assert found["schema_version"] == 1
    assert len(found[command]) == len(lines) - 1


def test_devices_name_the_machines_that_have_them(here):
    found = {device["name"]: device for device in json.loads(printed(here("devices", "--json")))["devices"]}
    assert "hgx-h200" in found["h200-sxm"]["machines"]
    assert found["h200-sxm"]["hbm_capacity_bytes"] == 141 * 2**30
    assert "vllm-0.24.0" in found["h200-sxm"]["providers"]


def test_a_machine_by_its_name_takes_another_size(here):
    words = ("run", "quickstart", "--json", "--set", "machine=h200-cluster", "--set", "machine.num_gpus=16", "--set", "placement.replicas=4")
    assert json.loads(printed(here(*words, *SMALL)))["num_gpus"] == 16


def test_all_keys_that_are_missing_are_named_at_once(here):
    (here.folder / "q.yaml").write_text("question: q\n", encoding="utf-8")
    result = here("run", "q.yaml")
    assert result.returncode == 2
    assert "q.yaml:1:1: missing keys 'model', 'machine', 'workload'" in result.stderr


@pytest.mark.parametrize(
    ("machine", "profile", "provider"),
    [
        ("hgx-h200", "vllm", "vllm-0.24.0"),
        ("hgx-h200", "vllm_eager", "vllm-0.24.0"),
        ("hgx-h200", "sglang", "sglang-0.5.14"),
        ("hgx-h100", "sglang", "sglang-0.5.14"),  # of the H200: the H100's tables of SGLang are exchanges of experts alone
        ("hgx-h200", "trtllm", "trtllm-1.3.0rc20"),
        ("hgx-h100", "orrery", "orrery"),
        ("mi300x-node", "vllm", "none"),
    ],
)
def test_a_scenario_without_a_provider_gets_the_newest_of_its_engine_and_says_so(machine, profile, provider):
    scenario = orrery.Scenario.from_dict({
        "model": {"config": "llama-3.1-8b"}, "machine": machine, "engine": {"profile": profile},
        "workload": {"closed_loop": {"concurrency": 1, "num_requests": 2, "prompt_tokens": 8, "output_tokens": 2}},
    })  # fmt: skip
    assert scenario.provider == provider
    assert any(f"provider {provider} is chosen" in warning for warning in orrery.simulate(scenario).warnings)
    named = scenario.replace(provider=provider)
    assert not any("is chosen" in warning for warning in orrery.simulate(named).warnings)
    assert orrery.simulate(named).summary.ttft_s == orrery.simulate(scenario).summary.ttft_s


def test_a_new_scenario_and_a_new_machine_run_as_they_are(here):
    printed(here("new", "scenario", "mine"))
    printed(here("new", "machine", "lab", "--device", "l40s", "--gpus", "4", "--link", "pcie4"))
    found = json.loads(printed(here("run", "mine.yaml", "--json", "--set", "machine=./lab.yaml", "--set", "placement.replicas=1", *SMALL)))
    assert found["num_gpus"] == 4
    lines = printed(here("new", "machine", "amd", "--device", "mi300x", "--gpus", "2")) + "lab.yaml; next: orrery run llama_8b_closed_loop --set machine=./lab.yaml"
    for command in (line.partition("next: orrery ")[2].split() for line in lines.splitlines()):  # what is proposed works
        printed(here(*command, "-q", *SMALL))
    again = here("new", "machine", "lab")
    assert again.returncode == 2
    assert "'lab.yaml' exists" in again.stderr


def test_set_names_files_from_the_working_directory(here):
    """A shell completes them from there, wherever the scenario lies; what is not there is looked for beside the scenario."""
    trace = "arrival_s,prompt_tokens,output_tokens\n0,10,2\n1,10,2\n2,10,2\n"
    (here.folder / "sub").mkdir()
    (here.folder / "mine.csv").write_text(trace, encoding="utf-8")
    (here.folder / "sub" / "beside.csv").write_text(trace.rpartition("2,10")[0], encoding="utf-8")
    printed(here("new", "scenario", "sub", "--like", "llama_8b_closed_loop"))
    (here.folder / "sub.yaml").rename(here.folder / "sub" / "s.yaml")
    for scenario, file, num_requests in (("quickstart", "./mine.csv", 3), ("sub/s.yaml", "mine.csv", 3), ("sub/s.yaml", "beside.csv", 2)):
        found = json.loads(printed(here("run", scenario, "--json", "--no-report", "--set", f"workload={{trace: {file}}}")))
        assert found["requests"] == num_requests, (scenario, file)


def machine_file(folder, device):
    text = f"name: own\nkind: single_gpu\ndevice: {device}\nnum_gpus: 1\n"
    (folder / "own.yaml").write_text(text, encoding="utf-8")
    return {"model": {"config": "llama-3.1-8b"}, "machine": str(folder / "own.yaml"), "provider": "vllm-0.24.0",
            "workload": {"closed_loop": {"concurrency": 1, "num_requests": 2, "prompt_tokens": 8, "output_tokens": 2}}}  # fmt: skip


def test_a_device_may_stand_in_the_machine_beside_it_or_say_what_differs(tmp_path):
    file = simulation.project_root() / "topologies" / "devices" / "l40s" / "device.yaml"
    (tmp_path / "gpus").mkdir()
    (tmp_path / "gpus" / "device.yaml").write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    inline = "\n" + "".join(f"  {line}\n" for line in file.read_text(encoding="utf-8").splitlines())
    found = [orrery.simulate(orrery.Scenario.from_dict(machine_file(tmp_path, device))).summary.tpot_s
             for device in ("l40s", "gpus", "gpus/device.yaml", "{like: l40s}", inline)]  # fmt: skip
    assert all(each == found[0] for each in found)


def test_a_device_like_another_has_its_own_memory(tmp_path):
    larger = "{like: h100-sxm, name: h100-nvl, hbm_capacity: 94 GiB}"
    sizes = [orrery.simulate(orrery.Scenario.from_dict(machine_file(tmp_path, device))).summary.memory_per_gpu["hbm_bytes"]
             for device in ("h100-sxm", larger)]  # fmt: skip
    assert sizes == [80 * 2**30, 94 * 2**30]


@pytest.mark.parametrize(("device", "words"), [
    ("{like: l40}", "unknown device 'l40'; did you mean 'l40s'?"),
    ("{like: l40s, hbm: 1 GB}", "device: unknown key 'hbm'"),
    ("{name: x}", "missing key 'vendor'"),
    ("nowhere", "unknown device 'nowhere'"),
])  # fmt: skip
def test_a_device_that_is_none_is_refused_by_name(tmp_path, device, words):
    with pytest.raises(orrery.ScenarioError, match="own.yaml") as error:
        orrery.Scenario.from_dict(machine_file(tmp_path, device))
    assert words in str(error.value)


def test_gpus_are_those_of_the_driver_or_its_devices(tmp_path):
    assert hardware.nvidia_gpus(tmp_path) == []
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    assert hardware.nvidia_gpus(tmp_path) == ["NVIDIA GPU"] * 2
    card = tmp_path / "proc/driver/nvidia/gpus/0000:01:00.0"
    card.mkdir(parents=True)
    (card / "information").write_text("Model: \t NVIDIA H200\nIRQ: 7\n", encoding="utf-8")
    assert hardware.nvidia_gpus(tmp_path) == ["NVIDIA H200"]


def test_nothing_is_built_where_there_is_no_gpu(monkeypatch, tmp_path):
    monkeypatch.delenv("ORRERY_GPU", raising=False)
    monkeypatch.setattr(hardware, "nvidia_gpus", lambda: [])
    monkeypatch.setenv("CUDACXX", "nvcc")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("something was built"))
    (tmp_path / "CMakePresets.json").touch()
    with pytest.raises(ValueError, match="no NVIDIA GPU here"):
        calibrate.find_program(tmp_path)


@pytest.mark.parametrize(("gpus", "nvcc", "why"), [
    ([], True, "no NVIDIA GPU here"), (["NVIDIA H200"], True, ""), (["NVIDIA H200"], False, "no orrery-gpu, and no nvcc to build it with"),
])  # fmt: skip
def test_doctor_says_why_a_command_cannot_run(monkeypatch, gpus, nvcc, why):
    monkeypatch.setattr(hardware, "nvidia_gpus", lambda: gpus)
    monkeypatch.setattr(calibrate, "built_program", lambda _: None)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}" if nvcc else None)
    assert doctor.facts()["commands"]["validate, calibrate"] == why


@pytest.mark.parametrize(("words", "completed"), [
    (["orrery", "sat"], ["saturate"]), (["orrery", "run", "quick"], ["quickstart"]), (["orrery", "run", "--fo"], ["--force", "--format"]),
    (["orrery", "run", "--format", "p"], ["parquet"]), (["orrery", "doctor", "--"], ["--help", "--json"]),
])  # fmt: skip
def test_bash_completes_commands_options_and_names(here, tmp_path, words, completed):
    script = tmp_path / "completion.bash"
    script.write_text(printed(here("completion", "bash")), encoding="utf-8")
    ask = f'source {script}; COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}; _orrery; printf "%s\\n" "${{COMPREPLY[@]}}"'
    found = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True, cwd=here.folder, env=dict(os.environ))
    assert sorted(found.stdout.split()) == completed


def test_every_command_has_help_and_those_with_arguments_an_example(here):
    for command in ("run", "explain", "explore", "saturate", "report", "calibrate", "emit", "compare", "validate", "scorecard", "moe", "new"):
        assert f"examples:\n  orrery {command} " in printed(here(command, "--help"))


def asked(machine, profile="vllm", model="llama-3.1-8b", **engine):
    return orrery.Scenario.from_dict({
        "model": {"config": model}, "machine": machine, "provider": "none", "engine": {"profile": profile, **engine},
        "workload": {"closed_loop": {"concurrency": 1, "num_requests": 2, "prompt_tokens": 8, "output_tokens": 2}},
    }).to_dict(resolved=True)["engine"]  # fmt: skip


@pytest.mark.parametrize(("machine", "profile", "seqs", "tokens"), [
    ("hgx-h200", "vllm", 1024, 8192),
    ("hgx-h100", "vllm_eager", 1024, 8192),  # 80 GiB
    ("hgx-a100", "vllm", 256, 2048),  # 75 GiB, but vLLM leaves the A100 out
    ("hgx-h200", "sglang", 2048, 8192),
    ("hgx-a100", "sglang", 2048, 8192),
    ("hgx-a100", "trtllm", 2048, 8192),
])  # fmt: skip
def test_batches_are_limited_as_the_engine_limits_them_on_the_gpu(machine, profile, seqs, tokens):
    engine = asked(machine, profile)
    assert (engine["max_num_seqs"], engine["max_num_batched_tokens"]) == (seqs, tokens)
    assert engine["enable_prefix_caching"]


def test_a_gpu_of_48_gb_gets_the_limits_of_small_ones(tmp_path):
    engine = orrery.Scenario.from_dict(machine_file(tmp_path, "l40s") | {"provider": "none"}).to_dict(resolved=True)["engine"]
    assert (engine["max_num_seqs"], engine["max_num_batched_tokens"]) == (256, 2048)


def test_a_default_number_of_sequences_gives_way_to_a_token_budget_that_is_stated():
    assert asked("hgx-h200", max_num_batched_tokens=512)["max_num_seqs"] == 512
    with pytest.raises(orrery.ScenarioError, match="expected at least max_num_seqs, 1024"):
        asked("hgx-h200", max_num_batched_tokens=512, max_num_seqs=1024)


def test_a_token_budget_of_one_side_limits_the_sequences_of_that_side():
    found = orrery.Scenario.from_dict({
        "model": {"config": "llama-3.1-8b"}, "machine": "hgx-h200", "provider": "none",
        "disaggregation": {"prefill": {}, "decode": {"max_num_batched_tokens": 512}},
        "workload": {"closed_loop": {"concurrency": 1, "num_requests": 2, "prompt_tokens": 8, "output_tokens": 2}},
    }).to_dict(resolved=True)  # fmt: skip
    assert found["engine"]["max_num_seqs"] == 1024
    assert found["disaggregation"]["decode"]["max_num_seqs"] == 512
    assert orrery.Scenario.from_dict(found).to_dict(resolved=True) == found


def test_prefixes_are_kept_by_default_but_of_models_whose_layers_keep_a_state():
    assert not asked("hgx-h200", model="qwen3.5-397b-a17b")["enable_prefix_caching"]
    assert asked("hgx-h200", model="qwen3.5-397b-a17b", enable_prefix_caching=True)["enable_prefix_caching"]


def test_a_question_in_one_line_takes_an_own_machine(here):
    """`--machine FILE` as `machine: FILE` in a scenario; a GPU without a machine says how to write one."""
    printed(here("new", "machine", "lab", "--device", "l40s", "--gpus", "4", "--link", "pcie4"))
    words = ("explore", "--model", "qwen3-8b", "--rate", "1", "--prompt", "200", "--output", "20", "--ttft", "2s", "--json")
    found = json.loads(printed(here(*words, "--machine", "lab.yaml", "-o", "own")))
    assert found["basis"]["machine"] == str(here.folder / "lab.yaml")
    assert found["best"]["num_gpus"] == 1
    for option, says in (
        (("--gpu", "h200"), "did you mean 'h200-sxm'?"),
        (("--gpu", "ascend-910b"), "orrery new machine NAME --device ascend-910b"),
        (("--machine", "l40-node"), "did you mean 'l40s-node'?"),
    ):
        result = here(*words, *option)
        assert result.returncode == 2 and says in result.stderr, result.stderr


@pytest.mark.parametrize(("card", "rate"), [("h100-nvl", 3900e9), ("l4", 300e9), ("a10", 600e9), ("a40", 696e9), ("l40s", 864e9),
                                            ("rtx-4090", 1008e9), ("rtx-5090", 1792e9), ("rtx-pro-6000", 1597e9)])  # fmt: skip
def test_a_card_in_a_slot_reads_weights_no_faster_than_its_memory_gives_them(card, rate):
    one = {"closed_loop": {"concurrency": 1, "num_requests": 2, "prompt_tokens": 64, "output_tokens": 32}}
    result = orrery.simulate(orrery.Scenario(model="llama-3.1-8b", machine=f"{card}-node", workload=one, engine={"profile": "vllm"}))
    # A decode of one sequence reads all 8.03e9 parameters in bf16 but the table of tokens, 128,256 x 4,096.
    read_s = 2 * (8.03e9 - 128_256 * 4096) / rate
    assert read_s < result.summary.tpot_s["mean"] < 2.5 * read_s + 3e-3


def test_a_pcie_node_has_slots_and_beyond_two_gpus_nccls_all_reduce(here):
    """Engines' own all-reduce needs NVLink beyond two GPUs; slots have keys of their own."""

    def all_reduce(kind, key, tp):
        (here.folder / "m.yaml").write_text(f"kind: {kind}\ndevice: h200-sxm\nnum_gpus: 8\n{key}_rate: 450 GB/s\n{key}_latency: 0.6 us\n", encoding="utf-8")
        found = json.loads(printed(here("explain", "llama_8b_closed_loop", "--decodes", "1", "--set", "machine=m.yaml", "--set", f"placement.tp={tp}", "--json")))
        return next(op["time_s"] for op in found["ops"] if "o_proj.all_reduce" in op["name"])

    assert all_reduce("pcie_node", "pcie", 2) == all_reduce("nvswitch_node", "nvlink", 2)
    assert all_reduce("pcie_node", "pcie", 4) > all_reduce("nvswitch_node", "nvlink", 4)
    (here.folder / "m.yaml").write_text("kind: pcie_node\ndevice: l40s\nnum_gpus: 2\nnvlink_rate: 32 GB/s\n", encoding="utf-8")
    result = here("run", "llama_8b_closed_loop", "--set", "machine=m.yaml")
    assert result.returncode == 2 and "nvlink_rate: is of other kinds than pcie_node; expected pcie_rate" in result.stderr
