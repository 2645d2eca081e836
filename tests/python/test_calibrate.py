"""`orrery calibrate`: what it installs, and every way in which it cannot run. No GPU is needed."""

import json
import os
import pathlib
import re
import shutil
import stat
import subprocess

import pytest

from orrery import calibrate

ROOT = pathlib.Path(__file__).resolve().parents[2]

META = """provider: orrery
device: h200-sxm
units: "text with tables: in it"
tables:
  gemm:
    rows: 2
    measured_with:
      revision: "abc"
"""
ROWS = "dtype,m,n,k,time_us,spread,samples,l2,mode,sm_clock_mhz,power_capped,power_w,sustained_us\n" \
       "bf16,16,256,512,7.5,0.004,5,cold,graph,1980,0,,\nbf16,16,256,512,5,0.004,5,warm,graph,1980,0,,\n"

COLLECTIVE = "implementation,version,mode,dtype,num_gpus,bytes,time_us,spread,samples\nnccl,2.28.3,graph,bf16,2,256,5.6,0.001,11\n"

# Stands in for orrery-gpu: writes down its arguments and the tables of a calibration.
FAKE = """#!/bin/sh
echo "$@" >> "{log}"
what=$1
while [ "$1" != -o ]; do shift; done
mkdir -p "$2"
if [ "$what" = time ]; then cp "{tables}/../all_reduce.csv" "$2"; else cp "{tables}"/* "$2"; fi
exit {code}
"""


@pytest.fixture
def gpu_program(tmp_path, monkeypatch):
    """Makes a stand-in with that exit code; returns the file in which its arguments are."""
    def make(code=0):
        tables = tmp_path / "tables"
        tables.mkdir()
        (tables / "meta.yaml").write_text(META)
        (tables / "gemm.csv").write_text(ROWS)
        (tmp_path / "all_reduce.csv").write_text(COLLECTIVE)
        program = tmp_path / "orrery-gpu"
        program.write_text(FAKE.format(log=tmp_path / "log", tables=tables, code=code))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("ORRERY_GPU", str(program))
        return tmp_path / "log"
    return make


@pytest.fixture
def topologies(tmp_path):
    device = tmp_path / "topologies" / "devices" / "h200-sxm"
    device.mkdir(parents=True)
    shutil.copy(ROOT / "topologies" / "devices" / "h200-sxm" / "device.yaml", device)
    return tmp_path / "topologies"


def test_tables_land_with_the_device_and_options_are_passed_on(workdir, gpu_program, topologies):
    log = gpu_program()
    result = workdir.orrery("calibrate", "--quick", "--kernels", "gemm", "--device", "1", "--into", topologies)
    assert result.returncode == 0, result.stderr
    assert log.read_text().split() == "calibrate -o calibration --device 1 --kernels gemm --quick".split()
    installed = topologies / "devices" / "h200-sxm" / "orrery"
    assert (installed / "gemm.csv").read_text() == ROWS
    assert (installed / "meta.yaml").read_text() == META
    assert str(installed) in result.stdout


PROBES = "device,driver,cuda,sm_clock_mhz,power_limit_w,probe,parameters,unit,median,spread,samples\n" + "".join(
    f"NVIDIA H100 80GB HBM3,580,13.0,1980,700,{probe},,us,{us},0.01,51\n"
    for probe, us in (("eager_enqueue", 3.25), ("graph_launch", 2.0), ("d2h_sync", 15.5)))
POWER_LIMIT = "series,kernel,share_of_time,full_ms,late_ms,longer,onset_ms,calls,sm_clock_mhz\n" + "".join(
    f'"{series}",{kernel},1,1,1,{longer},,10,1500\n'
    for series, kernel, longer in (("bf16", "bf16", 1.1), ("6 bf16, 1 attention", "bf16", 1.06), ("fp8", "fp8", 1.2),
                                   ("6 fp8, 2 attention", "fp8", 1.1), ("6 bf16, 1 attention", "attention", 1.21)))
UNEVEN = "heads,kv_heads,batch,context,even_us,uneven_us\n32,8,8,700,10,19\n32,8,16,700,15,21\n32,8,64,700,40,48\n"


def test_the_gpus_own_costs_become_its_engine_profile(topologies, tmp_path):
    measured = tmp_path / "measured"
    (measured / "device").mkdir(parents=True)
    (measured / "meta.yaml").write_text(META)
    (measured / "gemm.csv").write_text(ROWS)
    for name, text in (("probes.csv", PROBES), ("power_limit.csv", POWER_LIMIT), ("uneven_attention.csv", UNEVEN)):
        (measured / "device" / name).write_text(text)
    target = calibrate.install(measured, topologies)
    assert (target / "device" / "power_limit.csv").read_text() == POWER_LIMIT
    profile = (target.parent / "engine.orrery.yaml").read_text()
    assert re.findall(r"^\w+", profile, re.MULTILINE) == ["host", "kernel_time", "power_limit"]
    values = dict(re.findall(r"^  (\w+): {value: ([^,]+), source", profile, re.MULTILINE))
    # graph_launch + d2h_sync; the mean of 6 and 8 us more, the batch of 8 left out; means of alone and between.
    assert values == {"eager_launch": "3.25 us", "d2h_sync": "15.5 us", "scheduler_base": "17.5 us",
                      "uneven_attention": "7.0 us", "product": "1.08", "narrow_product": "1.15", "attention": "1.21"}


def test_a_probe_that_is_missing_installs_nothing(topologies, tmp_path):
    measured = tmp_path / "measured"
    (measured / "device").mkdir(parents=True)
    (measured / "meta.yaml").write_text(META)
    (measured / "gemm.csv").write_text(ROWS)
    (measured / "device" / "probes.csv").write_text(PROBES.replace("d2h_sync", "other"))
    (measured / "device" / "power_limit.csv").write_text(POWER_LIMIT)
    with pytest.raises(ValueError, match="found no row of d2h_sync"):
        calibrate.install(measured, topologies)
    assert not (topologies / "devices" / "h200-sxm" / "orrery").exists()


def test_collectives_land_with_the_machine_that_is_named(workdir, gpu_program, topologies):
    log = gpu_program()
    (topologies / "pair.yaml").write_text("")
    result = workdir.orrery("calibrate", "--machine", "pair", "--into", topologies)
    assert result.returncode == 0, result.stderr
    assert log.read_text().splitlines()[1] == "time collectives -o calibration/collectives"
    assert (topologies / "pair" / "all_reduce.orrery.csv").read_text() == COLLECTIVE
    meta = (topologies / "pair" / "meta.orrery.yaml").read_text()
    assert "machine: pair\n" in meta
    assert '\nmeasured_with:\n  revision: "abc"\n' in meta


def test_a_machine_that_is_not_described_is_refused_before_measuring(workdir, gpu_program, topologies):
    log = gpu_program()
    (topologies / "pair.yaml").write_text("")
    result = workdir.orrery("calibrate", "--machine", "peer", "--into", topologies)
    assert result.returncode == 2
    assert "peer.yaml; there are pair" in result.stderr
    assert not log.exists()


def test_tables_of_a_host_without_python_are_installed_without_measuring(workdir, gpu_program, topologies, tmp_path):
    log = gpu_program()
    result = workdir.orrery("calibrate", "--from", tmp_path / "tables", "--into", topologies)
    assert result.returncode == 0, result.stderr
    assert (topologies / "devices" / "h200-sxm" / "orrery" / "gemm.csv").read_text() == ROWS
    assert not log.exists()


@pytest.fixture
def root(topologies, monkeypatch):
    """A project of its own whose h200-sxm has no tables yet."""
    for name in ("models", "scenarios", "data"):
        (topologies.parent / name).symlink_to(ROOT / name)
    for entry in (ROOT / "topologies").glob("*.yaml"):
        (topologies / entry.name).symlink_to(entry)
    monkeypatch.setenv("ORRERY_ROOT", str(topologies.parent))
    return topologies.parent


def test_a_scenario_names_the_provider_and_is_priced_by_its_cold_graph_rows(workdir, gpu_program, root):
    gpu_program()
    workdir.replace("provider: vllm-0.24.0", "provider: orrery")
    before = workdir.run("--json")
    assert before.returncode == 2 and "unknown provider of h200-sxm 'orrery'" in before.stderr
    assert workdir.orrery("calibrate").returncode == 0
    assert _core_rows(root) == {"gemm": 1}, "the warm row is not for the simulator"
    result = workdir.run("--json")
    assert result.returncode == 0, result.stderr
    assert "orrery" in json.loads(result.stdout)["provenance"]["kernel_tables"]


def _core_rows(root):
    from orrery import _core

    return _core.provider_rows(str(root / "topologies" / "devices" / "h200-sxm" / "orrery"))


def test_the_exit_code_of_the_program_is_passed_on_and_nothing_installed(workdir, gpu_program, topologies):
    gpu_program(code=2)
    assert workdir.orrery("calibrate", "--into", topologies).returncode == 2
    assert not (topologies / "devices" / "h200-sxm" / "orrery").exists()


def test_a_program_that_was_killed_is_a_failure(workdir, gpu_program, topologies, tmp_path):
    gpu_program()
    (tmp_path / "orrery-gpu").write_text("#!/bin/sh\nkill -9 $$\n")
    assert workdir.orrery("calibrate", "--into", topologies).returncode == 1


def test_tables_of_other_kernels_stay(topologies):
    old = META.replace("gemm", "rope").replace("abc", "old")
    text = calibrate.merged(old, META)
    assert text.index("  gemm:") < text.index("  rope:")
    assert 'revision: "old"' in text and 'revision: "abc"' in text
    assert text.count("provider:") == 1


def test_a_table_measured_again_replaces_what_was_said_of_it():
    assert calibrate.merged(META.replace("abc", "old"), META) == META


def test_single_rows_take_the_place_of_their_points_and_the_others_stay():
    new = ROWS.splitlines()[0] + "\nbf16,16,256,512,6,0.001,5,cold,graph,1980,0,,\nbf16,8,256,512,4,0.001,5,cold,graph,1980,0,,\n"
    lines = calibrate.merged_rows(ROWS, new).splitlines()
    assert lines[1:] == ["bf16,16,256,512,6,0.001,5,cold,graph,1980,0,,", "bf16,16,256,512,5,0.004,5,warm,graph,1980,0,,",
                         "bf16,8,256,512,4,0.001,5,cold,graph,1980,0,,"]  # fmt: skip


def test_single_rows_with_other_columns_are_refused():
    with pytest.raises(ValueError, match="the new rows have columns"):
        calibrate.merged_rows(ROWS, ROWS.replace("dtype,m", "dtype,rows"))


def test_what_is_known_of_a_table_stays_beside_what_is_said_of_its_newer_rows():
    new = META.replace("abc", "new")
    once = calibrate.remeasured(META, new, "gemm", 3, 1)
    assert "    rows: 3\n" in once
    assert once.index('revision: "abc"') < once.index("    remeasured_rows: 1\n    remeasured_with:\n      revision: \"new\"\n")
    # A second time names both, and a third of the same revision nothing new.
    twice = calibrate.remeasured(once, META.replace("abc", "newer"), "gemm", 6, 2)
    assert twice.count("remeasured_with") == 1 and '      revision: "new, newer"\n' in twice
    assert "    remeasured_rows: 3\n" in twice
    thrice = calibrate.remeasured(twice, META.replace("abc", "newer"), "gemm", 6, 5)
    assert '      revision: "new, newer"\n' in thrice and "    remeasured_rows: 6\n" in thrice


def test_installing_single_rows_keeps_the_table(gpu_program, topologies, tmp_path):
    gpu_program()
    target = calibrate.install(tmp_path / "tables", topologies)
    (tmp_path / "tables" / "gemm.csv").write_text(ROWS.replace(",16,256,", ",32,256,"))
    calibrate.install(tmp_path / "tables", topologies, keep_rows=True)
    assert len((target / "gemm.csv").read_text().splitlines()) == 5  # a header and two rows of each
    assert "    rows: 4\n" in (target / "meta.yaml").read_text()


def test_a_gpu_without_a_device_file_is_named(tmp_path, gpu_program, topologies):
    gpu_program()
    (tmp_path / "tables" / "meta.yaml").write_text(META.replace("h200-sxm", "unknown-gpu"))
    with pytest.raises(ValueError, match=r"unknown-gpu: found no device\.yaml"):
        calibrate.install(tmp_path / "tables", topologies)


@pytest.mark.parametrize("arguments, part", [
    (("--into", "nowhere"), "nowhere"),
    (("--from", "nowhere"), "found no tables in 'nowhere'"),
    (("--budget", "soon"), "--budget"),
    (("--device", "first"), "--device"),
])
def test_bad_arguments(workdir, gpu_program, arguments, part):
    gpu_program()
    result = workdir.orrery("calibrate", *arguments)
    assert result.returncode == 2
    assert part in result.stderr
    assert "Traceback" not in result.stderr


def test_a_program_that_is_not_there(workdir, monkeypatch):
    monkeypatch.setenv("ORRERY_GPU", "/nowhere/orrery-gpu")
    result = workdir.orrery("calibrate")
    assert result.returncode == 2
    assert "ORRERY_GPU names '/nowhere/orrery-gpu'" in result.stderr


def test_without_program_and_compiler_it_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.delenv("ORRERY_GPU", raising=False)
    monkeypatch.delenv("CUDACXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="no nvcc to build it with"):
        calibrate.find_program(tmp_path)


@pytest.fixture(scope="module")
def real_program():
    """orrery-gpu as built here."""
    for build in (*calibrate.BUILDS, "build-dev"):
        if os.access(program := ROOT / build / calibrate.PROGRAM, os.X_OK):
            return program
    pytest.skip("orrery-gpu is not built here: no CUDA toolkit")


def run_program(program, *arguments):
    return subprocess.run([program, "calibrate", *arguments], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("arguments, part", [
    ((), "-o DIR"),
    (("-o",), "-o needs a value"),
    (("-o", "{out}", "--kernel", "rope"), "unknown option '--kernel', nearest is '--kernels'"),
    (("-o", "{out}", "--kernels", "residul_add"), 'nearest is "residual_add"'),
    (("-o", "{out}", "--budget", "-3"), "--budget: found '-3'"),
    (("-o", "{out}", "--budget", "0"), "--budget: found '0'"),
    (("-o", "{out}", "--device", "x"), "--device: found 'x'"),
    (("-o", "{out}", "--ops", "/nowhere/ops.txt"), "/nowhere/ops.txt: cannot be read"),
    (("-o", "{out}", "--ops", "x", "--check"), "--ops says which calls are measured"),
    (("-o", "{out}", "--ops", "x", "--kernels", "gemm"), "goes without --kernels"),
])
def test_bad_usage_of_the_program_is_exit_2_and_writes_nothing(real_program, tmp_path, arguments, part):
    out = tmp_path / "out"
    result = run_program(real_program, *(argument.format(out=out) for argument in arguments))
    assert result.returncode == 2
    assert part in result.stderr
    assert not out.exists()


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there is a GPU here")
@pytest.mark.parametrize("extra", [(), ("--check",), ("--quick",)])
def test_without_a_gpu_the_program_says_so_and_exits_with_2(real_program, tmp_path, extra):
    result = run_program(real_program, "-o", tmp_path / "out", *extra)
    assert result.returncode == 2
    assert "no GPU to run on" in result.stderr
    assert not (tmp_path / "out").exists()
