"""Writes a run's folder around its steps: rows of numbers, checkpoints; and resumes from a checkpoint.

Without a run folder the same methods write no folder, so the training loop is the same.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from minidl.checkpoint import Checkpoint, Fixed, documents_of, read_checkpoint, restore, send_rows, tensors_of
from minidl.cli.app.options import EPOCHS, SYNTHETIC_STEPS, Options
from minidl.cli.app.run_folder import AUTO, RESULT, SUMMARY, Resolved, RunFolder, folder_of
from minidl.cli.app.run_lock import RunLock
from minidl.cli.app.step_log import StepLog
from minidl.cli.app.trust import foreign
from minidl.cli.command import training_command
from minidl.device.contract import ATTENTION
from minidl.device.precision import DEFAULT
from minidl.errors import UserError
from minidl.optim import ENDING_SHAPES
from minidl.outside.validation import MOST_WHOLE, is_whole
from minidl.ranks.group import NOTHING
from minidl.report.meter import Meter
from minidl.report.result import Result
from minidl.runtime import current_runtime
from minidl.training import Trainer
from minidl.training.metrics import Score


@dataclass(frozen=True, slots=True)
class Length:
    """The length of a run in steps. ``epoch``: the steps of one pass over the data, None for endless data."""

    steps: int
    epoch: int | None

    @classmethod
    def of(cls, options: Options, train_size: int | None, examples: int) -> Length:
        """Return the length that the flags ask for.
        train_size: the number of training examples, None: endless; examples: the number of examples in a step.

        Raises UserError for more than 2^53 steps.
        """
        epoch = train_size and train_size // examples
        steps = options.steps or ((options.epochs or EPOCHS) * epoch if epoch else SYNTHETIC_STEPS)
        if not is_whole(steps):
            raise UserError(f"--epochs {options.epochs}: {steps} steps, and at most {MOST_WHOLE} are counted")
        return cls(steps, epoch)

    def ends_epoch(self, step: int) -> bool:
        """Return True if an epoch ends with this step, counted from 1."""
        return self.epoch is not None and step % self.epoch == 0

    def tests_after(self, step: int) -> bool:
        """Return True if the test data is evaluated after this step: at the end of an epoch, or of the run."""
        return self.ends_epoch(step) or step == self.steps


class NothingToLearnFrom(UserError):
    """Raised when the loss is infinite or NaN, so that the parameters are of no use any more."""


@dataclass(slots=True)
class Noted:
    """The test score of a step that has ended; None unless the caller, who measures it, sets it."""

    score: Score | None = None


class Session:
    """One run of a training, which writes rows and checkpoints to its folder, if it has one, and rows to a StepLog.

    fixed     the flags that decide the results; a resumed run must have the same
    resolved  the values that the run chose by itself, which the folder stores
    lock      of the folder; taken when the folder is first written, if not before
    first     True for the first of several ranks, and for a single device; other ranks read the folder and write
              nothing
    """

    def __init__(self, options: Options, length: Length, fixed: Fixed, resolved: Resolved, lock: RunLock, *,
                 has_values: bool, first: bool = True) -> None:
        self._options = options
        self._length = length
        self._fixed = fixed
        self._resolved = resolved
        self._lock = lock
        self._keeps = has_values  # without values there is nothing that a checkpoint would hold
        self._saved = -1
        self._log = StepLog(options)
        self._read = RunFolder(Path(options.run), keep=options.keep) if options.run else None
        self._folder = self._read if first else None

    def restore(self, trainer: Trainer) -> int:
        """Load the run's checkpoint into the trainer; return the number of steps done.
        Raises UserError if it does not fit."""
        checkpoint = self._checkpoint(self._read) if self._read is not None else None
        if checkpoint is not None:
            restore(checkpoint, current_runtime(), trainer.model, trainer.optimizer, self._fixed)
            if trainer.steps_done > self._length.steps:
                raise UserError(f"{checkpoint.path} is at step {trainer.steps_done}, and this run ends at "
                                f"{self._length.steps}")
            self._saved = trainer.steps_done
            print(f"going on after step {trainer.steps_done}, from {checkpoint.path}", flush=True)
        elif self._folder is not None and self._folder.occupied and self._keeps:
            print(f"there is no checkpoint in {self._folder.path}: beginning again", flush=True)
        return trainer.steps_done

    def begin(self, trainer: Trainer) -> None:
        """Occupy the folder for this run, before the first step. Raises UserError if another run occupies it."""
        self._log.begin(trainer.steps_done)
        if self._folder is None:
            return
        self._folder.begin(self._options.arguments, self._resolved, self._lock, after=trainer.steps_done,
                           anew=self._options.resume is None)

    def _checkpoint(self, folder: RunFolder) -> Checkpoint | None:
        resume = self._options.resume
        if resume is None:
            return None
        chosen = None if resume == AUTO else folder_of(resume)[1]
        return read_checkpoint(chosen) if chosen is not None else folder.newest()

    @contextmanager
    def saving_what_is_sound(self, trainer: Trainer) -> Iterator[None]:
        """Return a context for the training loop.
        If a UserError ends the loop, a checkpoint is written first, unless a step was interrupted in its middle, the
        loss is not finite, or each rank has only a part of the state."""
        try:
            yield
        except NothingToLearnFrom:
            raise
        except UserError:
            divided = self._options.ranks_divide != NOTHING  # then the other ranks have a part of the state
            if (trainer.sound and trainer.steps_done > max(self._saved, 0) and self._folder is not None and self._keeps
                    and not divided):
                self.save(trainer)
                print(self.how_to_go_on(trainer.steps_done), flush=True)
            raise
        finally:
            self._log.close()

    @contextmanager
    def noting(self, trainer: Trainer, meter: Meter) -> Iterator[Noted]:
        """Yield a record in which the caller may put a test score of the step that has just ended.
        On leaving the context, even by an error, the step's row is written to the folder and the StepLog; then, without
        an error, a checkpoint if one is due. The last step's checkpoint is written later, with the output files."""
        noted = Noted()
        try:
            yield noted
        finally:
            self._add_row(trainer, meter, noted.score)
        done = trainer.steps_done
        every = self._options.checkpoint_every
        if done < self._length.steps and (self._length.ends_epoch(done) if every is None else done % every == 0):
            self.save(trainer)

    def _add_row(self, trainer: Trainer, meter: Meter, score: Score | None) -> None:
        step, done = meter.steps[-1], trainer.steps_done
        row = {
            "step": done, "epoch": None if self._length.epoch is None else (done - 1) // self._length.epoch + 1,
            "loss": step.loss, "lr": trainer.optimizer.lr, "seconds": step.seconds,
            "items_per_second": meter.batch / step.seconds if step.seconds else None,
            "peak_bytes": step.grown.peak_bytes, "swapped_out_bytes": step.grown.swapped_out_bytes,
            "swapped_in_bytes": step.grown.swapped_in_bytes, "recomputed_bytes": step.grown.recomputed_bytes,
            "data_seconds": step.data_seconds} | (score.named if score else {})
        if self._folder is not None:
            self._folder.add(row)
        self._log.add(row)  # last, as it may call a function of the user's

    def save(self, trainer: Trainer) -> None:
        """Write a checkpoint of the training, unless this step already has one, or the run keeps none."""
        done = trainer.steps_done
        if self._read is None or not self._keeps or self._saved == done:
            return
        runtime, tensors = current_runtime(), tensors_of(trainer.model, trainer.optimizer)
        with runtime.iteration():  # reading values is an iteration of its own: the next step begins like any other
            if self._folder is not None:
                self._folder.store.save(done, tensors, documents_of(runtime, self._fixed))
            else:
                send_rows(tensors)
        self._saved = done

    def how_to_go_on(self, done: int) -> str:
        """Return a sentence with the command that resumes a run stopped after ``done`` steps."""
        stopped = f"stopped after step {done} of {self._length.steps}"
        if self._folder is None or not self._keeps:
            return f"{stopped}; nothing was saved: --run-dir DIR keeps what is needed to go on"
        return f"{stopped}, and saved. To go on: {self._resuming(self._folder)}"

    def where_the_state_is(self) -> str:
        """Return a clause that names the run's last checkpoint, for error messages at the run's end."""
        if self._folder is None or not self._keeps or self._saved < 0:
            return "nothing else keeps the state of this run" + (": --run-dir DIR does" if self._folder is None else "")
        return (f"the state of the run is in {self._folder.store.path(self._saved)}: {self._resuming(self._folder)} "
                "with another name for the file writes it")

    def _resuming(self, folder: RunFolder) -> str:
        trust = " --trust" if foreign(self._options) else ""
        return f"{training_command()} --resume {shlex.quote(str(folder.path))}{trust}"

    def keep_result(self, result: Result) -> None:
        """Write the numbers of the run to result.json."""
        if self._folder is not None:
            self._folder.keep(RESULT, result.to_json())

    def keep_summary(self, text: str) -> None:
        """Write the closing summary to summary.txt."""
        if self._folder is not None:
            self._folder.keep(SUMMARY, text + "\n")


def fixed_arguments(options: Options, batch: int, steps: int, slices: int = 1, shard_bytes: int | None = None,
                    *, host_update: bool = False) -> Fixed:
    """Return the flags that decide the results, with their values: a resumed run must have the same ones."""
    fixed = {"--model": options.model, "--image-size": options.image_size, "--num-classes": options.num_classes,
             "--lora": options.lora, "--lora-alpha": options.lora_alpha,
             "--lora-targets": None if options.lora_targets is None else ",".join(options.lora_targets),
             "--data": options.data, "--batch": batch, "--seed": options.seed, "--optimizer": options.optimizer,
             "--lr": options.lr, "--momentum": options.momentum, "--weight-decay": options.weight_decay,
             "--decay": options.decay, "--schedule": options.schedule, "--warmup-steps": options.warmup_steps,
             "--decay-steps": options.decay_steps, "--decay-rate": options.decay_rate,
             "--clip-grad": options.clip_grad, "--grad-accum-steps": options.accumulate,
             "--label-smoothing": options.label_smoothing, "--sequence-length": options.sequence_length,
             "--slices": None if slices == 1 else slices, "--shard-bytes": shard_bytes,
             "--host-update": "always" if host_update else None,
             "--vocab": options.vocab, "--vocab-size": options.vocab_size,
             "--on-bad-file": "skip" if options.skips_bad_files else None,
             "--precision": None if options.precision == DEFAULT else options.precision,
             "--attention": None if options.attention == ATTENTION[0] else options.attention}
    # A longer training sees the same steps first, unless the learning rates depend on where the end is.
    return fixed | {"--steps": steps if options.schedule in ENDING_SHAPES else None}


def require_a_number(loss: float, trainer: Trainer) -> None:
    """Raise NothingToLearnFrom if the loss is infinite or NaN, unless the device computes no values."""
    if current_runtime().device.has_values and not isfinite(loss):
        raise NothingToLearnFrom(f"the loss is {loss} at step {trainer.steps_done}: a lower --lr or --clip-grad may "
                                 "help; --detect-anomaly names the first operation that makes NaN")
