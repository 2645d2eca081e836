"""The importer of AIConfigurator's op tables: units, selection, bad input, Parquet, and the command line."""

import csv
import gzip
import subprocess
import sys
from pathlib import Path

import pytest
from orrery.importers import aiconfigurator


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as handle:
        return list(csv.DictReader(handle))


def write_source(directory: Path, name: str, text: str) -> None:
    opener = gzip.open if name.endswith(".gz") else open
    with opener(directory / name, "wt") as handle:
        handle.write(text)


def import_rows(directory: Path, kernel: str, engine: str = "vllm") -> list[dict[str, str]]:
    """The rows of `kernel` after importing <engine> 1 from `directory`."""
    listing = aiconfigurator.find_tables(directory)
    with aiconfigurator.staging(directory / "out") as staged:
        aiconfigurator.import_provider(listing, staged, engine=engine, version="1", device="gpu")
    return rows_of(directory / "out" / "devices" / "gpu" / f"{engine}-1" / f"{kernel}.csv")


def command(*arguments: str | Path) -> subprocess.CompletedProcess:
    words = [sys.executable, "-m", "orrery", "import", "aiconfigurator", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


GEMM_HEADER = "framework,version,device,op_name,kernel_source,gemm_dtype,m,n,k,latency\n"
GEMM_ROW = "VLLM,1,NVIDIA H200,gemm,cublas,bfloat16,3,64,32,0.1\n"
MOE_HEADER = (
    "kernel_source,moe_dtype,num_tokens,hidden_size,inter_size,topk,num_experts,moe_tp_size,moe_ep_size,"
    "distribution,latency\n"
)
PREFILL_HEADER = (
    "kernel_source,batch_size,isl,num_heads,num_key_value_heads,head_dim,attn_dtype,kv_cache_dtype,step,window_size,"
    "latency\n"
)
ALL_REDUCE = "framework,version,device,op_name,kernel_source,allreduce_dtype,num_gpus,message_size,latency"


def test_milliseconds_become_microseconds_and_values_keep_six_digits(tmp_path: Path) -> None:
    write_source(tmp_path, "gemm_vllm_1.csv.gz", GEMM_HEADER + "VLLM,1,GPU,gemm,cublas,bfloat16,3,64,32,0.0123456789\n")
    (row,) = import_rows(tmp_path, "gemm")
    assert row == {"dtype": "bf16", "m": "3", "n": "64", "k": "32", "time_us": "12.3457", "source": "0"}


def test_elements_become_bytes_of_the_whole_buffer(tmp_path: Path) -> None:
    write_source(
        tmp_path,
        "nccl_9.csv",
        "framework,version,device,op_name,kernel_source,nccl_dtype,num_gpus,message_size,latency\n"
        "TRTLLM,9.1,GPU,alltoall,NCCL,half,4,1024,0.01\n"
        "TRTLLM,9.1,GPU,alltoall,NCCL,int8,4,1024,0.02\n",
    )
    with aiconfigurator.staging(tmp_path / "out") as staged:
        aiconfigurator.import_collectives(aiconfigurator.find_tables(tmp_path), staged, machine="node")
    rows = rows_of(tmp_path / "out/node/all_to_all.csv")
    assert [(row["dtype"], row["bytes"], row["time_us"]) for row in rows] == [
        ("fp16", "2048", "10"),
        ("int8", "1024", "20"),
    ]
    assert {(row["implementation"], row["version"]) for row in rows} == {("nccl", "9.1")}


def test_custom_all_reduce_keeps_engines_and_launch_modes_apart(tmp_path: Path) -> None:
    # TensorRT-LLM's table names no mode: its calls are replayed from a CUDA graph.
    write_source(tmp_path, "custom_allreduce_graph_vs_eager_vllm_1.csv",
                 f"{ALL_REDUCE},backend\n"
                 "vLLM,1,GPU,all_reduce,x,bfloat16,2,128,0.004,vllm_graph\n"
                 "vLLM,1,GPU,all_reduce,x,bfloat16,2,128,0.02,vllm_eager\n")  # fmt: skip
    write_source(tmp_path, "custom_allreduce_sglang_2.csv",
                 f"{ALL_REDUCE},backend\nSGLang,2,GPU,all_reduce,x,bfloat16,2,128,0.03,sglang_eager\n")  # fmt: skip
    write_source(tmp_path, "custom_allreduce_trtllm_3.csv",
                 f"{ALL_REDUCE},implementation\nTRTLLM,3,GPU,all_reduce,x,bfloat16,2,128,0.0026,trtllm\n")  # fmt: skip
    with aiconfigurator.staging(tmp_path / "out") as staged:
        aiconfigurator.import_collectives(aiconfigurator.find_tables(tmp_path), staged, machine="node")
    rows = rows_of(tmp_path / "out/node/all_reduce.csv")
    assert [(row["implementation"], row["version"], row["mode"], row["time_us"]) for row in rows] == [
        ("custom_sglang", "sglang-2", "eager", "30"),
        ("custom_trtllm", "trtllm-3", "graph", "2.6"),
        ("custom_vllm", "vllm-1", "eager", "20"),
        ("custom_vllm", "vllm-1", "graph", "4"),
    ]


def test_sharded_experts_become_the_dims_of_one_rank(tmp_path: Path) -> None:
    # 160 experts over 64 ranks: rank 0 holds 160 // 64 + 1 = 3; inter 1536 over tp 4 is 384.
    write_source(
        tmp_path,
        "moe_vllm_1.csv",
        MOE_HEADER + "x,fp8,8,4096,1536,8,160,1,64,balanced,0.1\nx,fp8,8,4096,1536,8,128,4,1,balanced,0.1\n",
    )
    assert sorted((row["inter"], row["experts"], row["experts_total"]) for row in import_rows(tmp_path, "moe")) == [
        ("1536", "3", "160"),
        ("384", "128", "128"),
    ]


def test_rows_left_out_are_counted_in_meta(tmp_path: Path) -> None:
    # One row stays; then a format without a name here, experts without a gate, and experts split over 8 x 4 GPUs.
    write_source(
        tmp_path,
        "moe_trtllm_1.csv",
        MOE_HEADER + "x,fp8,8,4096,1536,8,128,8,2,balanced,0.1\n"
        "x,nvfp4,8,4096,1536,8,128,1,1,balanced,0.1\n"
        "x,bfloat16,8,2688,1856,6,128,1,1,balanced,0.1\n"
        "x,fp8,8,4096,1536,8,128,8,4,balanced,0.1\n"
        "x,fp8,16,4096,1536,8,128,8,4,balanced,0.1\n",
    )
    (row,) = import_rows(tmp_path, "moe", "trtllm")
    assert (row["inter"], row["experts"]) == ("192", "64")
    meta = (tmp_path / "out/devices/gpu/trtllm-1/meta.yaml").read_text()
    assert "rows: 1\n" in meta
    assert '"format nvfp4 has no name here": 1\n' in meta
    assert "Nemotron-H" in meta
    assert 'over more than 16 GPUs": 2\n' in meta


def test_a_table_of_which_nothing_is_left_writes_no_file(tmp_path: Path) -> None:
    write_source(tmp_path, "moe_vllm_1.csv", MOE_HEADER + "x,nvfp4,8,4096,1536,8,128,1,1,balanced,0.1\n")
    write_source(tmp_path, "gemm_vllm_1.csv", GEMM_HEADER + GEMM_ROW)
    assert len(import_rows(tmp_path, "gemm")) == 1
    assert not (tmp_path / "out/devices/gpu/vllm-1/moe.csv").exists()


def test_of_several_implementations_of_one_point_the_fastest_is_kept(tmp_path: Path) -> None:
    write_source(
        tmp_path,
        "context_attention_trtllm_1.csv",
        PREFILL_HEADER + "flow,1,128,8,8,128,bfloat16,fp8,0,0,0.020\nflow,1,128,8,8,128,fp8,fp8,0,0,0.009\n"
        "flow,1,256,8,8,128,bfloat16,fp8,0,0,0.030\nflow,1,256,8,8,128,fp8,fp8,0,0,0.100\n",
    )
    rows = import_rows(tmp_path, "attention_prefill", "trtllm")
    assert [(row["query"], row["time_us"], row["source"]) for row in rows] == [("128", "9", "1"), ("256", "30", "0")]
    meta = (tmp_path / "out/devices/gpu/trtllm-1/meta.yaml").read_text()
    assert '1: "flow, fp8 arithmetic"' in meta
    assert 'timed with several": 2\n' in meta


def test_decode_context_counts_the_new_token(tmp_path: Path) -> None:
    write_source(
        tmp_path,
        "generation_attention_vllm_1.csv",
        "kernel_source,batch_size,isl,num_heads,num_key_value_heads,head_dim,kv_cache_dtype,step,window_size,latency\n"
        "fa3,4,1,32,8,128,fp8,1023,0,0.05\n",
    )
    (row,) = import_rows(tmp_path, "attention_decode")
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
    )  # fmt: skip
    write_source(tmp_path, "gemm_vllm_1.csv", GEMM_HEADER + rows)
    flags = {(row["dtype"], row["m"]): row["host_bound"] for row in import_rows(tmp_path, "gemm")}
    assert flags == {("fp8", "64"): "0", ("fp8_block", "64"): "1", ("fp8", "8192"): "0", ("fp8_block", "8192"): "0"}


def test_parquet_in_the_published_layout_gives_the_same_table_as_csv(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    for directory in ("csv", "published/trtllm/1"):
        (tmp_path / directory).mkdir(parents=True)
    text = "T,1,GPU,gemm,f,fp8,3,64,32,0.0123456789\nT,1,GPU,gemm,f,fp8,1,64,32,0.01\n"
    write_source(tmp_path / "csv", "gemm_trtllm_1.csv", GEMM_HEADER + text)
    names = GEMM_HEADER.strip().split(",")
    rows = [("T", "1", "GPU", "gemm", "f", "fp8", m, 64, 32, t) for m, t in ((3, 0.0123456789), (1, 0.01))]
    columns = {name: list(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}
    parquet.write_table(pyarrow.table(columns), tmp_path / "published/trtllm/1/gemm_perf.parquet")
    assert import_rows(tmp_path / "published", "gemm", "trtllm") == import_rows(tmp_path / "csv", "gemm", "trtllm")


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gemm_vllm_1.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(aiconfigurator.TableError, match=r"pip install 'orrery\[parquet\]'"):
        import_rows(tmp_path, "gemm")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("VLLM,1,GPU,gemm,x,float7,3,64,32,0.1", "dtype 'float7'; expected one of bfloat16"),
        ("VLLM,1,GPU,gemm,x,fp8,three,64,32,0.1", "column m: found 'three'; expected a whole number"),
        ("VLLM,1,GPU,gemm,x,fp8,3,64,32,-0.1", "latency -0.1; expected more than 0"),
        ("VLLM,1,GPU,gemm,x,fp8,3,64,32,nan", "latency nan; expected more than 0"),
        ("VLLM,1,GPU,gemm,x,fp8,3,64,32,inf", "latency inf; expected milliseconds, from 1 ns to an hour"),
        ("VLLM,1,GPU,gemm,x,fp8,3,64,32,1e308", "latency 1e308; expected milliseconds, from 1 ns to an hour"),
        ("VLLM,1,GPU,gemm,x,fp8,3,64,32,1e-300", "latency 1e-300; expected milliseconds"),
        ("VLLM,1,GPU,gemm,x,fp8,3,64,32,soon", "latency soon; expected more than 0"),
        ("VLLM,1,GPU,gemm,x,fp8,0,64,32,0.1", "m is 0; expected 1 or more"),
        ("VLLM,1,GPU,gemm,x,fp8,3,-1,32,0.1", "column n: found '-1'; expected a whole number"),
        ("VLLM,1,GPU,gemm,x,fp8,3,64,99999999999999999999,0.1", "column k: found '9999"),
        ("VLLM,1,GPU,gemm,x,fp8,3", "found 7 cells; the header has 10"),
    ],
)
def test_a_bad_row_is_named_with_file_and_line(tmp_path: Path, row: str, message: str) -> None:
    write_source(tmp_path, "gemm_vllm_1.csv", GEMM_HEADER + GEMM_ROW + row + "\n")
    with pytest.raises(aiconfigurator.TableError, match=message) as error:
        import_rows(tmp_path, "gemm")
    assert "gemm_vllm_1.csv:3:" in str(error.value)


def test_an_unknown_kv_format_is_not_taken_for_a_missing_column(tmp_path: Path) -> None:
    header = "kernel_source,gemm_type,kv_cache_dtype,batch_size,isl,step,num_heads,latency\n"
    write_source(tmp_path, "mla_context_module_vllm_1.csv", header + "x,bfloat16,fp6,1,128,0,16,0.1\n")
    with pytest.raises(aiconfigurator.TableError, match="kv_cache_dtype 'fp6'; expected one of bfloat16, fp8"):
        import_rows(tmp_path, "mla_prefill_module")


def test_a_missing_column_is_named_with_those_found(tmp_path: Path) -> None:
    write_source(tmp_path, "gemm_vllm_1.csv", "m,n,k,gemm_dtype,time\n3,64,32,fp8,0.1\n")
    with pytest.raises(aiconfigurator.TableError, match="no column 'latency'; found m, n, k, gemm_dtype, time"):
        import_rows(tmp_path, "gemm")


def test_a_table_held_by_two_files_is_an_error(tmp_path: Path) -> None:
    write_source(tmp_path, "gemm_vllm_1.csv", GEMM_HEADER + GEMM_ROW)
    write_source(tmp_path, "gemm_vllm_1.csv.gz", GEMM_HEADER + GEMM_ROW)
    with pytest.raises(aiconfigurator.TableError, match="hold the same table"):
        import_rows(tmp_path, "gemm")


def test_a_damaged_gzip_file_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "gemm_vllm_1.csv.gz").write_text("no gzip")
    with pytest.raises(aiconfigurator.TableError, match=r"gemm_vllm_1\.csv\.gz: .*expected gzipped CSV"):
        import_rows(tmp_path, "gemm")


def test_the_command_lists_what_it_finds_and_imports_every_engine(tmp_path: Path) -> None:
    for engine in ("vllm", "trtllm"):
        write_source(tmp_path, f"gemm_{engine}_1.csv", GEMM_HEADER + GEMM_ROW)
    write_source(tmp_path, "mamba_vllm_1.csv", "latency\n1\n")
    done = command(tmp_path, "--into", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert "vllm 1 kernels: gemm\n" in done.stdout
    assert "vllm 1 not imported: mamba\n" in done.stdout
    # The rows name the device.
    assert sorted(path.name for path in (tmp_path / "out/devices/h200-sxm").iterdir()) == ["trtllm-1", "vllm-1"]


def test_the_command_imports_one_engine_on_request(tmp_path: Path) -> None:
    for engine in ("vllm", "trtllm"):
        write_source(tmp_path, f"gemm_{engine}_1.csv", GEMM_HEADER + GEMM_ROW)
    done = command(tmp_path, "--engine", "trtllm", "--device", "own", "--kernels", "gemm", "--into", tmp_path / "out")
    assert (done.returncode, done.stdout) == (0, "own/trtllm-1\n  gemm: 1 rows\n")
    assert [path.name for path in (tmp_path / "out/devices").iterdir()] == ["own"]


def published(directory: Path) -> dict[str, str]:
    """Every file below, hidden ones too, with its text."""
    return {str(path.relative_to(directory)): path.read_text() for path in sorted(directory.rglob("*")) if path.is_file()}


def test_tables_that_are_there_are_replaced_by_force_alone(tmp_path: Path) -> None:
    write_source(tmp_path, "gemm_vllm_1.csv", GEMM_HEADER + GEMM_ROW)
    assert command(tmp_path, "--into", tmp_path / "out").returncode == 0
    before = published(tmp_path / "out")
    write_source(tmp_path, "gemm_vllm_1.csv", GEMM_HEADER + GEMM_ROW.replace("0.1", "0.2"))
    done = command(tmp_path, "--into", tmp_path / "out")
    assert done.returncode == 2
    assert "devices/h200-sxm/vllm-1' has gemm.csv; expected none of them, or --force" in done.stderr
    assert published(tmp_path / "out") == before
    assert command(tmp_path, "--into", tmp_path / "out", "--force").returncode == 0
    assert "bf16,3,64,32,200,0" in published(tmp_path / "out")["devices/h200-sxm/vllm-1/gemm.csv"]


def test_a_kernel_imported_later_leaves_the_others_and_what_is_said_of_them(tmp_path: Path) -> None:
    write_source(tmp_path, "gemm_vllm_1.csv", GEMM_HEADER + GEMM_ROW)
    assert command(tmp_path, "--into", tmp_path / "out").returncode == 0
    gemm = published(tmp_path / "out")["devices/h200-sxm/vllm-1/gemm.csv"]
    (tmp_path / "gemm_vllm_1.csv").unlink()
    write_source(tmp_path, "context_attention_vllm_1.csv", PREFILL_HEADER + "fa3,1,128,8,8,128,bfloat16,fp8,0,0,0.02\n")
    done = command(tmp_path, "--device", "h200-sxm", "--into", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    files = published(tmp_path / "out/devices/h200-sxm/vllm-1")
    assert files["gemm.csv"] == gemm
    assert "\n  gemm:\n    rows: 1\n" in files["meta.yaml"] and "\n  attention_prefill:\n    rows: 1\n" in files["meta.yaml"]


def test_a_later_table_that_is_bad_leaves_everything_as_it_was(tmp_path: Path) -> None:
    write_source(tmp_path, "gemm_vllm_1.csv", GEMM_HEADER + GEMM_ROW)
    assert command(tmp_path, "--into", tmp_path / "out").returncode == 0
    before = published(tmp_path / "out")
    write_source(tmp_path, "gemm_trtllm_1.csv", GEMM_HEADER + GEMM_ROW)  # a whole provider, before the bad one
    write_source(tmp_path, "gemm_vllm_1.csv", GEMM_HEADER + GEMM_ROW.replace("0.1", "0.2"))
    write_source(tmp_path, "generation_attention_vllm_1.csv", "kernel_source,batch_size,isl,num_heads,num_key_value_heads,"
                 "head_dim,kv_cache_dtype,step,window_size,latency\nfa3,4,1,32,8,128,fp8,1023,0,0.05\nfa3,0,1,32,8,128,fp8,1023,0,0.05\n")  # fmt: skip
    done = command(tmp_path, "--device", "h200-sxm", "--into", tmp_path / "out", "--force")
    assert done.returncode == 2
    assert "generation_attention_vllm_1.csv:3: batch is 0; expected 1 or more" in done.stderr
    assert published(tmp_path / "out") == before


def test_nothing_is_written_outside_the_directory(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    write_source(tmp_path / "source", "gemm_vllm_1.csv", GEMM_HEADER + GEMM_ROW)
    write_source(tmp_path / "source", "nccl_9.csv", "framework,version,device,op_name,kernel_source,nccl_dtype,num_gpus,message_size,latency\n"
                 "TRTLLM,9.1,GPU,alltoall,NCCL,half,4,1024,0.01\n")  # fmt: skip
    before = published(tmp_path)
    for option in ("--device", "--machine"):
        for name in ("../../escape", "/tmp/escape", "..", "a/b", "line\nbreak"):
            done = command(tmp_path / "source", option, name, "--into", tmp_path / "a" / "out")
            assert done.returncode == 2
            assert "expected letters, digits and '._+-', no path" in done.stderr
            assert published(tmp_path) == before


def test_a_line_without_an_end_is_an_error_and_is_not_read_whole(tmp_path: Path) -> None:
    for row in ("x" * (1 << 18) + "\n", '"' + "x\n" * (1 << 17), "\0" * (1 << 20)):
        write_source(tmp_path, "gemm_vllm_1.csv.gz", GEMM_HEADER + row)
        with pytest.raises(aiconfigurator.TableError, match=r"gemm_vllm_1\.csv\.gz:\d+: .*expected CSV"):
            import_rows(tmp_path, "gemm")


def test_a_gzip_file_that_expands_without_end_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aiconfigurator.reading, "LARGEST_TABLE", 1 << 20)
    rows = "".join(f"VLLM,1,NVIDIA H200,gemm,cublas,bfloat16,{m},64,32,0.1\n" for m in range(1, 40_000))
    write_source(tmp_path, "gemm_vllm_1.csv.gz", GEMM_HEADER + rows)
    with pytest.raises(aiconfigurator.TableError, match="holds more than 1,048,576 characters"):
        import_rows(tmp_path, "gemm")


def test_a_gzip_file_with_a_damaged_middle_is_an_error_with_its_name(tmp_path: Path) -> None:
    write_source(tmp_path, "gemm_vllm_1.csv.gz", GEMM_HEADER + GEMM_ROW * 1000)
    data = bytearray((tmp_path / "gemm_vllm_1.csv.gz").read_bytes())
    data[40:60] = b"\xff" * 20
    (tmp_path / "gemm_vllm_1.csv.gz").write_bytes(data)
    with pytest.raises(aiconfigurator.TableError, match=r"gemm_vllm_1\.csv\.gz: .*expected gzipped CSV"):
        import_rows(tmp_path, "gemm")


def test_bad_usage_exits_with_two_and_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write_source(tmp_path, "gemm_vllm_1.csv", GEMM_HEADER + GEMM_ROW.replace("NVIDIA H200", "RIVA 128"))
    for arguments, message in (
        ([tmp_path / "none"], "none is not a directory"),
        ([tmp_path / "empty"], "holds no table; expected files such as"),
        ([tmp_path, "--kernels", "gem"], "found kernel 'gem'; expected one of gemm"),
        ([tmp_path, "--engine", "vllm", "--version", "9.9"], "no such table of vllm 9.9; found vllm 1"),
        ([tmp_path, "--version", "1"], "without --engine"),
        ([tmp_path], "gemm_vllm_1.csv:2: device 'RIVA 128'; expected one of"),
        ([tmp_path, "--device", "x", "--machine", "y"], "no collective table; expected nccl_<version>.csv"),
    ):
        done = command(*arguments, "--into", tmp_path / "out")
        assert done.returncode == 2, arguments
        assert message in done.stderr
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
