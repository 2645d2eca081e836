"""Which weights an engine is to load, said for all of them."""

from __future__ import annotations

from ..flags import Command
from ..plan import Plan


def add_weights(command: Command, plan: Plan, notes: list[str], *, online: dict[str, str]) -> None:
    """Adds --quantization where the engine makes the plan's format out of BF16 weights (`online`: format to value), and says
    what is needed where it cannot."""
    checkpoint, title = plan.checkpoint, command.table.program
    if checkpoint.is_stored_so:
        return
    wanted = checkpoint.expert_weights if checkpoint.weights == "bf16" else checkpoint.weights
    value = online.get(wanted)
    if checkpoint.stored_as != "bf16":
        notes.append(f"{checkpoint.name} is stored as {checkpoint.stored_as}; the plan has weights in {wanted}."
                     f" Name a checkpoint in {wanted} with --model.")  # fmt: skip
    elif value and command.has("--quantization", value):
        command.add("--quantization", value)
        notes.append(f"--quantization {value} makes {wanted} out of the BF16 weights when they are loaded. A checkpoint that is quantized"
                     " already loads faster and keeps its own scales: name it with --model and drop the option.")  # fmt: skip
    else:
        notes.append(f"{title} {command.version} does not make {wanted} out of BF16 weights: name a checkpoint of {checkpoint.name} in"
                     f" {wanted} with --model.")  # fmt: skip


__all__ = ["add_weights"]
