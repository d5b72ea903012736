"""``minidl torch run`` and the page that tells of it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra torch has it")

from minidl.__main__ import main  # noqa: E402
from minidl.view.recorded import read_page  # noqa: E402

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "torch.md"
SCRIPT = '''
import sys
import torch
from torch import nn
import beside
torch.manual_seed(0)
network = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(6)))
optimizer = torch.optim.SGD(network.parameters(), 0.1)
x = torch.randn(64, 64)
for _ in range(int(sys.argv[1])):
    optimizer.zero_grad()
    loss = network(x).pow(2).mean()
    loss.backward()
    optimizer.step()
print(__name__, sys.argv[1:], beside.NAME, loss.item())
'''


@pytest.fixture
def script(tmp_path):
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def test_a_script_runs_within_a_budget_with_its_own_arguments_and_the_same_loss(script, capfd):
    assert main(["torch", "run", "--budget", "1GiB", script, "5", "--more"]) == 0
    managed, report = capfd.readouterr()
    assert managed.startswith("__main__ ['5', '--more'] beside ")
    assert "budget" in report and "1.0 GiB" in report and "3, " in report
    before = list(sys.argv), list(sys.path)
    sys.argv, sys.path[0] = [script, "5", "--more"], str(Path(script).parent)
    try:
        exec(compile(SCRIPT, script, "exec"), {"__name__": "__main__"})
    finally:
        sys.argv, sys.path[:] = before
    assert capfd.readouterr().out == managed


@pytest.mark.parametrize(("words", "why"), [
    (["run", "--budget", "12 apples", "x.py"], "is not a size"),
    (["run", "x.py", "--budget", "1GiB"], "--budget BYTES is missing: flags of minidl torch run come before"),
    (["run", "--device", "cpu", "--budget", "1GiB", "x.py"], "unrecognized arguments: --device"),
    (["run", "--budget", "1GiB", "none.py"], "no script none.py"),
    (["run", "--budget", "1GiB", "--policy", "nobody", "x.py"], "nobody")])
def test_a_command_that_makes_no_sense_is_refused_in_one_line(words, why, capfd):
    assert main(["torch", *words]) == 2
    told = capfd.readouterr().err
    assert why in told and told.count("\n") == 1


@pytest.mark.parametrize(("budget", "why"), [
    ("20kB", "before the first step there are"), ("150kB", "before the optimizer steps there are"),
    ("210kB", "with all saved tensors away this step needs")])
def test_a_script_that_does_not_fit_ends_with_the_reason(script, capfd, budget, why):
    assert main(["torch", "run", "--budget", budget, script, "5"]) == 2
    assert why in capfd.readouterr().err


def test_the_program_on_the_page_runs_and_prints_what_stands_beside_it(capsys):
    text = "\n".join(re.findall(r"^```python\n([\s\S]*?)^```$", PAGE.read_text(), re.MULTILINE))
    exec(compile(text, PAGE.name, "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    said = re.findall(r"^print\(.*\)\s+# (.+)$", text, re.MULTILINE)
    assert len(said) == 2
    for expected in said:
        assert any(re.fullmatch(".*".join(map(re.escape, expected.split("..."))), line) for line in lines), lines


def test_a_script_leaves_its_page_its_trace_its_plan_and_an_explanation(script, tmp_path, capfd):
    page, trace, plan = (str(tmp_path / name) for name in ("m.html", "t.json", "p.json"))
    words = ["torch", "run", "--budget", "262kB", "--explain", "--page", page, "--save-trace", trace,
             "--save-plan", plan]
    assert main([*words, script, "5"]) == 0
    told = capfd.readouterr().err
    assert "what leaves the device" in told and "train.py:" in told and "drawn" in Path(page).read_text()
    assert main(["compare", plan, plan]) == 0 and '"windows"' in Path(trace).read_text()
    Path(plan).write_text("mine")
    assert main([*words, script, "5"]) == 2
    assert "p.json" in capfd.readouterr().err and Path(plan).read_text() == "mine"
    assert main([*words, "--force", script, "5"]) == 0
    assert main(["compare", plan, plan]) == 0


def test_a_refused_budget_leaves_a_page_that_shows_by_how_much_and_where(script, tmp_path, capfd):
    """The tables have what the plan of the floor swaps; without a recorded step a line says why there is no page."""
    page = tmp_path / "m.html"
    words = ["torch", "run", "--explain", "--page", str(page)]
    assert main([*words, "--budget", "210kB", script, "5"]) == 2
    told = capfd.readouterr().err
    assert f"wrote {page}" in told and "swapped: " in told and "nothing leaves" not in told
    assert "more than the budget" in json.dumps(read_page(str(page)))
    page.unlink()
    assert main([*words, "--budget", "20kB", script, "5"]) == 2
    told = capfd.readouterr().err
    assert "error: --page: page() needs" in told and "error: --explain: " in told and not page.exists()


def test_two_runs_are_compared_by_their_digests(script, capfd):
    def told(*words):
        assert main(["torch", "run", "--digest", *words]) == 0
        return next(line for line in capfd.readouterr().err.splitlines() if line.startswith("digest "))

    unmanaged = told("--budget", "none", script, "4")
    assert unmanaged.endswith(" of 12 parameters and 0 tensors of optimizer state") and len(unmanaged.split()[1]) == 64
    assert told("--budget", "262kB", script, "4") == unmanaged != told("--budget", "none", script, "5")
    assert main(["torch", "run", "--budget", "none", "--explain", script]) == 2
    assert "manages nothing" in capfd.readouterr().err


def test_a_script_that_ends_by_an_exit_is_told_of_and_keeps_its_status(script, tmp_path, monkeypatch, capfd):
    page = tmp_path / "m.html"
    monkeypatch.chdir(tmp_path)
    words = ["torch", "run", "--budget", "1GiB", "--digest", "--explain", "--page", "m.html", script]

    def told():
        err = capfd.readouterr().err
        assert "\ndigest  " in err and "\nplan: " in err and f"wrote {page}\n" in err and "\nsteps, as planned" in err
        page.unlink()

    assert main([*words, "5"]) == 0
    told()
    with open(script, "a") as file:
        file.write("import os\nos.chdir('..')\nsys.exit(int(sys.argv[2]))\n")
    assert main([*words, "5", "0"]) == 0
    monkeypatch.chdir(tmp_path)
    told()
    with pytest.raises(SystemExit) as end:
        main([*words, "5", "3"])
    monkeypatch.chdir(tmp_path)
    assert end.value.code == 3
    told()
    with pytest.raises(SystemExit) as end:  # the script fails before there is anything to show
        main([*words, "1", "3"])
    assert end.value.code == 3 and "error: --page: page() needs" in capfd.readouterr().err


def test_a_script_without_an_optimizer_hears_that_no_step_has_ended(tmp_path, capfd):
    path = tmp_path / "plain.py"
    path.write_text("import torch\nx = torch.ones(9, requires_grad=True)\nfor _ in '123': x.exp().sum().backward()\n")
    assert main(["torch", "run", "--budget", "1GiB", "--digest", "--explain", str(path)]) == 2
    told = capfd.readouterr().err
    assert "error: --explain: " in told and "0 have ended" in told and "no optimizer has stepped" in told


def test_a_script_sees_ctrl_c_as_under_python(tmp_path):
    path = tmp_path / "stopped.py"
    path.write_text("import os, signal, time\n"
                    "try:\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(60)\n"
                    "except KeyboardInterrupt:\n    print('saved')\n")
    done = subprocess.run([sys.executable, "-m", "minidl", "torch", "run", "--budget", "none", str(path)],
                          cwd=PAGE.parents[2], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "saved\n"), done.stderr
