"""Every reader of files that other programs may write: how to make valid files for it, and how to use it."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random

import killed
import made_data
import numpy as np
import summing
from damage import as_json
from forged import sign
from PIL import Image

from minidl import Runtime
from minidl.checkpoint import Store, documents_of, read_checkpoint, restore, tensors_of
from minidl.checkpoint.safetensors import write_arrays
from minidl.cli.app.run_folder import RunFolder, folder_of, read_arguments
from minidl.device import profiles
from minidl.lab.lifetimes import lower_bound, read_log
from minidl.models import convert, weights
from minidl.ops import cross_entropy
from minidl.optim import SGD, Schedule
from minidl.outside.reading import read_bytes
from minidl.plan.formats import SavedPlan, plan_to_json, read_plan
from minidl.plan.trace_format import trace_from_json, trace_to_json
from minidl.policies.saved import SavedPlanPolicy
from minidl.training import Trainer


@dataclass(frozen=True)
class Reader:
    """A reader of files. ``use`` raises UserError, or AssertionError if it got wrong values.

    pattern  the files that may be damaged; makes: the files that reading makes
    named    True if every message names the file
    grows    True if each use takes memory that is never freed, as compilers do
    damage   a kind of damage besides those for all files
    """

    make: Callable[[Path], object]
    use: Callable[[Path], object]
    pattern: str = "*"
    makes: tuple[str, ...] = ()
    named: bool = True
    grows: bool = False
    damage: Callable[[Path, Random], str] | None = None


# Data ----------------------------------------------------------------------------------------------------------------
def go_through(kind: str) -> Callable[[Path], None]:
    """Return a function that opens a data set and reads it once."""
    def use(folder: Path) -> None:
        data = made_data.opened(kind, folder / "data", workers=2)
        if data.train_size < 2:
            return
        with closing(data.batches(2)) as batches:
            for batch in islice(batches, data.train_size // 2):
                assert all(np.isfinite(array).all() for array in made_data.arrays(batch))
        for _ in data.test_batches(3):
            pass

    return use


def all_images(folder: Path) -> None:
    """Write one image of each format and kind that minidl reads."""
    exif = Image.Exif()
    exif[0x0112] = 6
    image = made_data.picture(3)
    wide = Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30) * 100)
    kinds = {"a.jpg": (image, {"exif": exif}), "b.png": (image, {"exif": exif}), "c.webp": (image, {}),
             "d.bmp": (image, {}), "e.gif": (image, {"save_all": True, "append_images": [made_data.picture(4)]}),
             "f.ppm": (image, {}), "g.pgm": (image.convert("L"), {}), "h.png": (wide, {}),
             "i.png": (image.convert("RGBA"), {}), "j.png": (image.convert("P"), {"transparency": 3}),
             "k.jpg": (image.convert("CMYK"), {}), "l.png": (image.convert("1"), {})}
    for number, (name, (made, options)) in enumerate(kinds.items()):
        place = folder / "data" / f"class {number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        made.save(place / name, **options)


def text(folder: Path) -> None:
    made_data.text(folder / "data", stories=12)
    go_through("text")(folder)


# Trainings -----------------------------------------------------------------------------------------------------------
SETTINGS = {"memory_budget": "300KiB", "host_memory": "8MiB"}
IMAGES = np.random.default_rng(1).standard_normal((64, 1, 8, 8), np.float32)


def training(runtime: Runtime) -> Trainer:
    """Return a small training whose tensors must be evicted in SETTINGS."""
    model = killed.network()

    def loss(_):
        return cross_entropy(model(runtime.tensor(IMAGES)), runtime.tensor(np.arange(64) % 10))
    return Trainer(model, SGD(model.parameters(), lr=0.1, momentum=0.9), loss, Schedule(0.1))


def bits(runtime: Runtime, trainer: Trainer) -> list[bytes]:
    with runtime.iteration():
        return [tensor.numpy().tobytes() for tensor in tensors_of(trainer.model, trainer.optimizer).values()]


def planned(folder: Path) -> None:
    """Write a plan, the trace that it was made for, and a checkpoint of the training under it (made once)."""
    for name, data in _PLANNED.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    if _PLANNED:
        return
    with Runtime("cpu:virtual", **SETTINGS, policy="auto") as runtime:
        trainer = training(runtime)
        for _ in range(3):
            trainer.step(None)
        entry, = [entry for entry in runtime.guide.entries if entry.plan.evictions]
        (folder / "plan.json").write_text(plan_to_json(SavedPlan.of(entry.plan, entry.trace)))
        (folder / "trace.json").write_text(trace_to_json(entry.trace))
        trainer.step(None)
        with runtime.iteration():
            Store(folder, keep=2).save(trainer.steps_done, tensors_of(trainer.model, trainer.optimizer),
                                       documents_of(runtime, {}))
    _PLANNED.update({str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.*")
                     if path.is_file()})


_PLANNED: dict[str, bytes] = {}


def follow(folder: Path) -> None:
    """Check that following a plan changes no bit."""
    saved = read_plan(str(folder / "plan.json"))
    with Runtime("cpu:virtual", **SETTINGS, policy=SavedPlanPolicy(saved)) as runtime:
        trainer = training(runtime)
        for _ in range(4):
            trainer.step(None)
            runtime.check()
        assert bits(runtime, trainer) == expected(4), "other bits"


def read_trace(folder: Path) -> None:
    trace = trace_from_json(read_bytes(folder / "trace.json", most=1 << 28))
    assert trace_from_json(trace_to_json(trace)) == trace and trace.seconds >= 0 and len(trace.accesses) >= 0


_EXPECTED: dict[int, list[bytes]] = {}


def expected(steps: int) -> list[bytes]:
    """Return the bits after ``steps`` steps without memory management."""
    if not _EXPECTED:
        with Runtime("cpu:virtual", memory_budget="64MiB", policy="none") as runtime:
            trainer = training(runtime)
            for step in range(1, 7):
                trainer.step(None)
                _EXPECTED[step] = bits(runtime, trainer)
    return _EXPECTED[steps]


def whole_checkpoint(folder: Path) -> None:
    """Check that a checkpoint's tensors are read back unchanged."""
    found = read_checkpoint(folder / "step-00000004")
    assert [found.array(name).tobytes() for name in _order()] == expected(4), "other bits"


def _order() -> list[str]:
    with Runtime("cpu:virtual", memory_budget="64MiB", policy="none") as runtime:
        trainer = training(runtime)
        return list(tensors_of(trainer.model, trainer.optimizer))


def sign_again(path: Path, choose: Random) -> str:
    """Change a document of a checkpoint and make its checksums valid again."""
    document = choose.choice(("state.json", "plan-0.json", "trace-0.json"))
    new = as_json((path.parent / document).read_bytes(), choose)
    sign(path.parent, {document: new.decode(errors="replace")})
    return document


def go_on(folder: Path) -> None:
    """Continue a training from a checkpoint, and check its bits if the counters are the same."""
    with Runtime("cpu:virtual", **SETTINGS, policy="auto") as runtime:
        trainer = training(runtime)
        restore(read_checkpoint(folder / "step-00000004"), runtime, trainer.model, trainer.optimizer, {})
        same = runtime.counters == {"seeds": runtime.counters["seeds"], "steps": 4}
        seeds = runtime.counters.get("seeds")
        for _ in range(2):
            trainer.step(None)
            runtime.check()
        if same and seeds == _seeds():
            assert bits(runtime, trainer) == expected(6), "other bits"


def _seeds() -> int:
    """Return how many random seeds four steps use."""
    if not _SEEDS:
        with Runtime("cpu:virtual", memory_budget="64MiB", policy="none") as runtime:
            trainer = training(runtime)
            for _ in range(4):
                trainer.step(None)
            _SEEDS.append(runtime.counters["seeds"])
    return _SEEDS[0]


_SEEDS: list[int] = []


def run_folder(folder: Path) -> None:
    planned(folder)
    (folder / "checkpoints").mkdir()
    (folder / "step-00000004").rename(folder / "checkpoints" / "step-00000004")
    for name in ("plan.json", "trace.json"):
        (folder / name).unlink()
    (folder / "arguments.json").write_text('{"arguments": ["--model", "lenet", "--data", "digits"]}\n')
    rows = RunFolder(folder, keep=1)
    for step in range(1, 5):
        rows.add({"step": step, "loss": 1 / step, "lr": 0.1})


def look_into(folder: Path) -> None:
    """Read everything that is read of a run folder when its run continues."""
    assert folder_of(str(folder))[0] == folder
    read_arguments(folder)
    kept = RunFolder(folder, keep=1)
    found = kept.newest()
    assert found is None or found.step == 4
    assert all(type(row["step"]) is int for row in kept.rows())


# Other files ---------------------------------------------------------------------------------------------------------
def profile(folder: Path) -> None:
    (folder / "profile.json").write_text(profiles.to_json(profiles.get("h100")))


def simulate(folder: Path) -> None:
    """Check that some steps on a simulated GPU take a finite time."""
    with Runtime(f"sim:{folder / 'profile.json'}", **SETTINGS, policy="capuchin") as runtime:
        trainer = training(runtime)
        for _ in range(4):
            trainer.step(None)
        assert np.isfinite(runtime.stats().seconds) and runtime.stats().seconds >= 0


ARRAYS = {"a.weight": np.arange(600, dtype=np.float32).reshape(30, 20), "a.bias": np.arange(3, dtype=np.float16),
          "count": np.array(7), "mask": np.array([True, False])}


def to_safetensors(folder: Path) -> None:
    """Convert an archive; a conversion that fails must leave no file."""
    convert.convert(str(folder / "w.npz"), str(folder / "w.safetensors"))
    (folder / "w.safetensors").unlink()


def log(folder: Path) -> None:
    lines = [f"b{n},{n % 7},{n % 7 + 1 + n % 5},{(n * 37) % 1000 + 1}" for n in range(60)]
    (folder / "log.csv").write_text("\n".join(["id,lower,upper,size", *lines]) + "\n")


def run_compiled(folder: Path) -> None:
    """Check that compiled code gives the right sum, from cache or not."""
    assert summing.load(folder)(np.arange(5.0)) == 20


def compiled(folder: Path) -> None:
    summing.write(folder)
    run_compiled(folder)


_TEXT = ("*.tokens", "*.vocab.txt")
READERS: dict[str, Reader] = {
    "images": Reader(all_images, go_through("class_folders"), "*.*"),
    "class_folders": Reader(lambda to: made_data.class_folders(to / "data", count=9), go_through("class_folders"),
                            "*.*"),
    "masks": Reader(lambda to: made_data.masks(to / "data", count=6), go_through("masks"), "*.png"),
    "shards": Reader(lambda to: made_data.shards(to / "data"), go_through("shards"), "*.tar"),
    "parquet": Reader(lambda to: made_data.parquet(to / "data"), go_through("parquet"), "*.parquet"),
    "cifar": Reader(lambda to: made_data.cifar(to / "data"), go_through("cifar")),
    "text": Reader(text, go_through("text"), "[01].txt", _TEXT),
    "tokens": Reader(text, go_through("text"), "*.tokens", _TEXT),
    "vocabulary": Reader(text, go_through("text"), "*.vocab.txt", _TEXT),
    "plan": Reader(planned, follow, "plan.json"),
    "trace": Reader(planned, read_trace, "trace.json", named=False),
    "checkpoint": Reader(planned, whole_checkpoint, "[!pt]*.*"),
    "signed again": Reader(planned, go_on, "manifest.json", damage=sign_again),
    "run folder": Reader(run_folder, look_into),
    "profile": Reader(profile, simulate, named=False),
    "weights": Reader(lambda to: write_arrays(to / "w.safetensors", ARRAYS),
                      lambda folder: weights.read(str(folder / "w.safetensors")), named=False),
    "archive": Reader(lambda to: np.savez(to / "w.npz", **ARRAYS), to_safetensors, "*.npz"),
    "log": Reader(log, lambda folder: lower_bound(read_log(str(folder / "log.csv")))),
    "compiled": Reader(compiled, run_compiled, "*.nb?", ("*.nb?", "*.pyc"), grows=True),
}
