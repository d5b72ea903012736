"""The values of all flags in one dataclass, ``Options``, with the defaults. The parser is in ``flags``."""

from dataclasses import dataclass, field, replace

from minidl import placements
from minidl.cli.app.kinds import Share
from minidl.memory.switches import Switches

MODEL, POLICY = "resnet50", "auto"
HOST_UPDATE = ("never", "auto", "always")
SYNTHETIC_STEPS = 10
SYNTHETIC_BATCH = 32
EPOCHS = 15
DIGITS_BATCH = 24  # half of the unmanaged peak is enough for lenet at this one
OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")
VOCAB_SIZE = 4000
WORKERS = 8  # at most, unless asked for
DECAYED = ("all", "matrices")
BAD_FILES = ("error", "skip")
KEPT_CHECKPOINTS = 3
EXPLAINED = 20  # tensors
STDOUT = "-"  # as the file of --json


@dataclass(frozen=True, slots=True)
class Options:
    """The values of all flags, by name. None: the flag is not given. ``batch`` None: the largest batch that fits."""

    model: str
    weights: str | None
    list_models: bool
    lora: int | None
    lora_alpha: float | None
    lora_targets: tuple[str, ...] | None
    image_size: int | None
    num_classes: int | None
    data: str
    workers: int
    on_bad_file: str
    sequence_length: int | None
    vocab: str | None
    vocab_size: int | None
    token_file: str | None
    batch: int | None
    thorough: bool
    steps: int | None
    epochs: int | None
    seed: int
    optimizer: str | None
    lr: float | None
    momentum: float | None
    weight_decay: float
    decay: str
    schedule: str
    warmup_steps: int
    decay_steps: int
    decay_rate: float
    clip_grad: float | None
    accumulate: int
    label_smoothing: float
    detect_anomaly: bool
    device: str
    precision: str
    attention: str
    cupti: bool
    policy: str
    placement: str
    memory_budget: int | Share | None
    host_memory: int | None
    spill: str | None
    spill_bytes: int | None
    slices: int
    ranks: int | str | None
    ranks_divide: str
    shard_bytes: int
    host_update: str
    plan: str | None
    decoupled_swap: bool
    collective: bool
    feedback: bool
    measured_times: bool
    fused: bool
    explain: int | None
    save_plan: str | None
    save_trace: str | None
    report: str | None
    csv: str | None
    tensorboard: str | None
    logger: str | None
    quiet: bool
    json: str | None
    save: str | None
    run: str | None
    resume: str | None
    checkpoint_every: int | None
    keep: int
    force: bool
    trust: bool
    arguments: tuple[str, ...] = field(default=(), compare=False)  # the words of the command line

    @property
    def skips_bad_files(self) -> bool:
        """True if broken data files are skipped and counted; False if the first one ends the run."""
        return self.on_bad_file == "skip"

    @property
    def without_files(self) -> "Options":
        """The options of every rank but the first: the same run, but no output files.
        ``report`` stays, because each rank records its step for the first one's page."""
        return replace(self, json=None, save=None, csv=None, tensorboard=None, logger=None, save_plan=None,
                       save_trace=None, explain=None, quiet=True)

    @property
    def switches(self) -> Switches:
        """The engine's optional features, True unless a flag turns one off."""
        return Switches(decoupled_swap=self.decoupled_swap, collective=self.collective, feedback=self.feedback,
                        measured_times=self.measured_times, fused=self.fused)

    @property
    def manager(self) -> str:
        """The policy's name or, with --plan, the plan file's name."""
        decides = f"plan {self.plan}" if self.plan else f"policy {self.policy}"
        return decides if self.placement == placements.DEFAULT else f"{decides}, placement {self.placement}"
