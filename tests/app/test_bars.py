"""What is told while a run goes on, where no terminal is: lines, or nothing."""

import json

from flags import NET

import train
from minidl.cli.app.progress import Lines
from minidl.report.meter import Meter, StepMeasurements
from minidl.runtime.stats import Stats


def test_where_no_terminal_is_a_step_is_a_line_and_at_most_one_a_second(capsys):
    # Steps of 0.4 s: the first is told, then those that end a second or more after the last one told, and the last.
    times = iter([0.4, 0.4, 0.8, 1.2, 1.6, 1.6, 2.0, 2.4])
    lines = Lines([None] * 6, 0, 6, lambda: next(times))
    for number, _ in enumerate(lines, 1):
        lines.set_description_str(f"so fast in {number}", refresh=False)
    assert capsys.readouterr().err.splitlines() == ["1/6: so fast in 1", "4/6: so fast in 4", "6/6: so fast in 6"]


def test_a_run_in_a_pipe_writes_no_carriage_return_and_a_quiet_one_nothing(capsys):
    assert train.main([*NET, "--policy", "passive", "--steps", "2"]) == 0
    told = capsys.readouterr()
    assert "\r" not in told.err and told.err.splitlines()[-1].startswith("2/2: ") and "slid; host peak" in told.out
    assert train.main([*NET, "--policy", "passive", "--steps", "2", "--quiet", "--json", "-", "--seed", "3"]) == 0
    told = capsys.readouterr()
    result = json.loads(told.out)
    assert told.err == "" and result["seed"] == 3 and result["moved_bytes"] > 0 and result["search_seconds"] is None


def test_what_finding_a_plan_cost_is_what_the_first_half_took_longer():
    meter = Meter.__new__(Meter)
    nothing = Stats(*[0] * len(Stats.__dataclass_fields__))
    seconds = (7.0, 5.0, 4.0, 4.0, 3.0, 4.0)
    meter.steps, meter.warm = [StepMeasurements(each, nothing, 0.0) for each in seconds], False
    assert meter.unsettled_seconds() == (7 - 4) + (5 - 4) + 0
    meter.steps = [StepMeasurements(4.0, nothing, 0.0)]
    assert meter.unsettled_seconds() == 0
