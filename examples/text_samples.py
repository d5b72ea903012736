"""Train a small GPT-2 on the bytes of a text in half of its memory, and sample: python examples/text_samples.py FILE"""

import codecs
import contextlib
import io
import sys
from pathlib import Path

import numpy as np

import minidl
from minidl.meta import int64
from minidl.models.gpt import GPT, GPTConfig, generate
from minidl.optim import AdamW
from minidl.outside.units import format_bytes

LENGTH, BATCH, STEPS = 64, 12, 180


def text() -> bytes:
    """Return the content of the file named on the command line, or by default the Zen of Python."""
    if len(sys.argv) > 1:
        return Path(sys.argv[1]).read_bytes()
    with contextlib.redirect_stdout(io.StringIO()):
        import this
    return codecs.decode(this.s, "rot13").encode()


tokens = np.frombuffer(text(), np.uint8).astype(np.int64)
random = np.random.default_rng(0)
config = GPTConfig(n_layer=2, n_embd=64, n_head=4, vocab_size=256, n_positions=LENGTH, dropout=0.0)


def step(runtime: minidl.Runtime, model: GPT, optimizer: AdamW) -> float:
    starts = random.integers(0, len(tokens) - LENGTH, (BATCH, 1))
    rows = tokens[starts + np.arange(LENGTH + 1)]
    loss = model(runtime.tensor(rows[:, :-1]), runtime.tensor(rows[:, 1:]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    value: float = loss.item()
    return value


with minidl.Runtime(device="sim:p100", policy="none") as simulator:
    model = GPT(config)
    optimizer = AdamW(model.parameters(), lr=3e-3)
    needed = simulator.dry_run(lambda: step(simulator, model, optimizer)).unmanaged_peak_bytes
print(f"a step needs {format_bytes(needed)}; it gets {format_bytes(needed // 2)}")

with minidl.Runtime(device="cpu", memory_budget=needed // 2, seed=1) as runtime:
    model = GPT(config)
    optimizer = AdamW(model.parameters(), lr=3e-3)
    for number in range(STEPS):
        with runtime.iteration():
            loss = step(runtime, model, optimizer)
        if number % 60 == 59:
            print(f"step {number + 1}: loss {loss:.3f}")
    model.eval()
    begin = runtime.tensor(tokens[None, :8], dtype=int64)
    print(bytes(generate(model, begin, 200, temperature=0.5, top_k=10).tolist()[0]).decode(errors="replace"))
