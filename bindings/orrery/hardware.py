"""What the machine here has, found without building or loading anything."""

from __future__ import annotations

import pathlib


def nvidia_gpus(root: pathlib.Path = pathlib.Path("/")) -> list[str]:
    """Names of the NVIDIA GPUs whose driver runs here, as it calls them; `root` holds /proc and /dev.

    In a container that has the devices and not the driver's files of /proc, each is "NVIDIA GPU".
    """
    names = []
    for file in sorted(root.glob("proc/driver/nvidia/gpus/*/information")):
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
        names += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return names or ["NVIDIA GPU" for device in sorted(root.glob("dev/nvidia[0-9]*")) if device.name.removeprefix("nvidia").isdigit()]


__all__ = ["nvidia_gpus"]
