"""Policies and placements by name: ours, and those of packages that are not ours, found by their entry points."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from foreign_package import install

from minidl import placements, policies
from minidl.__main__ import main as minidl
from minidl.errors import UserError
from minidl.outside.registry import Registry
from minidl.plan.plan import NO_PLAN
from minidl.plan.policy import OnDemand

ROOT = Path(__file__).resolve().parent.parent
GROUPS = ("minidl.policies", "minidl.placements")

FOREIGN = """
from minidl.placements import Place, Placement
from minidl.plan.plan import Action, Eviction
from minidl.plan.policy import OnDemand

ASKED = []

class LargestFirst(OnDemand):
    name = "largest"

    def victims(self, resident, pressure):
        ASKED.append("policy")
        return [Eviction(r.tensor_id, Action.SWAP_OUT) for r in sorted(resident, key=lambda r: -r.nbytes)]

class WorstFit(Placement):
    name = "worst-fit"

    def place(self, nbytes, holes, *, high):
        ASKED.append("placement")
        return Place(holes[-1].offset, nbytes)
"""
OURS_TOO = {"minidl.policies": {"largest": "foreign:LargestFirst"},
            "minidl.placements": {"worst-fit": "foreign:WorstFit"}}

TRAINING = """
import foreign, minidl
from minidl import nn
from minidl.ops.loss import cross_entropy
from minidl.optim import SGD
import numpy as np

def losses(**options):
    with minidl.Runtime(device="cpu:virtual", poisoned=True, **options) as runtime:
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        optimizer = SGD(model.parameters(), lr=0.1)
        random = np.random.default_rng(0)
        for _ in range(3):
            x = runtime.tensor(random.standard_normal((64, 64)).astype("float32"))
            loss = cross_entropy(model(x), runtime.tensor(random.integers(0, 10, 64)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield loss.item()
        runtime.check()
        print(runtime.policy.name, runtime.placement.name, runtime.stats().swapped_out_bytes > 0)

expected = list(losses(policy="none", memory_budget="4MiB"))
assert list(losses(policy="largest", placement="worst-fit", memory_budget="90KiB")) == expected
assert set(foreign.ASKED) == {"policy", "placement"}
file = minidl.policies.REGISTRY.file("largest")
assert file.name == "foreign.py" and minidl.policies.REGISTRY.file("auto") is None
"""


def ended(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that finds what is installed in the folder."""
    paths = os.pathsep.join([str(folder), str(ROOT)])
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, cwd=ROOT,
                          env={**os.environ, "PYTHONPATH": paths})


def test_a_policy_and_a_placement_of_a_foreign_package_train_a_network_to_the_same_bits(tmp_path):
    install(tmp_path, package="foreign", source=FOREIGN, entry_points=OURS_TOO)
    done = ended(tmp_path, "-c", TRAINING)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["none best-fit False", "largest worst-fit True"]


def test_what_a_foreign_package_offers_appears_in_help_and_can_be_chosen_on_the_command_line(tmp_path):
    install(tmp_path, package="foreign", source=FOREIGN, entry_points=OURS_TOO)
    text = " ".join(ended(tmp_path, "train.py", "--help").stdout.split())
    assert f"{', '.join([*policies.CHOICES, 'largest'])} (default: auto)" in text
    assert "--placement " + "|".join([*placements.PLACEMENTS, "worst-fit"]) in text
    done = ended(tmp_path, "train.py", "--model", "resnet18", "--batch", "16", "--steps", "2", "--image-size", "64",
                 "--memory-budget", "60%", "--policy", "largest", "--placement", "worst-fit")
    assert done.returncode == 0, done.stderr
    assert "policy largest, placement worst-fit" in done.stdout
    done = ended(tmp_path, "train.py", "--policy", "largst")
    assert done.returncode == 2 and "there is no policy 'largst'; did you mean largest or" in done.stderr


def test_a_class_of_a_module_in_the_current_folder_needs_no_package(tmp_path, monkeypatch, capsys):
    """The name is known to all commands; a run folder's is run for ``--trust`` alone, and viewed alike."""
    (tmp_path / "own_plugs.py").write_text(FOREIGN + "\nclass Broken:\n    def __init__(self, needed): pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert policies.create("own_plugs:LargestFirst").name == "largest"
    assert placements.create("own_plugs:WorstFit").name == "worst-fit"
    replay = ["lab", "trace", "replay", "lenet:64", "--policy"]
    assert minidl([*replay, "lru,own_plugs:LargestFirst", "--budget", "80%"]) == 0
    assert " own_plugs:LargestFirst " in capsys.readouterr().out
    for wrong, why in (("own_plugs:Smallest", "no attribute 'Smallest'"), ("own_plugs:Broken", "TypeError"),
                       ("no_such_module:Own", "nor is it in the current folder")):
        assert minidl([*replay, wrong]) == 2
        assert why in capsys.readouterr().err
    training = ["train", "--model", "lenet", "--batch", "64", "--steps", "2", "--quiet"]
    for flag, name in (("policy", "own_plugs:LargestFirst"), ("placement", "own_plugs:WorstFit")):
        assert minidl([*training, f"--{flag}", name, "--run-dir", flag]) == 0
        for again in (["train", "--resume", flag, "--steps", "3"], ["view", flag]):
            assert minidl(again) == 2
            assert f"its {flag} is {name}, code that is not minidl's: --trust runs it" in capsys.readouterr().err
        assert minidl(["view", flag, "--trust", "-o", f"{flag}.html"]) == 0


def test_nothing_of_a_package_is_imported_before_it_is_asked_for(tmp_path):
    install(tmp_path, package="foreign", source="raise RuntimeError('imported')", entry_points=OURS_TOO)
    assert ended(tmp_path, "train.py", "--help").returncode == 0
    assert ended(tmp_path, "-c", "import minidl; minidl.Runtime('sim:p100', policy='passive')").returncode == 0


@pytest.mark.parametrize(("source", "says"), [
    ("raise RuntimeError('on purpose')", "RuntimeError: on purpose"),
    ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
    ("", "AttributeError: module 'foreign' has no attribute 'LargestFirst'"),
    ("class LargestFirst:\n    def __init__(self, needed): pass", "TypeError: "),
])
def test_a_package_whose_policy_cannot_be_loaded_is_named_with_the_reason(tmp_path, source, says):
    install(tmp_path, package="foreign", source=source, entry_points=OURS_TOO)
    done = ended(tmp_path, "train.py", "--model", "mlp", "--policy", "largest")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("train.py: error: ") and done.stderr.count("\n") == 1
    assert "policy 'largest' of package foreign 1.2 cannot be loaded from 'foreign:LargestFirst'" in done.stderr
    assert says in done.stderr


def test_a_name_that_two_offer_is_refused_and_both_are_named(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, package="foreign", source=FOREIGN,
            entry_points={"minidl.tests": {"passive": "foreign:LargestFirst", "own": "foreign:LargestFirst"}})
    install(tmp_path, package="other", source="", entry_points={"minidl.tests": {"own": "other:Own"}})
    registry = Registry("thing", "minidl.tests", {"passive": object, "none": object})
    assert registry.names() == ["passive", "none", "own"]
    assert registry.create("none").__class__ is object
    with pytest.raises(UserError, match="thing 'passive' is provided by minidl itself and by package foreign 1.2; "):
        registry.create("passive")
    with pytest.raises(UserError, match="by package foreign 1.2 and by package other 1.2|"
                                        "by package other 1.2 and by package foreign 1.2"):
        registry.create("own")


@pytest.mark.parametrize(("registry", "wrong", "near"), [(policies.REGISTRY, "pasive", "passive"),
                                                         (placements.REGISTRY, "bestfit", "best-fit")])
def test_an_unknown_name_is_an_error_with_the_nearest_names(registry, wrong, near):
    with pytest.raises(UserError, match=f"there is no {registry.kind} '{wrong}'; did you mean {near}"):
        registry.create(wrong)
    with pytest.raises(UserError, match=re.escape(f"; there are {', '.join(registry.names())}") + "$"):
        registry.create("?")


@pytest.mark.parametrize("registry", [policies.REGISTRY, placements.REGISTRY])
def test_everything_of_ours_answers_to_the_name_that_it_is_listed_by(registry):
    assert registry.group in GROUPS
    for name in registry.names():
        made = registry.create(name)
        assert registry.create(name) is not made
        assert made.name == name or registry is policies.REGISTRY


def test_a_policy_that_plans_must_say_so_and_one_that_says_so_must_plan() -> None:
    """The engine would never call the plan() of the first, and would measure for nothing for the second."""
    with pytest.raises(TypeError, match="policy Silent has plan\\(\\) but does not say plans = True"):
        type("Silent", (OnDemand,), {"plan": lambda self, trace, costs, limits: NO_PLAN})
    with pytest.raises(TypeError, match="policy Empty says plans = True but has no plan\\(\\)"):
        type("Empty", (OnDemand,), {"plans": True})
    type("Both", (OnDemand,), {"plans": True, "plan": lambda self, trace, costs, limits: NO_PLAN})
