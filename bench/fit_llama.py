"""Which batches of Llama 3 fit a GPU, whole or with LoRA, and how fast they train: simulated, no GPU is used.

    python -m bench.fit_llama [--policies passive] [--models llama-1b,...] [--devices rtx4090,...]

A row of bench/results/fit_llama.csv for each network, way of training, device and policy; rows that are there already
are kept, and the page bench/results/fit_llama.md is written anew from all of them. Texts have 2,048 tokens, bfloat16
activations, and AdamW: float32 parameters, gradients and two states a parameter; with LoRA 16 the frozen weights are in
bfloat16.
"""

from __future__ import annotations

import argparse
import csv
from functools import partial
from pathlib import Path
from typing import Any

from minidl.lab import sources
from minidl.lab.cell import Machine
from minidl.lab.fitting import ProgramAtBatch
from minidl.lab.training_step import Setting
from minidl.plan.trace import Trace

TOKENS, RANK, STEPS = 2048, 16, 8
PARTS = 16  # to one of so many parts a batch is found
RESULTS = Path(__file__).parent / "results"
TABLE, PAGE = RESULTS / "fit_llama.csv", RESULTS / "fit_llama.md"
KEYS = ("model", "train", "device", "policy")
FIELDS = (*KEYS, "largest_batch", "tokens_a_step", "tokens_per_second", "share_of_unmanaged", "status")


def row_of(model: str, rank: int | None, device: str, policy: str) -> dict[str, Any]:
    """Return the row of a cell: the largest batch that runs, and its speed in a simulated step."""
    def load(batch: int) -> Trace:
        return sources.load(f"{model}:{batch}", device, setting=Setting(TOKENS, "bf16", rank))
    machine = Machine(profile=device)
    budget = machine.described().memory_bytes
    program = ProgramAtBatch(model, load, 1, interpolates=False)
    largest, ran, status = program.fitted(machine, policy, budget, steps=STEPS, parts=PARTS)
    row: dict[str, Any] = dict.fromkeys(FIELDS, "") | {"largest_batch": largest, "tokens_a_step": TOKENS * largest,
                                                       "status": status}
    if ran is not None and ran.settled_s:
        row["tokens_per_second"] = round(TOKENS * largest / ran.settled_s)
        row["share_of_unmanaged"] = round(ran.unmanaged_s / ran.settled_s, 3)
    return row


def main() -> None:
    """Make the missing rows, one at a time, and write the page."""
    words = partial(str.split, sep=",")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=words, default=["llama-1b", "llama-3b", "llama-8b"])
    parser.add_argument("--devices", type=words, default=["rtx3090", "rtx4090", "a100", "h100"])
    parser.add_argument("--policies", type=words, default=["passive"])
    given = parser.parse_args()
    rows = _read()
    for policy in given.policies:
        for model in given.models:
            for rank in (RANK, None):
                for device in given.devices:
                    key = (model, f"LoRA {rank}" if rank else "full", device, policy)
                    if key not in rows:
                        rows[key] = row_of(model, rank, device, policy) | dict(zip(KEYS, key, strict=True))
                        _write(rows)
                        print(*rows[key].values(), flush=True)
    PAGE.write_text(page(rows), encoding="utf-8")


def _read() -> dict[tuple[str, ...], dict[str, Any]]:
    if not TABLE.exists():
        return {}
    with TABLE.open(newline="", encoding="utf-8") as file:
        return {tuple(row[key] for key in KEYS): dict(row) for row in csv.DictReader(file)}


def _write(rows: dict[tuple[str, ...], dict[str, Any]]) -> None:
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows.values())


def page(rows: dict[tuple[str, ...], dict[str, Any]]) -> str:
    """Return the page of the rows as Markdown."""
    lines = [HEAD, "| network | trained | device | policy | largest batch | tokens a step | tokens/s | of unmanaged |",
             "|---|---|---|---|--:|--:|--:|--:|"]
    for row in rows.values():
        numbers = [f"{float(row[name]):,.0f}" if row[name] not in ("", None) else "" for name in
                   ("largest_batch", "tokens_a_step", "tokens_per_second")]
        share = f"{float(row['share_of_unmanaged']):.0%}" if row["share_of_unmanaged"] else row["status"]
        lines.append(f"| {row['model']} | {row['train']} | {row['device']} | {row['policy']} | {' | '.join(numbers)} | "
                     f"{share} |")
    return "\n".join([*lines, "", TAIL])


HEAD = """# Llama 3 on one GPU

Made by `python -m bench.fit_llama`: simulated, no GPU was used. Texts of 2,048 tokens, bfloat16 activations, AdamW.
`full`: parameters, gradients and two states a parameter, 16 bytes each parameter, in float32. `LoRA 16`: adapters of
rank 16 in all linear layers; the frozen weights are in bfloat16. The host has 64 GB beside an RTX 3090 or 4090, and
1 TB beside an A100 or H100; the simulated links are PCIe 4 and (H100) 5. The largest batch is found to a 16th. A speed
is that of the largest batch, at which nearly everything moves, in the last of at most 8 iterations; smaller batches
keep more of the unmanaged speed. Attention is composed, so its probabilities are stored: a fused one needs less. The
speeds of the A100 and H100 profiles are within 16% of published ones for other networks; those of the RTX profiles have
not been compared.
"""
TAIL = """## Published figures of systems for one GPU

These are not the same measurement: other tokens, other precisions, other machines.

| system | what it states | source |
|---|---|---|
| Unsloth | Llama 3.1 8B, QLoRA (4-bit frozen weights) of rank 32, batch 1: 78,475 tokens in 24 GB, 342,733 in 80 GB; \
Hugging Face with FlashAttention 2: 5,789 and 28,454 | docs.unsloth.ai/basics/unsloth-benchmarks |
| SlideFormer | full fine-tuning of models of more than 123 billion parameters on an RTX 4090; 1.40 to 6.27 times the \
throughput of other offloading systems | arXiv:2603.16428 |
| ZeRO-Infinity | fine-tuning of a trillion parameters on one DGX-2 (16 V100); over 25 petaflops on 512 V100, 40% of \
their peak | arXiv:2104.07857 |

Unsloth's weights take a quarter of the bytes of those here, and its kernels store no attention probabilities.
SlideFormer and ZeRO-Infinity keep states in host memory or on NVMe disks; the rows here use host memory alone, so full
training of llama-8b (128 GB) does not fit beside 64 GB of host memory.
"""

if __name__ == "__main__":
    main()
