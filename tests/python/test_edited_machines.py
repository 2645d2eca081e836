"""Tables were measured on a device and on links: what becomes of their times where a machine or device file says something else."""

import os
import pathlib
import re

import orrery
import pytest
from orrery import _core

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCENARIO = """model: {config: llama-3.1-70b, weights: fp8, activations: fp8}
machine: hgx-h200
provider: PROVIDER
placement: {tp: 8}
workload: {static_batch: {batch: 16, prompt_tokens: 512, output_tokens: 16}}
"""


def linked(source, target, *without):
    """A directory whose entries are those of `source`, but for `without`."""
    target.mkdir()
    for entry in source.iterdir():
        if entry.name not in without:
            os.symlink(entry, target / entry.name)


class Tree:
    """The shipped models and topologies, of which single files can be edited."""

    def __init__(self, root):
        self.root = root / "tree"
        linked(ROOT, self.root, "topologies", "build")
        linked(ROOT / "topologies", self.root / "topologies", "devices", "hgx-h200.yaml")
        linked(ROOT / "topologies" / "devices", self.root / "topologies" / "devices", "h200-sxm")
        linked(ROOT / "topologies" / "devices" / "h200-sxm", self.root / "topologies" / "devices" / "h200-sxm", "device.yaml")
        self.edit("hgx-h200.yaml")
        self.edit("devices/h200-sxm/device.yaml")

    def edit(self, name, **scaled):
        """Writes topologies/<name> with the numbers of some keys times a factor."""
        text = (ROOT / "topologies" / name).read_text(encoding="utf-8")
        for key, factor in scaled.items():
            pattern = rf"(\b{key}:\n\s+value: )([\d.]+)"
            assert re.search(pattern, text), key
            text = re.sub(pattern, lambda found, by=factor: f"{found[1]}{float(found[2]) * by}", text)
        (self.root / "topologies" / name).write_text(text, encoding="utf-8")

    def run(self, provider="vllm-0.24.0"):
        file = self.root.parent / "scenario.yaml"
        file.write_text(SCENARIO.replace("PROVIDER", provider), encoding="utf-8")
        node = _core.YamlNode.read(file)
        scenario = _core.Scenario(node, name="edited", directory=str(file.parent), project=str(self.root))
        return orrery.simulate(scenario).summary


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def test_links_that_were_edited_changed_nothing(tree):
    before = tree.run()
    tree.edit("hgx-h200.yaml", nvlink_rate=1 / 2, nvlink_latency=10)
    after = tree.run()
    assert after["ttft_s"]["mean"] > 1.05 * before["ttft_s"]["mean"]
    (said,) = [text for text in after["warnings"] if "other links" in text]
    assert "nvlink_rate 225 GB/s (measured: 450 GB/s)" in said
    assert "nvlink_latency 6 us (measured: 600 ns)" in said
    assert not [text for text in before["warnings"] if "other links" in text]


@pytest.mark.parametrize("keys", [("bf16", "fp16", "fp8", "fp8_block", "mxfp4", "int4"), ("hbm_bandwidth",)])
def test_a_device_that_was_edited_changed_nothing(tree, keys):
    before = tree.run()
    tree.edit("devices/h200-sxm/device.yaml", **dict.fromkeys(keys, 2))
    after = tree.run()
    figure = "tpot_s" if keys == ("hbm_bandwidth",) else "ttft_s"
    assert after[figure]["mean"] < 0.95 * before[figure]["mean"]
    (said,) = [text for text in after["warnings"] if "another device" in text]
    assert ("hbm_bandwidth" if keys == ("hbm_bandwidth",) else "dense_flops.fp8 3.96 PFLOP/s (measured: 1.98 PFLOP/s)") in said
    assert after["basis"]["measured"] < before["basis"]["measured"]  # collectives are as they were


def test_a_device_twice_as_fast_is_never_slower(tree):
    before = tree.run()
    names = ("hbm_bandwidth", "bf16", "fp16", "fp8", "fp8_block", "mxfp4", "int4")
    tree.edit("devices/h200-sxm/device.yaml", **dict.fromkeys(names, 2))
    after = tree.run()
    assert after["tpot_s"]["mean"] < before["tpot_s"]["mean"]
    assert after["ttft_s"]["mean"] < before["ttft_s"]["mean"]


def test_provider_none_had_measured_collectives(tree):
    before = tree.run("none")
    assert before["basis"]["measured"] == 0
    tree.edit("hgx-h200.yaml", nvlink_latency=1000)
    assert tree.run("none")["tpot_s"]["mean"] > before["tpot_s"]["mean"] + 2 * 80 * 0.5e-3  # two all-reduces in 80 layers
