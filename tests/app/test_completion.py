"""The shell's completion offers the commands that there are, and the flags that each of them takes."""

import shutil
import subprocess
from importlib import util

import pytest

from minidl.__main__ import COMMANDS, main
from minidl.cli.app.flags import all_flags
from minidl.cli.completion import all_commands

ASK = """source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
$(complete -p minidl | sed -E 's/.*-F ([^ ]+).*/\\1/')
printf '%s\\n' "${COMPREPLY[@]}"
"""


def test_every_command_is_completed():
    (commands,) = (action for action in all_commands()._actions if action.dest == "command")
    assert set(commands.choices) == set(COMMANDS)
    train = {flag for action in commands.choices["train"]._actions for flag in action.option_strings}
    assert train == {flag for action in all_flags()._actions for flag in action.option_strings} and "--csv" in train
    view = {flag for action in commands.choices["view"]._actions for flag in action.option_strings}
    assert train < view and "--against" in view


def test_a_shell_that_nobody_completes_for_is_an_error(capsys):
    assert main(["completion", "fish"]) == 2
    said = capsys.readouterr().err
    assert said == "minidl completion: error: no completion for 'fish'; there is one for bash, zsh, tcsh\n"


@pytest.mark.skipif(util.find_spec("shtab") is not None, reason="shtab is installed")
def test_without_shtab_the_extra_is_named(capsys):
    assert main(["completion", "bash"]) == 2
    assert 'pip install "minidl[completion]"' in capsys.readouterr().err


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
def test_bash_completes_a_command_a_flag_and_a_value(tmp_path, capsys):
    pytest.importorskip("shtab", reason="extra completion")
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "minidl.bash"
    script.write_text(capsys.readouterr().out)

    def offered(*words: str) -> list[str]:
        asked = subprocess.run(["bash", "-c", ASK, "bash", str(script), "minidl", *words], capture_output=True,
                               text=True, check=True)
        return asked.stdout.split()

    assert offered("tr") == ["train"]
    assert offered("train", "--memory-b") == ["--memory-budget"]
    assert offered("lab", "trace", "re") == ["replay"]
    assert set(offered("train", "--optimizer", "ada")) == {"adam", "adamw"}
