"""Checks of lesson 11: the bytes of parameters, of attention probabilities, of logits and of a layer.
The expected values are counted by the engine, in steps of tiny networks like Llama."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from checks.verdict import Case, first_difference, judged
from llamas import Training, saved
from minidl.models.llama import TINY, LlamaConfig
from minidl.nn.linear_loss import LEAST_ROWS

WIDE = replace(TINY, hidden_size=96, intermediate_size=160, num_attention_heads=6, num_key_value_heads=6)


@cache
def kept(training: Training, op: str = "") -> int:
    """The bytes that a step saves for its backward pass, or only those that an operation makes."""
    return sum(nbytes for made_by, nbytes in saved(training.trace()) if op in ("", made_by))


@cache
def layer(config: LlamaConfig, batch: int, length: int) -> int:
    """The bytes that one more layer saves."""
    fewer, more = (Training(replace(config, num_hidden_layers=n), batch, length) for n in (1, 2))
    return kept(more) - kept(fewer)


@cache
def lasting() -> list[Case]:
    """The bytes that the engine holds after a step, with all parameters trained and with adapters."""
    trainings = [Training(TINY, 2, 16, adapters=rank, on_host=host) for rank in (None, 4) for host in (False, True)]
    return [((*each.numbers(), each.on_host), each.lasting_bytes()) for each in trainings]


@judged("The engine holds the same bytes after a step. Adapters add a few parameters, and save nearly all of the rest.")
def lasting_bytes(answer: Any) -> str:
    """Exercise 1."""
    return first_difference(answer, lasting())


@judged("Twice the length is four times the bytes: no other tensor of the step grows in this way.")
def probability_bytes(answer: Any) -> str:
    """Exercise 2."""
    return first_difference(answer, [
        ((batch, length, config.num_attention_heads, config.num_hidden_layers),
         kept(Training(config, batch, length), "softmax"))
        for config, batch, length in ((TINY, 1, 16), (TINY, 4, 64), (replace(WIDE, num_hidden_layers=3), 2, 32))])


@judged("In chunks it no longer matters how long a sequence is, or how large a batch.")
def logits_bytes(answer: Any) -> str:
    """Exercise 3."""
    whole: list[Case] = [((batch, length, TINY.vocab_size, None), kept(Training(TINY, batch, length), "cross_entropy"))
                         for batch, length in ((1, 16), (4, 64))]
    chunks: list[Case] = [((batch, length, TINY.vocab_size, LEAST_ROWS), chunk(batch, length))
                          for batch, length in ((4, 64), (1, 64))]
    return first_difference(answer, whole + chunks)


@cache
def chunk(batch: int, length: int) -> int:
    """The bytes of the largest result of a chunk's loss."""
    trace = Training(TINY, batch, length, chunks=True).trace()
    return max(trace.tensors[made].nbytes for call in trace.calls if call.op == "cross_entropy"
               for made in call.outputs)


@judged("One more layer of the real step saves just these bytes.")
def layer_bytes(answer: Any) -> str:
    """Exercise 4."""
    return first_difference(answer, [
        ((batch, length, config.hidden_size, config.intermediate_size, config.num_attention_heads),
         layer(config, batch, length))
        for config, batch, length in ((TINY, 4, 64), (TINY, 2, 128), (WIDE, 4, 64))])
