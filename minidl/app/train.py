"""The program behind train.py, from a command line to an exit code. ``train`` tells it from top to bottom.

What fits is known before the first step, from twins that have shapes only (``minidl.app.fit``); what does not is
refused with the numbers that would do. See docs/train.md.
"""

import sys
import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from itertools import islice

from tqdm import tqdm

from minidl.app.advice import advice
from minidl.app.build import build
from minidl.app.choices import choose_device, choose_policy, refuse_what_cannot_be_kept
from minidl.app.files import save
from minidl.app.flags import parse
from minidl.app.inputs import described, made_ahead, read_data
from minidl.app.interrupt import stop_after_the_step
from minidl.app.options import Options
from minidl.app.outcome import result_of
from minidl.app.session import Length, Session, fixed_arguments, require_a_number
from minidl.app.sizes import settle, setup_of
from minidl.app.watch import watch
from minidl.app.zoo import Zoo
from minidl.data import BadFiles
from minidl.errors import UserError
from minidl.report.meter import Meter
from minidl.report.summary import summary
from minidl.runtime import Runtime
from minidl.training import detect_anomaly
from minidl.units import format_bytes

TOLD = 10  # of the files that were left out


def main(arguments: Sequence[str] | None, zoo: Zoo) -> int:
    """Do what a command line asks for (None: this program's own), with the networks of a zoo; returns the exit code.

    0, or 2 and one message on stderr if something asked for cannot be done; 128 and the signal's number after one.
    """
    try:
        options = parse(arguments)
        if options.list_models:
            print(zoo.listing())
            return 0
        return train(options, zoo)
    except KeyboardInterrupt:  # outside of the loop, or for the second time
        print("train.py: stopped", file=sys.stderr)
        return 130
    except (UserError, MemoryError) as error:  # the second: this machine has less than the budget
        print(f"train.py: error: {error}", file=sys.stderr)
        return 2


def train(options: Options, zoo: Zoo) -> int:
    """The whole story; returns the exit code. Raises UserError."""
    device, policy = choose_device(options), choose_policy(options)
    refuse_what_cannot_be_kept(options, device)
    bad = BadFiles(skip=options.skips_bad_files)
    data = read_data(options, zoo.find(options.model), bad, has_values=device.has_values)
    if data.real:
        print(f"data {options.data}: {data.described}", flush=True)

    # What fits, before anything is allocated.
    setup = setup_of(options, zoo, device, data)
    sizes = settle(options, setup, data)
    batch, a_step = sizes.batch, sizes.batch * options.accumulate  # a step may take several batches
    items, kind = described(data)
    print(f"{options.model}, batch {batch}, {'x'.join(map(str, data.input_shape))} {kind}, "
          f"{options.precision}, budget {format_bytes(sizes.budget_bytes)}, {options.manager}", flush=True)

    length = Length.of(options, data.train_size, a_step)
    session = Session(options, length, fixed_arguments(options, batch, length.steps), has_values=device.has_values)
    with Runtime(device, memory_budget=sizes.budget_bytes, host_memory=setup.for_tensors(batch), policy=policy,
                 placement=options.placement, precision=options.precision, seed=options.seed,
                 switches=options.switches) as runtime:
        # A new network, or one that a run before this one has trained.
        trainer = build(options, zoo, data, steps=length.steps)
        done = session.begin(trainer)
        if options.weights and not done:
            zoo.load_weights(trainer.model, options.weights)

        # The steps.
        if data.feed is not None:
            data.feed.ahead = made_ahead(data, a_step, setup.host_memory)
        meter = Meter(runtime, a_step, time.perf_counter if device.has_values else device.now, data.feed, items=items)
        endless = data.batches(a_step, seed=options.seed, skip=done)
        score = None
        with (closing(endless), stop_after_the_step() as stop,
              detect_anomaly() if options.detect_anomaly else nullcontext(),
              watch(options, runtime, trainer.model) as watched,
              tqdm(islice(endless, length.steps - done), initial=done, total=length.steps,
                   bar_format="{n_fmt}/{total_fmt} |{bar:20}| {desc}") as bar):
            for examples in bar:
                meter.add(trainer.step(examples))
                watched.note()
                bar.set_description_str(meter.bar_fields(), refresh=False)
                require_a_number(meter.steps[-1].loss, trainer)
                tested = length.tests_after(trainer.steps_done)
                score = trainer.evaluate(data.test_batches(batch)) if tested else None
                session.note(trainer, meter, score)
                meter.restart()
                if stop:
                    break

        # Stopped, or done.
        if trainer.steps_done < length.steps:
            session.save(trainer)
            print(session.how_to_go_on(trainer.steps_done))
            return stop.exit_code
        if options.save:
            save(trainer.model, options.save)
        if not meter.steps:
            print(f"nothing was left to do: all {length.steps} steps are done")
            return 0
        result = result_of(options, sizes, meter, score, data, bad)

    # What it was like, and what to try next: advice is tried on twins, when the memory of the run has been given back.
    text = summary(result, setup.unmanaged_seconds(batch), advice(setup, result, most=sizes.most), items=items)
    print(text)
    for message in bad.messages[:TOLD]:
        print(f"  left out: {message}")
    session.conclude(text, result)
    if options.json:
        result.write(options.json)
    explained = watched.conclude()
    if explained:
        print(explained)
    return 0
