"""The importer of AIConfigurator's op tables: row counts, units, bad input, and that shipped files are its output."""

import csv
import gzip
import importlib.util
import math
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOPOLOGIES = ROOT / "topologies"
SOURCES = ROOT.parent / "shared" / "data" / "kernels"

_spec = importlib.util.spec_from_file_location(
    "orrery_aiconfigurator_importer", ROOT / "bindings" / "orrery" / "importers" / "aiconfigurator.py"
)
aiconfigurator = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = aiconfigurator
_spec.loader.exec_module(aiconfigurator)

# directory, kernel, rows of the source without its header
SHIPPED = [
    ("devices/h200-sxm/vllm-0.24.0", "gemm", 107225),
    ("devices/h200-sxm/vllm-0.24.0", "attention_prefill", 50830),
    ("devices/h200-sxm/vllm-0.24.0", "attention_decode", 62166),
    ("devices/h200-sxm/vllm-0.24.0", "mla_prefill_module", 3886),
    ("devices/h200-sxm/vllm-0.24.0", "mla_decode_module", 5888),
    ("devices/h200-sxm/vllm-0.24.0", "moe", 48762),
    ("devices/h200-sxm/vllm-0.24.0", "quantize", 1628),
    ("devices/h200-sxm/trtllm-1.3.0rc20", "mla_prefill", 1760),
    ("devices/h200-sxm/trtllm-1.3.0rc20", "mla_decode", 2896),
    ("devices/h200-sxm/trtllm-1.3.0rc20", "batched_gemm", 848),
    ("devices/h100-sxm/vllm-0.24.0", "gemm", 107188),
    ("devices/h100-sxm/vllm-0.24.0", "attention_prefill", 50830),
    ("devices/h100-sxm/vllm-0.24.0", "attention_decode", 62166),
    ("devices/h100-sxm/vllm-0.24.0", "moe", 49862),
    ("hgx-h200", "all_reduce", 516),
    ("hgx-h200", "all_gather", 378),
    ("hgx-h200", "reduce_scatter", 378),
    ("hgx-h200", "all_to_all", 378),
    ("hgx-h100", "all_reduce", 516),
]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as handle:
        return list(csv.DictReader(handle))


def write_source(directory: Path, name: str, text: str) -> None:
    opener = gzip.open if name.endswith(".gz") else open
    with opener(directory / name, "wt") as handle:
        handle.write(text)


GEMM_HEADER = "framework,version,device,op_name,kernel_source,gemm_dtype,m,n,k,latency\n"


@pytest.mark.parametrize(("directory", "kernel", "rows"), SHIPPED)
def test_shipped_tables_have_every_row_of_their_source(directory: str, kernel: str, rows: int) -> None:
    assert len(rows_of(TOPOLOGIES / directory / f"{kernel}.csv")) == rows
    assert f"  {kernel}:\n    rows: {rows}\n" in (TOPOLOGIES / directory / "meta.yaml").read_text()


def test_shipped_tables_name_source_and_licence() -> None:
    for meta in TOPOLOGIES.glob("**/meta.yaml"):
        text = meta.read_text()
        if "ai-dynamo/aiconfigurator" not in text:
            continue
        assert "licence: Apache-2.0" in text
        assert "NVIDIA CORPORATION" in text
        assert "microseconds" in text
        assert "SPDX-License-Identifier: Apache-2.0" in (meta.parent / "NOTICE").read_text()
    assert "Apache License" in (TOPOLOGIES / "LICENSE-APACHE-2.0").read_text()


def test_shipped_tables_stay_small_enough_for_git() -> None:
    total = sum(path.stat().st_size for path in TOPOLOGIES.rglob("*") if path.is_file())
    assert total < 25e6


@pytest.mark.skipif(not SOURCES.is_dir(), reason="the source tables (../shared) are not here")
def test_importing_again_gives_the_shipped_files(tmp_path: Path) -> None:
    for gpu in ("h200", "h100"):
        source = SOURCES / f"aiconfigurator_{gpu}"
        arguments = [str(source), str(tmp_path), "--device", f"{gpu}-sxm", "--machine", f"hgx-{gpu}"]
        assert aiconfigurator.main(arguments) == 0
    arguments = [str(SOURCES / "aiconfigurator_h200"), str(tmp_path), "--engine", "trtllm", "--version", "1.3.0rc20",
                 "--device", "h200-sxm", "--kernels", "mla_decode", "mla_prefill", "batched_gemm"]
    assert aiconfigurator.main(arguments) == 0
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) > 20
    for path in written:
        shipped = TOPOLOGIES / path.relative_to(tmp_path)
        assert path.read_bytes() == shipped.read_bytes(), f"{shipped}: run the importer again (docs/data.md)"


def test_milliseconds_become_microseconds_and_values_keep_six_digits(tmp_path: Path) -> None:
    write_source(tmp_path, "gemm_vllm_1.csv.gz", GEMM_HEADER + "VLLM,1,GPU,gemm,cublas,bfloat16,3,64,32,0.0123456789\n")
    aiconfigurator.import_provider(tmp_path, tmp_path / "out", engine="vllm", version="1", device="gpu")
    (row,) = rows_of(tmp_path / "out/devices/gpu/vllm-1/gemm.csv")
    assert row == {"dtype": "bf16", "m": "3", "n": "64", "k": "32", "time_us": "12.3457", "host_bound": "0",
                   "source": "0"}


def test_elements_become_bytes_of_the_whole_buffer(tmp_path: Path) -> None:
    write_source(
        tmp_path,
        "nccl_9.csv",
        "framework,version,device,op_name,kernel_source,nccl_dtype,num_gpus,message_size,latency\n"
        "TRTLLM,9.1,GPU,alltoall,NCCL,half,4,1024,0.01\n"
        "TRTLLM,9.1,GPU,alltoall,NCCL,int8,4,1024,0.02\n",
    )
    aiconfigurator.import_collectives(tmp_path, tmp_path / "out", machine="node")
    rows = rows_of(tmp_path / "out/node/all_to_all.csv")
    assert [(row["dtype"], row["bytes"], row["time_us"]) for row in rows] == [
        ("fp16", "2048", "10"),
        ("int8", "1024", "20"),
    ]
    assert {row["version"] for row in rows} == {"9.1"}


def test_graph_and_eager_rows_are_kept_apart(tmp_path: Path) -> None:
    write_source(
        tmp_path,
        "custom_allreduce_graph_vs_eager_vllm_1.csv",
        "framework,version,device,op_name,kernel_source,allreduce_dtype,num_gpus,message_size,latency,backend\n"
        "vLLM,1,GPU,all_reduce,x,bfloat16,2,128,0.004,vllm_graph\n"
        "vLLM,1,GPU,all_reduce,x,bfloat16,2,128,0.02,vllm_eager\n",
    )
    aiconfigurator.import_collectives(tmp_path, tmp_path / "out", machine="node")
    modes = {row["mode"]: float(row["time_us"]) for row in rows_of(tmp_path / "out/node/all_reduce.csv")}
    assert modes == {"graph": 4.0, "eager": 20.0}


def test_sharded_experts_become_the_dims_of_one_rank(tmp_path: Path) -> None:
    # 160 experts over 64 ranks: rank 0 holds 160 // 64 + 1 = 3; inter 1536 over tp 1.
    write_source(
        tmp_path,
        "moe_vllm_1.csv",
        "kernel_source,moe_dtype,num_tokens,hidden_size,inter_size,topk,num_experts,moe_tp_size,moe_ep_size,"
        "distribution,latency\n"
        "x,fp8,8,4096,1536,8,160,1,64,balanced,0.1\n"
        "x,fp8,8,4096,1536,8,128,4,1,balanced,0.1\n",
    )
    aiconfigurator.import_provider(tmp_path, tmp_path / "out", engine="vllm", version="1", device="gpu")
    rows = rows_of(tmp_path / "out/devices/gpu/vllm-1/moe.csv")
    assert sorted((row["inter"], row["experts"], row["experts_total"]) for row in rows) == [
        ("1536", "3", "160"),
        ("384", "128", "128"),
    ]


def test_decode_context_counts_the_new_token(tmp_path: Path) -> None:
    write_source(
        tmp_path,
        "generation_attention_vllm_1.csv",
        "kernel_source,batch_size,isl,num_heads,num_key_value_heads,head_dim,kv_cache_dtype,step,window_size,latency\n"
        "fa3,4,1,32,8,128,fp8,1023,0,0.05\n",
    )
    aiconfigurator.import_provider(tmp_path, tmp_path / "out", engine="vllm", version="1", device="gpu")
    (row,) = rows_of(tmp_path / "out/devices/gpu/vllm-1/attention_decode.csv")
    assert (row["context"], row["dtype"], row["window"]) == ("1024", "fp8", "0")


def test_block_scaled_rows_at_the_hosts_floor_are_flagged(tmp_path: Path) -> None:
    # The fp8 twin takes 15 us, so 85 us of a DeepGEMM row is the host's floor; at 300 us it is not.
    source = "DeepGemmFp8BlockScaledMMKernel"
    rows = "".join(
        f"VLLM,1,GPU,gemm,{name},{dtype},{m},4096,7168,{time}\n"
        for name, dtype, m, time in [
            ("cutlass", "fp8", 64, 0.015), (source, "fp8_block", 64, 0.085),
            ("cutlass", "fp8", 8192, 0.280), (source, "fp8_block", 8192, 0.300),
        ]
    )
    write_source(tmp_path, "gemm_vllm_1.csv", GEMM_HEADER + rows)
    aiconfigurator.import_provider(tmp_path, tmp_path / "out", engine="vllm", version="1", device="gpu")
    flags = {(row["dtype"], row["m"]): row["host_bound"] for row in rows_of(tmp_path / "out/devices/gpu/vllm-1/gemm.csv")}
    assert flags == {("fp8", "64"): "0", ("fp8_block", "64"): "1", ("fp8", "8192"): "0", ("fp8_block", "8192"): "0"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("VLLM,1,GPU,gemm,x,float7,3,64,32,0.1", "dtype 'float7'"),
        ("VLLM,1,GPU,gemm,x,fp8,three,64,32,0.1", "three"),
        ("VLLM,1,GPU,gemm,x,fp8,3,64,32,-0.1", "expected more than 0"),
    ],
)
def test_a_bad_row_is_named_with_file_and_line(tmp_path: Path, row: str, message: str) -> None:
    write_source(tmp_path, "gemm_vllm_1.csv", GEMM_HEADER + "VLLM,1,GPU,gemm,x,fp8,3,64,32,0.1\n" + row + "\n")
    with pytest.raises(aiconfigurator.TableError, match=message) as error:
        aiconfigurator.import_provider(tmp_path, tmp_path / "out", engine="vllm", version="1", device="gpu")
    assert "gemm_vllm_1.csv:3:" in str(error.value)


def test_bad_usage_exits_with_two_and_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        [str(tmp_path / "none"), str(tmp_path)],
        [str(tmp_path), str(tmp_path), "--kernels", "gem"],
        [str(tmp_path), str(tmp_path), "--version", "9.9"],
    ):
        assert aiconfigurator.main(arguments) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert error.count("\n") == 1


def test_shipped_times_are_plausible_microseconds() -> None:
    # An 8192^3 bf16 GEMM is 1.1e12 FLOP: at 600 to 989 TFLOP/s 1.1 to 1.8 ms.
    rows = rows_of(TOPOLOGIES / "devices/h200-sxm/vllm-0.24.0/gemm.csv")
    (row,) = [row for row in rows if (row["dtype"], row["m"], row["n"], row["k"]) == ("bf16", "8192", "8192", "8192")]
    assert 1100 < float(row["time_us"]) < 1900
    assert math.isfinite(float(row["time_us"]))
