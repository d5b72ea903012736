"""The laboratory's commands: what they print and write, what they refuse, and a grid that goes on."""

import json
import random
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import minidl
from minidl import device as devices
from minidl.cli import lab
from minidl.cli.lab import kinds, paper, run, trace
from minidl.device import profiles
from minidl.lab import grid, kept, speeds, table
from minidl.lab.cell import Machine, RankedNetwork, unmanaged
from minidl.lab.grid import CellLimits
from minidl.lab.kept import Cell, CellFolder
from minidl.lab.row import COLUMNS, LATER_COLUMNS, CellResult
from minidl.lab.training_step import trace_of, training_step


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> str:
    path = str(tmp_path_factory.mktemp("lab") / "lenet.json")
    assert trace.main(["capture", "lenet:64", path]) == 0
    return path


def test_a_trace_is_looked_into(saved, capsys):
    assert lab.main(["trace", "info", saved]) == 0
    out = capsys.readouterr().out
    assert "calls, " in out and "peak " in out and "kept for gradients" in out and out.count("bound at") == 4


def test_a_trace_looked_into_has_the_times_of_a_replay(saved, tmp_path, capsys):
    """Those of the algorithms: the seconds of a call are those of the one that once ran."""
    document, path = json.loads(Path(saved).read_text()), tmp_path / "same.json"
    for call in document["calls"]:
        call.update(algorithms=call.get("algorithms") or [{"name": "a", "seconds": call["seconds"]}], seconds=7.0)
    path.write_text(json.dumps(document))
    outs = []
    for each in (saved, str(path)):
        assert trace.main(["info", each]) == 0
        outs.append(capsys.readouterr().out.replace(each, ""))
    assert outs[0] == outs[1]


def test_a_trace_looked_into_without_recomputation_has_the_bounds_of_its_replay(capsys):
    words = ["resnet20:64", "--no-recompute"]
    assert trace.main(["info", *words]) == trace.main(
        ["replay", *words, "--policy", "lru", "--steps", "1", "--bound", "16", "--budget", "70%,50%"]) == 0
    out = capsys.readouterr().out
    looked = re.findall(r"^bound at [75]0% .*: ([0-9.]+%)", out, re.MULTILINE)
    assert looked == [line.split()[7] for line in out.splitlines()[-2:]] and looked[0] < "90%"


@pytest.mark.parametrize(("name", "text", "message"), [
    ("a.json", '{"format": "minidl-trace", "version": 3, "tensors": [], "calls": []}', "the trace has no calls"),
    ("a.log", "op a 1\nop b 2\n", "the trace has 2 calls, and no tensor of theirs takes memory")])
def test_what_is_wrong_with_a_trace_is_told_with_its_file(tmp_path, monkeypatch, capsys, name, text, message):
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text)
    for words in (["trace", "info", name], ["trace", "replay", name], ["placement", name],
                  ["run", "--traces", name, "--out", "grid"]):
        assert lab.main(words) == 2
        assert capsys.readouterr().err.endswith(f"error: {name}: {message}\n")


def test_no_bound_of_tiny_calls_is_above_the_unmanaged_speed(tmp_path, capsys):
    log, lifetimes = tmp_path / "a.log", tmp_path / "b.csv"
    log.write_text("\n".join(f"op a\nmalloc {n} 4000000\nwrite {n}" + (f"\nread {n - 1}" if n else "")
                             for n in range(9)) + "\nop z\nread 0\nread 8\n")
    lifetimes.write_text("id,lower,upper,size\n1,0,3,4000000\n2,1,5,4000000\n3,3,6,300000\n4,4,8,2000000\n")
    for source in (log, lifetimes):
        assert lab.main(["trace", "info", str(source)]) == 0
        speeds = [float(found) for found in re.findall(r"([0-9.]+)% of the unmanaged speed", capsys.readouterr().out)]
        assert speeds and max(speeds) <= 100.0


def test_a_trace_is_run_again_and_compared_with_an_earlier_table(saved, tmp_path, capsys):
    rows = str(tmp_path / "rows.csv")
    again = ["trace", "replay", saved, "--policy", "passive,lru", "--budget", "95%,90%", "--steps", "2"]
    assert lab.main([*again, "--save", rows]) == 0
    found = table.read_csv(rows)
    assert [(row["policy"], row["status"]) for row in found] == [(p, "ok") for _ in "ab" for p in ("passive", "lru")]
    assert list(found[0]) == list(COLUMNS) and found[0]["settled_s"] > found[0]["unmanaged_s"] > 0
    assert lab.main([*again, "--reference", rows, "--link", "6GB/s,12GB/s", "--latency", "5us"]) == 0
    assert "%" in capsys.readouterr().out.splitlines()[-1]


def test_a_table_is_parquet_if_it_is_called_so(saved, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = str(tmp_path / "rows.parquet")
    assert lab.main(["trace", "replay", saved, "--policy", "passive", "--budget", "1GiB", "--steps", "1", "--save",
                     path]) == 0
    assert parquet.read_table(path).to_pylist()[0]["policy"] == "passive"


@pytest.mark.parametrize("words", [
    ["nothing"], ["trace", "replay", "nowhere.json"], ["trace", "info", "resnet50"], ["trace", "info", "resnet5:2"],
    ["trace", "info", "lenet:0"], ["trace", "replay", "lenet:2", "--policy", "atuo"],
    ["trace", "replay", "lenet:2", "--link", "12"], ["trace", "replay", "lenet:2", "--link", "1GB/s,2GB/s,3GB/s"],
    ["trace", "replay", "lenet:2", "--latency", "soon"], ["trace", "replay", "lenet:2", "--budget", "0%"],
    ["trace", "replay", "lenet:2", "--device", "p1000"], ["trace", "replay", "lenet:2", "--noise", "2"],
    ["trace", "replay", "lenet:2", "--steps", "-1"], ["run", "--out", "x"],
    ["run", "--out", "x", "--batches", "2"],
    ["run", "--out", "x", "--models", "m:f"], ["run", "--out", "x", "--traces", "lenet:2", "--kept"], ["trace"]])
def test_what_is_wrong_is_told_in_one_line(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [word if word != "12" else "12 parsecs" for word in words]
    assert lab.main(words) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and ": error: " in err and "unforeseen" not in err


def test_traces_damaged_anywhere_are_told_in_one_line_or_run(saved, capsys, tmp_path):
    """Truncated, cyclic, negative, unknown, beyond all sizes."""
    text = Path(saved).read_text()
    chance, path = random.Random(0), tmp_path / "bad.json"
    document = json.loads(text)
    bad = [text[:chance.randrange(len(text))] for _ in range(8)]
    for key, value in (("inputs", [10**9]), ("outputs", document["calls"][3]["outputs"]), ("seconds", -1),
                       ("seconds", 1e300), ("frees", [document["calls"][9]["inputs"][0]]), ("takes", [10**9]),
                       ("inputs", document["calls"][20]["outputs"]), ("writes", [77]), ("algorithms", [])):
        wrong = json.loads(text)
        wrong["calls"][5][key] = value
        bad.append(json.dumps(wrong))
    bad.append(json.dumps({**document, "tensors": [{**t, "bytes": 1 << 53} for t in document["tensors"]]}))
    bad.append(json.dumps({**document, "calls": []}))
    codes = []
    for each in bad:
        path.write_text(each)
        codes.append(trace.main(["replay", str(path), "--policy", "passive", "--budget", "1MiB", "--steps", "1"]))
        err = capsys.readouterr().err
        assert codes[-1] in (0, 2) and err.count("\n") == (codes[-1] == 2)
        assert "unforeseen" not in err, err
    assert codes.count(2) >= 16


# Grids ---------------------------------------------------------------------------------------------------------------
def lenet_cells() -> list[Cell]:
    return kept.cells(["lenet:32"], [Machine()], [0.95, None], ["passive"], steps=2)


def test_policies_that_settle_run_longer_than_others(tmp_path):
    words = ["--traces", "lenet:32", "--budgets", "95%", "--policies", "passive,capuchin", "--steps", "2"]
    assert run.main([*words, "--settled", "capuchin", "--jobs", "1", "--out", str(tmp_path)]) == 0
    rows = {row["policy"]: row["steps"] for row in table.read_csv(str(tmp_path / "table.csv"))}
    assert rows["passive"] == 2 < rows["capuchin"]


def test_pages_are_refused_without_a_checkout_before_any_cell_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paper, "CHECKOUT", tmp_path)
    grid = ["run", "--traces", "lenet:32", "--out", str(tmp_path / "grid"), "--page", str(tmp_path / "grid.md")]
    for words, wanted in ((grid, "--page"), (["paper", "table1"], "paper")):
        assert lab.main(words) == 2
        assert f"error: {wanted} is no part of the installed package" in capsys.readouterr().err
    assert not (tmp_path / "grid").exists()


def test_a_grid_goes_on_with_the_cells_that_are_missing(tmp_path, monkeypatch, capsys):
    words = ["--models", "lenet", "--batches", "32", "--budgets", "95%,device", "--policies", "passive", "--steps", "2",
             "--out", str(tmp_path), "--jobs", "2"]
    assert run.main([*words, "--page", str(tmp_path / "grid.md")]) == 0
    page = (tmp_path / "grid.md").read_text().splitlines()
    assert page[4].startswith("2 cells. ") and page[-1].startswith("All cells are in [grid.csv]")
    assert page[2].startswith(f"Made by `minidl lab run {' '.join(words[:4])} ")
    cells = (tmp_path / "grid.csv").read_text().splitlines()
    assert re.match(r"lenet:32,p100,passive,[0-9.]+%,100.0%$", cells[-1])
    rows = table.read_csv(str(tmp_path / "table.csv"))
    assert [row["status"] for row in rows] == ["ok", "ok"] and rows[1]["settled_s"] == rows[1]["unmanaged_s"]
    lost = lenet_cells()[0]
    (tmp_path / "cells" / f"{lost.name}.json").write_text("{")  # as if it had been damaged
    ran = []
    monkeypatch.setattr(grid.Worker, "carry_out", lambda self, cell, *_: ran.append(cell) or lost.failed("died: again"))
    assert run.main(words) == 0
    assert ran == [lost]
    assert [row["status"] for row in table.read_csv(str(tmp_path / "table.csv"))] == ["died: again", "ok"]
    capsys.readouterr()


def test_the_lines_of_a_picture_are_the_shares_of_the_table_and_a_refusal_has_no_point():
    """At half of the peak 2 s instead of 1 s are 50%; the bound of 0.8 s is above 100%, which nothing exceeds.
    Forty times the peak is drawn where the peak is."""
    row = CellResult("t", "d", "auto", 50, 0.5, 1.0, settled_s=2.0, bound_s=1.6)
    rows = [replace(row, budget_share=40.0, settled_s=1.0, bound_s=0.8), row,
            replace(row, policy="passive", settled_s=4.0),
            replace(row, policy="passive", budget_share=0.2, settled_s=None, bound_s=None, status="no room"),
            replace(row, device="e", bound_s=None)]
    assert speeds.lines(rows) == {
        ("t", "d"): {"auto": [(0.5, 0.5), (1.0, 1.0)], speeds.BOUND: [(0.5, 0.625), (1.0, 1.0)],
                     "passive": [(0.5, 0.25)]},
        ("t", "e"): {"auto": [(0.5, 0.5)]}}


def test_a_grid_is_drawn(tmp_path, capsys):
    imread = pytest.importorskip("matplotlib.image").imread
    words = ["--traces", "lenet:32", "--budgets", "95%,device", "--policies", "passive", "--steps", "2", "--bound", "4",
             "--out", str(tmp_path / "grid"), "--jobs", "1", "--plot", str(tmp_path / "grid.png")]
    assert run.main(words) == 0
    image = imread(tmp_path / "grid.png")
    assert image.shape[1] > image.shape[0] > 200 and image.min() < 0.2  # something is drawn
    (tmp_path / "grid.png").write_text("not written by minidl")
    assert run.main([*words, "--kept"]) == 2
    assert "grid.png" in capsys.readouterr().err
    assert run.main([*words, "--kept", "--force"]) == 0


def test_limits_end_a_cell_and_not_the_grid():
    cell = lenet_cells()[0]
    assert grid.carry_out(cell, CellLimits(seconds=1e-4)).status == "time: more than 0.0001 s"


def test_a_grid_of_a_trace_s_file_knows_what_is_in_it(tmp_path, saved, monkeypatch, capsys):
    """Another trace under the same name is other cells; what cannot be read, or run, ends the command."""
    monkeypatch.setattr(grid.Worker, "carry_out", lambda self, cell, *_: cell.failed(f"cannot: {cell.file[-13:]}"))
    path = tmp_path / "step.json"
    words = ["--traces", str(path), "--policies", "passive", "--out", str(tmp_path / "grid")]
    text = Path(saved).read_text()
    for different in (text, text.replace('"conv2d"', '"conv"')):
        path.write_text(different)
        assert run.main(words) == 0
    assert [len(list((tmp_path / "grid" / part).iterdir())) for part in ("cells", "traces")] == [2, 2]
    capsys.readouterr()
    path.write_text(text[:-30])
    assert run.main(words) == 2
    path.unlink()
    assert run.main(words) == 2
    assert [line.startswith("minidl lab run: error: ") for line in capsys.readouterr().err.splitlines()] == [True, True]


MINE = '''
from minidl.models.lenet import LeNet
from minidl.policies.passive import Passive

class First(Passive):
    name = "mine"

class Second(Passive):
    name = "mine"

class Prints(Passive):
    name = "prints"
    def victims(self, resident, pressure):
        print("these are resident:", len(resident))
        return super().victims(resident, pressure)

class Fails(Passive):
    def victims(self, resident, pressure):
        raise ValueError("my bug")
'''


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The folder, now the current one, with a module of the user's policies and a device's profile."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_cells.py").write_text(MINE)
    (tmp_path / "device.json").write_text(json.dumps(asdict(profiles.get("p100"))))
    return tmp_path


def test_an_edited_file_of_the_user_makes_other_cells(mine):
    def names():
        return [cell.name for cell in kept.cells(["lenet:4", "my_cells:LeNet:4"], [Machine("device.json"), Machine()],
                                                 [0.9], ["passive", "my_cells:First"])]

    def traces():
        return [CellFolder(str(mine / "grid")).trace_file(cell).name for cell in kept.cells(
            ["lenet:4", "my_cells:LeNet:4"], [Machine("device.json"), Machine()], [0.9], ["passive"])]

    before, its = names(), traces()
    (mine / "lenet.py").write_text("")  # a file of this name is not the network
    assert names() == before and len(set(before)) == 8 and len(set(its)) == 4
    (mine / "my_cells.py").write_text(MINE + "\n")
    after = names()
    assert [kept.cells(["lenet:4"], [Machine(placement=name)], [0.9], ["passive"])[0].code_digest != ""
            for name in ("my_cells:First", "bfc")] == [True, False]
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, True, False] + 4 * [False]
    assert [a == b for a, b in zip(its, traces(), strict=True)] == [True, True, False, False]
    (mine / "device.json").write_text(json.dumps(asdict(profiles.get("v100"))))
    assert [a == b for a, b in zip(after, names(), strict=True)] == [False, False, True, True, False, False, True, True]


def test_what_a_policy_prints_is_no_row_and_two_of_one_name_are_told_apart(mine, capsys):
    words = ["--traces", "lenet:32", "--budgets", "80%", "--steps", "2", "--jobs", "1", "--out", str(mine / "grid"),
             "--policies", "my_cells:Prints,my_cells:Fails,my_cells:First,my_cells:Second,passive"]
    assert run.main(words) == 0
    rows = table.read_csv(str(mine / "grid" / "table.csv"))
    assert ",".join(row["policy"] for row in rows) == words[-1]
    assert [row["status"][:5] for row in rows] == ["ok", "died:", "ok", "ok", "ok"]
    failed, passive = rows[1], rows[-1]
    assert all(failed[name] == passive[name] for name in ("device", "budget_bytes", "budget_share", "unmanaged_s"))
    capsys.readouterr()


def test_cells_that_cannot_run_are_repeated_on_demand(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(grid.Worker, "carry_out", lambda self, cell, *_: ran.append(cell) or cell.failed("cannot: x"))
    for again in (False, False, True):
        grid.run(lenet_cells(), str(tmp_path), again=again)
    assert len(ran) == 4


@pytest.mark.slow
def test_a_cell_without_memory_says_so():
    planned = replace(lenet_cells()[0], policy="auto", steps=6)  # compiled code is loaded for it
    assert grid.carry_out(planned, CellLimits(memory_bytes=100 << 20)).status.startswith("memory: ")


@pytest.mark.slow
def test_a_killed_grid_loses_no_cell_that_had_ended(tmp_path):
    words = [sys.executable, "-m", "minidl", "lab", "run", "--traces", "lenet:32",
             "--policies", "passive,lru,recompute", "--budgets", "95%,device", "--steps", "1", "--jobs", "1",
             "--out", str(tmp_path)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("1/6 ")
    process.kill()
    process.wait()
    process.stdout.close()
    kept = {path.name for path in (tmp_path / "cells").glob("*.json")}
    assert kept
    before = {name: (tmp_path / "cells" / name).stat().st_mtime_ns for name in kept}
    assert subprocess.run(words, stdout=subprocess.DEVNULL, check=False).returncode == 0
    assert before == {name: (tmp_path / "cells" / name).stat().st_mtime_ns for name in kept}
    assert len(table.read_csv(str(tmp_path / "table.csv"))) == 6


@pytest.mark.full
def test_a_cluster_gives_the_same_table(tmp_path):
    distributed = pytest.importorskip("distributed", reason="Dask is not installed: the extra cluster has it")
    with distributed.LocalCluster(n_workers=1, threads_per_worker=2, processes=False,
                                  dashboard_address=None) as cluster:
        there = grid.run(lenet_cells(), str(tmp_path / "there"), scheduler=cluster.scheduler_address)
    assert there == grid.run(lenet_cells(), str(tmp_path / "here"), jobs=2)


def test_a_grid_that_is_stopped_leaves_a_table_of_what_has_ended(tmp_path):
    def told(number, count, row):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        grid.run(lenet_cells(), str(tmp_path), told=told)
    assert [row["status"] for row in table.read_csv(str(tmp_path / "table.csv"))] == ["ok"]


def test_a_row_that_is_damaged_counts_as_missing(tmp_path):
    folder, cell = CellFolder(str(tmp_path)), lenet_cells()[0]
    assert folder.row(cell) is None
    folder.keep(cell, cell.failed("died: of signal 9"))
    assert folder.row(cell) == CellResult("lenet:32", "p100", "passive", 0, 0.95, 0.0, status="died: of signal 9")
    folder.keep(cell, replace(cell.failed("ok"), settled_s="abc"))
    assert folder.row(cell) is None
    assert cell.name != Cell("lenet:32", Machine(seed=1), "passive", 0.95, 2).name


def test_a_grid_runs_each_placement_and_a_disk_behind_the_host(tmp_path, capsys):
    words = ["--traces", "resnet20:32", "--budgets", "60%", "--policies", "passive", "--steps", "2", "--jobs", "1"]
    assert run.main([*words, "--placement", "best-fit,bfc,none", "--out", str(tmp_path / "a")]) == 0
    rows = table.read_csv(str(tmp_path / "a" / "table.csv"))
    assert [row["placement"] for row in rows] == ["best-fit", "bfc", "none"]
    assert rows[2]["settled_s"] < rows[0]["settled_s"] < rows[1]["settled_s"]
    assert "passive, none" in capsys.readouterr().out
    assert [label for _, of_one in speeds.lines([CellResult(**row) for row in rows]).items() for label in of_one] == [
        "passive", "passive, bfc", "passive, none"]
    full = [*words, "--host", "64KiB", "--out", str(tmp_path / "b")]
    assert run.main(full) == run.main([*full, "--spill-bytes", "1GiB"]) == 0
    without, with_disk = (CellFolder(str(tmp_path / "b")).row(cell) for cell in kept.cells(
        ["resnet20:32"], [Machine(host_bytes=1 << 16, spill_bytes=n) for n in (0, 1 << 30)], [0.6], ["passive"],
        steps=2))
    assert with_disk.out_bytes > 0 == without.out_bytes
    capsys.readouterr()
    assert run.main([*words, "--placement", "bfc,none", "--out", "x", "--page", "x.md"]) == 2
    assert "--page takes one placement and one number of ranks" in capsys.readouterr().err
    assert trace.main(["info", "lenet:2", "--placement", "bfc,none"]) == 2
    assert "--placement takes one placement here" in capsys.readouterr().err


def test_a_machine_that_recomputes_nothing_only_swaps(tmp_path, capsys):
    words = ["--traces", "resnet20:32", "--budgets", "60%", "--policies", "auto,dtr-swap,dtr", "--bound", "10",
             "--jobs", "1"]
    assert run.main([*words, "--out", str(tmp_path / "a")]) == run.main(
        [*words, "--no-recompute", "--out", str(tmp_path / "b")]) == 0
    free = table.read_csv(str(tmp_path / "a" / "table.csv"))
    auto, swaps, drops = table.read_csv(str(tmp_path / "b" / "table.csv"))
    assert auto["recompute_seconds"] == swaps["recompute_seconds"] == 0 < min(auto["out_bytes"], swaps["out_bytes"])
    assert drops["status"].startswith("no room") and all(row["recompute_seconds"] for row in free)
    assert auto["unmanaged_s"] == free[0]["unmanaged_s"] and auto["bound_s"] > free[0]["bound_s"]
    capsys.readouterr()


def test_a_grid_runs_ranks_that_share_the_hosts_link_with_the_seconds_of_a_training(tmp_path, capsys):
    words = ["--traces", "resnet20:32", "--budgets", "60%", "--policies", "passive", "--steps", "2", "--jobs", "1"]
    assert run.main([*words, "--ranks", "1,4", "--out", str(tmp_path / "a")]) == 0
    one, four = table.read_csv(str(tmp_path / "a" / "table.csv"))
    assert (one["ranks"], four["ranks"]) == (1, 4) and "resnet20:32 x4" in capsys.readouterr().out
    assert four["unmanaged_s"] > 1.1 * one["unmanaged_s"] and four["settled_s"] > 2.0 * one["settled_s"]
    with minidl.Runtime(devices.create("sim:p100", sharing=4), policy="passive", memory_budget=four["budget_bytes"],
                        ranks=minidl.ranks.modelled(4)) as runtime:
        step, seconds = training_step("resnet20", 4 * 32), []
        for _ in range(3):
            before = runtime.stats()
            with runtime.iteration():
                step()
            seconds.append(runtime.stats().since(before).seconds)
    assert four["settled_s"] == pytest.approx(seconds[-1], rel=1e-6)
    assert run.main([*words, "--ranks", "1,4", "--kept", "--out", str(tmp_path / "a")]) == 0  # no cell is run again
    capsys.readouterr()
    for others, said in ((["--traces", "torch:a.module:f:2"], "torch:a.module:f:2 has no exchanges"),
                         (["--noise", "0.1"], "--ranks and --noise do not go together"),
                         (["--no-recompute"], "--ranks and --no-recompute do not go together"),
                         (["--ranks", "1,0"], "numbers from 1")):
        with suppress(SystemExit):
            assert run.main([*words, "--ranks", "1,4", "--out", str(tmp_path / "a"), *others]) == 2
        assert said in capsys.readouterr().err


def test_a_network_that_runs_itself_computes_in_the_precision_of_its_trace():
    machine = Machine("h100")
    trace_alone = trace_of("lenet", 256, device="sim:h100")
    itself = unmanaged(trace_alone, machine, RankedNetwork("lenet", 256))
    assert itself == pytest.approx(unmanaged(trace_alone, machine), rel=1e-9)


def test_a_picture_is_refused_before_the_first_cell_where_matplotlib_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it was not installed
    words = ["--traces", "lenet:32", "--out", str(tmp_path / "grid"), "--plot", str(tmp_path / "a.png")]
    assert run.main(words) == 2
    assert "minidl[viz]" in capsys.readouterr().err and not (tmp_path / "grid").exists()


def test_cells_and_tables_from_before_there_were_placements_are_read(tmp_path):
    assert Cell("lenet:32", Machine(), "passive", 0.95, 2).name == "6776f8f6c82de7f8851e"
    assert len({Cell("lenet:32", machine, "passive", 0.95).name for machine in (
        Machine(), Machine(placement="none"), Machine(spill_bytes=1), Machine(ranks=2),
        Machine(recomputes=False))}) == 5
    row = CellResult("net:1", "p100", "passive", 100, 0.5, 1.0)
    lines = [line.split(",") for line in table.to_csv([row.values()]).splitlines()]
    keep = [n for n, name in enumerate(lines[0]) if name not in LATER_COLUMNS]
    (tmp_path / "rows.csv").write_text("\n".join(",".join(line[n] for n in keep) for line in lines))
    assert CellResult(**table.read_csv(str(tmp_path / "rows.csv"))[0]) == row


@pytest.mark.parametrize(("text", "value"), [("12GB/s", (12e9, 12e9)), ("12GB/s,10GB/s", (12e9, 10e9))])
def test_a_link_is_read(text, value):
    assert kinds.link(text) == value
    assert kinds.seconds("10us") == pytest.approx(1e-5) and kinds.seconds("2ms") == 2e-3 and kinds.seconds("3") == 3.0
    assert kinds.grid_budgets("device,50%,1MiB") == [None, 0.5, 1 << 20]


def test_tables_and_cells_with_the_former_columns_are_read_and_tables_name_the_new(tmp_path, capsys):
    row = CellResult("net:1", "p100", "passive", 100, 0.5, 1.0, stall_seconds=2.0, recompute_seconds=3.0)
    (tmp_path / "rows.csv").write_text(table.to_csv([row.values()]).replace("stall_seconds,recompute_seconds",
                                                                            "stall_s,replay_s"))
    found, = table.read_csv(str(tmp_path / "rows.csv"))
    assert (found["stall_seconds"], found["recompute_seconds"]) == (2.0, 3.0)
    assert "rows.csv: column replay_s is now: recompute_seconds" in capsys.readouterr().err
    folder, cell = CellFolder(str(tmp_path)), lenet_cells()[0]
    folder.keep(cell, row)
    path = tmp_path / "cells" / f"{cell.name}.json"
    path.write_text(path.read_text().replace("stall_seconds", "stall_s").replace("recompute_seconds", "replay_s"))
    assert folder.row(cell) == row
