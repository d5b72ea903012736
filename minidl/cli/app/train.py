"""The program behind train.py, from a command line to an exit code. The function ``train`` is the whole run.

Dry runs find out before the first step what fits (``minidl.cli.app.fit``). A run that does not fit is refused, and the
message has numbers that would fit. See docs/train.md.
"""

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, nullcontext, redirect_stdout
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TextIO

from minidl import models
from minidl.cli.app.advice import advice
from minidl.cli.app.build import build
from minidl.cli.app.choices import (
    agree_on_memory,
    choose_device,
    choose_policy,
    choose_ranks,
    refuse_what_cannot_be_kept,
)
from minidl.cli.app.files import FinalFiles, printed_apart
from minidl.cli.app.flags import parse
from minidl.cli.app.inputs import described, made_ahead, read_data
from minidl.cli.app.interrupt import Stop, stop_after_the_step
from minidl.cli.app.options import STDOUT, Options
from minidl.cli.app.outcome import result_of
from minidl.cli.app.progress import Bar, bar
from minidl.cli.app.run_folder import Resolved
from minidl.cli.app.run_lock import RunLock
from minidl.cli.app.session import Length, Session, fixed_arguments, require_a_number
from minidl.cli.app.sizes import Sizes, settle, setup_of
from minidl.cli.app.together import Together
from minidl.cli.app.watch import watch
from minidl.cli.command import finish
from minidl.data import AnyBatch, BadFiles
from minidl.outside.stages import COMPILATION, be_quiet, stage
from minidl.outside.units import format_bytes
from minidl.ranks import Ranks
from minidl.report.meter import Meter
from minidl.report.summary import summary
from minidl.runtime import Runtime
from minidl.training import detect_anomaly

TOLD = 10  # of the files that were left out


def main(arguments: Sequence[str] | None, *, name: str = "train.py") -> int:
    """Run a training command line (None: the process's own); return the exit code of ``minidl.cli.command``.
    ``name``: the command's name for messages."""
    together = Together()

    def story() -> int:
        options = parse(arguments)
        if options.list_models:
            print(models.listing())
            return 0
        out, ranks = sys.stdout, choose_ranks(options)
        first = ranks is None or not ranks.rank
        options = options if first else options.without_files
        if options.quiet:
            be_quiet()
        with (redirect_stdout(printed_apart(options)), closing(RunLock(options.run if first else None)) as lock,
              together.ending(ranks)):
            lock.take()
            return train(options, lock, out, ranks)

    code = finish(name, story)
    together.end(code)
    return code


def train(options: Options, lock: RunLock, out: TextIO, ranks: Ranks | None = None) -> int:
    """Do the whole run; return the exit code. lock: on the run folder, against a second run. out: for ``--json -``.
    ranks: those that train together, this one among them. Raises UserError if the run does not fit or cannot go on."""
    first = ranks is None or not ranks.rank
    device, policy = choose_device(options, ranks), choose_policy(options)
    if first:
        refuse_what_cannot_be_kept(options, device)
    options = agree_on_memory(options, device, ranks)
    bad = BadFiles(skip=options.skips_bad_files)
    data = read_data(options, models.find(options.model), bad, has_values=device.has_values)
    if data.real:
        print(f"data {options.data}: {data.described}", flush=True)

    # What fits, before anything is allocated.
    setup = setup_of(options, device, data, ranks)
    sizes = settle(options, setup, data)
    unmanaged_seconds = replace(setup, slices=1).unmanaged_seconds(sizes.batch)
    setup = sizes.setup
    batch, a_step = sizes.batch, sizes.batch * options.accumulate  # a step may take several batches
    items, kind = described(data)
    print(f"{options.model}, batch {batch}, {'x'.join(map(str, data.input_shape))} {kind}, "
          f"{options.precision}, budget {format_bytes(sizes.budget_bytes)}, {options.manager}", flush=True)
    slices = _told_slices(sizes, ranks)

    length = Length.of(options, data.train_size, a_step)
    resolved = Resolved(options.device, sizes.budget_bytes, setup.host_memory, batch)
    fixed = fixed_arguments(options, batch, length.steps, slices, setup.shard_bytes, host_update=setup.host_update)
    session = Session(options, length, fixed, resolved, lock, has_values=device.has_values, first=first)
    with Runtime(device, memory_budget=sizes.budget_bytes, host_memory=setup.for_tensors(batch), policy=policy,
                 placement=options.placement, precision=options.precision, seed=options.seed,
                 switches=options.switches, slices=setup.slices, shard_bytes=setup.shard_bytes,
                 host_update=setup.host_update, spill=setup.spill, ranks=ranks) as runtime:
        # A new network, or one that a run before this one has trained.
        trainer = build(options, data, steps=length.steps)
        done = session.restore(trainer)
        if options.weights and not done:
            models.load_weights(trainer.model, options.weights)

        # The steps.
        if data.feed is not None:
            data.feed.ahead = made_ahead(data, a_step, setup.host_memory)
        meter = Meter(runtime, a_step, time.perf_counter if device.has_values else device.now, data.feed, items=items)
        endless = data.batches(a_step, seed=options.seed, skip=done)
        score, left, begun = None, length.steps - done, runtime.tracker.sequence
        with (closing(endless), stop_after_the_step(ranks) as stop, session.saving_what_is_sound(trainer),
              detect_anomaly() if options.detect_anomaly else nullcontext(),
              watch(options, runtime, trainer.model) as watched,
              bar(islice(endless, left), done, length.steps, time.perf_counter,
                  quiet=options.quiet) as batches,
              stage("training", left, "steps") as training,
              stage(lambda: f"call {runtime.tracker.sequence - begun:,} of about {sizes.demand.calls:,} in this step")):
            COMPILATION.total = device.kernels_to_compile(sizes.demand.ops)
            watched.require_enough(left, going_on=done > 0)
            session.begin(trainer)
            for examples in batches:
                begun = runtime.tracker.sequence
                with watched.step(last=trainer.steps_done + 1 == length.steps):
                    meter.add(trainer.step(examples))
                training.done += 1
                batches.set_description_str(meter.bar_fields(), refresh=False)
                with session.noting(trainer, meter) as noted:
                    require_a_number(meter.steps[-1].loss, trainer)
                    watched.note()
                    if length.tests_after(trainer.steps_done):
                        found = trainer.evaluate(_one_by_one(data.test_batches(batch), batches, stop))
                        noted.score = score = None if stop else found  # of a part of the test data it would say nothing
                stop.agree()
                meter.restart()
                if stop:
                    break

        # Stopped, or done.
        if trainer.steps_done < length.steps:
            session.save(trainer)
            print(session.how_to_go_on(trainer.steps_done))
            return stop.exit_code
        leaving = FinalFiles(options, out)
        leaving.attempt(partial(session.save, trainer))
        leaving.parameters(trainer.model)
        if not meter.steps:
            leaving.require_all(session.where_the_state_is())
            print(f"nothing was left to do: all {length.steps} steps are done")
            return 0
        result = result_of(options, sizes, meter, score, data, bad, unmanaged_seconds=unmanaged_seconds)
        leaving.attempt(lambda: session.keep_result(result))
        leaving.result(result)
        explained = watched.conclude(leaving, meter, sizes.demand.unmanaged_peak_bytes)

    # What it was like, and what to try next: advice is tried on twins, when the memory of the run has been given back.
    with stage("trying what to advise"):
        hints = advice(setup, result, most=sizes.most) if not stop else []
    text = summary(result, unmanaged_seconds, hints, items=items, classes=data.num_classes, slices=setup.slices)
    print(text)
    for message in bad.messages[:TOLD]:
        print(f"  left out: {message}")
    leaving.attempt(lambda: session.keep_summary(text))
    if explained:  # it was asked for by --explain, so --quiet, which is for what tells of the run, keeps none of it
        print(explained, file=sys.stderr if options.json == STDOUT else out)
    leaving.require_all(session.where_the_state_is())
    return stop.exit_code if stop else 0


def _told_slices(sizes: Sizes, ranks: Ranks | None) -> int:
    """Print how batches and parameters are cut, if they are, and whether the host keeps the optimizer's states.
    Return the number of slices of all ranks together; results have the same bits only for the same number."""
    slices = max(sizes.setup.slices, ranks.count if ranks is not None else 1)
    if ranks is not None:
        print(f"{ranks.count} ranks, each with {slices // ranks.count} of {slices} slices of a batch", flush=True)
    elif slices > 1:
        print(f"in {slices} slices: {sizes.cut.why}", flush=True)
    if sizes.setup.shard_bytes is not None:
        print(f"parameters of more than {format_bytes(sizes.setup.shard_bytes)} in shards of no more", flush=True)
    if sizes.setup.host_update:
        print("the optimizer's states are in host memory, and are updated there", flush=True)
    return slices


def _one_by_one(batches: Iterable[AnyBatch], bar: Bar, stop: Stop) -> Iterator[AnyBatch]:
    """Yield the batches of test data, each shown on the bar; end early if the run is to stop."""
    for number, batch in enumerate(batches, 1):
        if stop:
            return
        bar.set_description_str(f"batch {number} of the test data")
        yield batch
        stop.agree()
