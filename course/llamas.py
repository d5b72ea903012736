"""Trainings of networks like Llama on a simulated GPU, for lesson 11: the bytes of a step, and their kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod

from minidl import device as devices
from minidl.dispatch import donate
from minidl.memory.ledger import Demand
from minidl.models.gpt import synthetic_batch
from minidl.models.llama import Llama, LlamaConfig
from minidl.models.text import Text
from minidl.nn import lora
from minidl.ops import cross_entropy
from minidl.optim import AdamW
from minidl.outside.units import UNLIMITED
from minidl.plan.trace import Trace
from minidl.planning.lifetimes import BEFORE, Lifetimes
from minidl.report.recording import recording
from minidl.runtime import Runtime
from minidl.tensor import Tensor

SMALL = LlamaConfig(8, 1024, 4096, 16, 8, vocab_size=32_000, tie_word_embeddings=True)
KINDS = ("parameters and states", "activations", "attention probabilities", "logits", "gradients")


@dataclass(frozen=True)
class Training:
    """A training of a network like Llama with AdamW, on sequences of ``length`` tokens.

    fused_attention  True: attention is one operation, which keeps no probabilities
    chunks           True: the loss is computed in chunks of rows (``linear_cross_entropy``); False: from all logits
    precision        of the runtime: ``fp32`` or ``bf16``
    adapters         the rank of LoRA's adapters, which are then all that is trained; None: everything is
    on_host          True: the optimizer's states are in host memory (``host_update``)
    """

    config: LlamaConfig = SMALL
    batch: int = 4
    length: int = 1024
    fused_attention: bool = False
    chunks: bool = False
    precision: str = "fp32"
    adapters: int | None = None
    on_host: bool = False

    def but(self, **changes: object) -> Training:
        """Return the same training with some settings changed."""
        return replace(self, **changes)  # type: ignore[arg-type]

    @contextmanager
    def started(self, budget: int = UNLIMITED, policy: str = "none"
                ) -> Iterator[tuple[Runtime, Callable[[], None], Llama]]:
        """Yield a runtime, a function that runs one step in it, and the network."""
        device = devices.create("sim:p100", precision=self.precision)
        device.attention = "fused" if self.fused_attention else "composed"
        with Runtime(device, policy=policy, memory_budget=budget, precision=self.precision,
                     host_update=self.on_host) as runtime:
            network = Llama(self.config)
            if self.adapters is not None:
                lora.add(network, self.adapters)
            optimizer = AdamW([p for p in network.parameters() if p.requires_grad], lr=1e-3)
            text = Text(self.length, self.length, self.config.vocab_size)

            def loss() -> Tensor:
                ids, labels = synthetic_batch(runtime, self.batch, text)
                if self.chunks:
                    return network(ids, labels)
                scores = network.logits(ids)
                return cross_entropy(donate(scores), labels.reshape((-1,)))

            def step() -> None:
                optimizer.zero_grad()
                loss().backward()
                optimizer.step()

            yield runtime, step, network

    def demand(self) -> Demand:
        """The bytes that a step needs unmanaged, from a dry run."""
        with self.started() as (runtime, step, _):
            return runtime.dry_run(step)

    def trace(self) -> Trace:
        """The trace of the second step, when the gradients of the first one have been there."""
        with self.started() as (runtime, step, _), recording(runtime) as recorder:
            with runtime.iteration():
                step()
            with runtime.iteration():
                step()
                return recorder.complete(runtime.trace())

    def numbers(self) -> tuple[int, int]:
        """How many parameters there are, and how many of them are trained."""
        with self.started() as (_, _, network):
            of = [(prod(p.shape), p.requires_grad) for p in network.parameters()]
        return sum(n for n, _ in of), sum(n for n, trained in of if trained)

    def lasting_bytes(self) -> int:
        """The bytes that the engine holds on the device after a step: parameters, gradients and states."""
        with self.started() as (runtime, step, _):
            with runtime.iteration():
                step()
            return sum(storage.nbytes for storage in runtime.memory.live())

    def seconds(self, budget: int, steps: int = 5) -> float:
        """The seconds of the last of some steps under a budget, by Capuchin's policy."""
        with self.started(budget, "capuchin") as (runtime, step, _):
            for _ in range(steps):
                before = runtime.stats()
                with runtime.iteration():
                    step()
            return runtime.stats().since(before).seconds


def saved(trace: Trace) -> list[tuple[str, int]]:
    """The tensors that a step makes and saves for its backward pass, each as the operation that makes it and its bytes.

    Parameters are not among them, since a step does not make them.
    """
    made = {tensor: call.op for call in trace.calls for tensor in call.outputs}
    kept = dict.fromkeys(tensor for call in trace.calls for tensor in call.saves if tensor in made)
    return [(made[tensor], trace.tensors[tensor].nbytes) for tensor in kept]


def at_the_peak(trace: Trace) -> dict[str, int]:
    """The bytes of each of ``KINDS`` that are live during the call at which a step needs the most."""
    facts = Lifetimes.of(trace)
    peak = facts.live_bytes.index(max(facts.live_bytes))
    turn = next(k for k, call in enumerate(trace.calls) if call.op == "cross_entropy")
    found = dict.fromkeys(KINDS, 0)
    for tensor, nbytes in facts.nbytes.items():
        made = facts.made[tensor]
        if made <= peak <= facts.freed[tensor]:
            found[_kind(made, turn, trace)] += nbytes
    return found


def _kind(made: int, turn: int, trace: Trace) -> str:
    """The kind of a tensor by the call that makes it; ``turn`` is the call of the loss."""
    if made == BEFORE:
        return KINDS[0]
    op = trace.calls[made].op
    return (KINDS[3] if op.startswith("cross_entropy") else KINDS[2] if op == "softmax" else
            KINDS[1] if made < turn else KINDS[4])
