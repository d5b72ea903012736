"""The site shows the docstrings' tables of parameters as lists, and does not lose ``<name>``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs"))
from docstrings import readable  # noqa: E402


def test_a_table_of_parameters_becomes_a_list_with_its_continuation_lines():
    table = "A thing.\n\ndevice   a name\n         or a Device\nseed     all numbers follow from it"
    assert readable(table) == "A thing.\n\n- `device`: a name or a Device\n- `seed`: all numbers follow from it"
    assert readable("precision: its name.\ncupti: on a GPU,\n  each kernel.") == (
        "- `precision`: its name.\n- `cupti`: on a GPU, each kernel.")


def test_prose_and_code_stay_as_they_are():
    prose = "Raises UserError: it does.\nAnd more."
    assert readable(prose) == prose
    assert readable("Like so:\n\n    a: 1\n    b: <x>") == "Like so:\n\n    a: 1\n    b: <x>"


def test_a_name_in_angle_brackets_is_shown_and_not_taken_for_html():
    assert readable('"sim:<profile>" or ``cpu:<file.json>``') == '"sim:&lt;profile>" or ``cpu:<file.json>``'
