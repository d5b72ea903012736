"""The command ``minidl``: what it is asked for is found, and pages come from all that a step can be known by."""

import json
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import minidl
from minidl.__main__ import COMMANDS, main
from minidl.policies import CHOICES, POLICIES
from minidl.view.recorded import read_page

SMALL = ["--model", "lenet", "--batch", "100", "--device", "sim:p100", "--memory-budget", "60%", "--quiet"]


def test_every_command_is_there_and_explains_itself(capsys):
    assert main(["--version"]) == 0 and capsys.readouterr().out == f"minidl {minidl.__version__}\n"
    assert main([]) == 0
    told = capsys.readouterr().out
    for name, (module, what) in COMMANDS.items():
        assert callable(import_module(module).main) and f"{name:10} {what}" in told
    assert main(["vieww"]) == 2 and "did you mean view?" in capsys.readouterr().err
    assert main(["models"]) == 0 and "resnet50" in capsys.readouterr().out


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what a training leaves."""
    folder = tmp_path_factory.mktemp("made")
    assert main(["train", *SMALL, "--steps", "5", "--policy", "capuchin", "--run-dir", str(folder / "run"),
                 "--save-trace", str(folder / "trace.json"), "--save-plan", str(folder / "plan.json"), "--report",
                 str(folder / "page.html")]) == 0
    return folder


def titles(path: Path) -> list[str]:
    """Of the recordings in a page."""
    return [recording["title"] for recording in read_page(path)]


def test_a_page_comes_from_a_run_a_trace_a_plan_and_pages(made, tmp_path, capsys):
    out = tmp_path / "out.html"
    assert titles(made / "page.html") == ["lenet, batch 100, policy capuchin"]
    assert main(["view", str(made / "run"), "--against", "passive", "-o", str(out)]) == 0
    assert titles(out) == ["lenet, batch 100, policy capuchin", "lenet, batch 100, policy passive"]
    again, first = read_page(out)[0], read_page(made / "page.html")[0]
    assert again["events"] == first["events"] and again["stays"] == first["stays"]  # a simulated run is the same again
    trace = str(made / "trace.json")
    assert main(["view", trace, "--memory-budget", "60%", "--steps", "2", "--policy", "lru", "-o", str(out)]) == 0
    assert titles(out) == [f"{trace}, policy lru"]
    plan = str(made / "plan.json")
    assert main(["view", plan, *SMALL, "--steps", "5", "-o", str(out), "--against", str(made / "page.html")]) == 0
    assert titles(out) == [f"lenet, batch 100, plan {plan}", "lenet, batch 100, policy capuchin"]
    capsys.readouterr()
    assert main(["view", str(out), "--against", str(out), "-o", str(out)]) == 2
    assert "4 recordings, and a page shows two at most" in capsys.readouterr().err


def test_what_is_no_source_of_a_page_is_refused_before_anything_runs(made, tmp_path, capsys):
    for words, message in (
            (["view", "nothing.html"], "there is no nothing.html"),
            (["view", str(tmp_path)], "is no run folder"),
            (["view", str(made / "run" / "metrics.csv")], "the header"),
            (["view", str(made / "run" / "result.json")], "no plan, no trace, no snapshot and no run folder"),
            (["view", "-o", str(made / "run" / "result.json"), *SMALL], "minidl did not write the existing file"),
            (["view", *SMALL, "--nothing"], "unknown argument --nothing")):
        assert main(words) == 2
        assert message in capsys.readouterr().err, words


def test_a_run_folder_names_no_code_of_its_own_and_no_file_of_flags(made, tmp_path, capsys):
    shutil.copytree(made / "run", tmp_path / "run")
    noted = json.loads((tmp_path / "run" / "arguments.json").read_text())
    (tmp_path / "flags.yaml").write_text("nothing: 3\n")
    for words, code in ((["--model", "stranger:network", "--trust"], 2), (["--config", f"{tmp_path}/flags.yaml"], 0)):
        more = noted | {"arguments": [*noted["arguments"], *words]}
        (tmp_path / "run" / "arguments.json").write_text(json.dumps(more))
        assert main(["view", str(tmp_path / "run"), "-o", str(tmp_path / "out.html")]) == code
        assert ("its model is stranger:network, code that is not minidl's" in capsys.readouterr().err) is (code == 2)


def test_exports_are_made_of_a_page(made, tmp_path, capsys):
    names = {"--perfetto": "a.json", "--memory-viz": "a.pickle", "--svg": "a.svg"}
    flags = [word for flag, name in names.items() for word in (flag, str(tmp_path / name))]
    assert main(["view", str(made / "page.html"), "-o", str(tmp_path / "a.html"), *flags]) == 0
    assert all((tmp_path / name).stat().st_size > 1000 for name in names.values())
    assert main(["view", str(made / "page.html"), "-o", str(tmp_path / "a.html"), *flags]) == 0  # over its own files
    (tmp_path / "a.svg").write_text("mine")
    assert main(["view", str(made / "page.html"), "-o", str(tmp_path / "a.html"), *flags]) == 2
    assert (tmp_path / "a.svg").read_text() == "mine"


def test_help_names_the_dozen_policies_that_people_choose_from_and_says_where_the_others_are(capsys):
    assert main(["train", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert f"{', '.join(CHOICES)} (default: auto); docs/policies.md has" in told and "griewank" not in told
    assert len(CHOICES) == 12 and set(CHOICES) < set(POLICIES)
    page = (Path(__file__).parents[2] / "docs" / "policies.md").read_text(encoding="utf-8")
    assert [name for name in POLICIES if f"`{name}`" not in page] == []


@pytest.mark.parametrize(("module", "command"), [("minidl.lab", "lab"), ("minidl.calibrate", "calibrate"),
                                                 ("minidl.report.compare", "compare"),
                                                 ("minidl.models.convert", "convert")])
def test_the_former_spelling_of_a_command_works_and_names_the_new_one(module, command):
    done = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True, check=True)
    assert done.stderr == f"python -m {module} is now: minidl {command}\n"
    assert f"minidl {command}" in done.stdout.splitlines()[0]
