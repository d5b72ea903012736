"""Files that lead anywhere: what is a file is read, all else refused in a few words, and nothing is waited for."""

import os
import socket
from pathlib import Path

import pytest
from rights import without_rights

import train
from minidl.checkpoint.safetensors import read_arrays
from minidl.errors import UserError
from minidl.outside.reading import (
    NotJson,
    Unreadable,
    is_file,
    is_folder,
    is_there,
    names_in,
    open_file,
    parse_json,
    read_bytes,
    read_json,
    read_text,
)
from tests.campaigns.damaged_files import within


def pipe(path):
    os.mkfifo(path)


def listening(path):
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)


NO_FILES = [(pipe, "a pipe, not a file"), (listening, "a socket, not a file"),
            (lambda path: path.mkdir(), "a folder, not a file"),
            (lambda path: path.symlink_to("/dev/zero"), "a device, not a file"),
            (lambda path: path.symlink_to("nowhere"), "No such file or directory"),
            (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
            (lambda path: path.symlink_to("x" * 300), "File name too long")]


@pytest.mark.parametrize(("make", "why"), NO_FILES)
def test_what_is_no_file_is_refused_at_once(tmp_path, monkeypatch, make, why):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "x")
    for read in (open_file, lambda path: read_bytes(path, most=9), lambda path: read_text(path, most=9), read_json):
        with pytest.raises(Unreadable) as error:
            read(tmp_path / "x")
        assert str(error.value) == f"cannot read {tmp_path / 'x'}: {why}"


@pytest.mark.parametrize(("name", "why"), [("x" * 300, "File name too long"), ("a\0b", "no file can have that name"),
                                           ("\ud800", "no file can have that name")])
def test_names_that_no_file_has_are_refused_whatever_is_asked(name, why):
    for ask in (open_file, is_there, is_file, is_folder, names_in):
        with pytest.raises(Unreadable, match=why):
            ask(name)


def test_what_a_name_leads_to_is_told(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "lost").symlink_to("nowhere")
    asked = ["", "file", "link", "lost", "none", "file/x"]
    assert [is_there(tmp_path / name) for name in asked] == [True, True, True, False, False, False]
    assert [is_file(tmp_path / name) for name in asked] == [False, True, True, False, False, False]
    assert [is_folder(tmp_path / name) for name in asked] == [True, False, False, False, False, False]
    assert names_in(tmp_path) == ["file", "link", "lost"]


def test_a_folder_that_may_not_be_searched_is_an_error_and_not_nothing(closed_folder):
    with without_rights():
        for ask in (is_there, is_file, is_folder, names_in, open_file):
            with pytest.raises(Unreadable, match="cannot read .*closed/x: Permission denied"):
                ask(closed_folder / "x")


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="no file here that fails when it is read")
def test_a_file_that_fails_while_it_is_read_is_refused(tmp_path):
    (tmp_path / "x.safetensors").symlink_to("/proc/self/mem")  # nothing is mapped at its first byte
    for read in (lambda path: read_bytes(path, most=9), read_arrays):
        with pytest.raises(Unreadable, match="x.safetensors: Input/output error"):
            read(tmp_path / "x.safetensors")


def test_no_more_is_read_than_was_asked_for(tmp_path):
    (tmp_path / "x").write_bytes(b"12345")
    assert read_bytes(tmp_path / "x", most=5) == b"12345"
    with pytest.raises(Unreadable, match="longer than the limit of 4 bytes"):
        read_bytes(tmp_path / "x", most=4)
    (tmp_path / "x").write_bytes(b"\xef\xbb\xbfa\xff")
    with pytest.raises(Unreadable, match="not UTF-8 at byte 4"):
        read_text(tmp_path / "x", most=9)


@pytest.mark.parametrize(("text", "message"), [
    (b"[" * 10**5, "at byte 0: not JSON that can be read: nested too deeply"),
    (b"1" * 5000, "at byte 0: not JSON that can be read: a number of thousands of digits"),
    (b'{"a": \xff}', "at byte 6: not UTF-8"), ("{é: 1}".encode(), "at byte 1: not JSON: Expecting property name"),
    ('{"é": x}'.encode(), "at byte 7: not JSON: Expecting value"), (b"", "at byte 0: not JSON: Expecting value"),
])
def test_what_is_no_json_is_refused_with_the_byte(text, message):
    with pytest.raises(NotJson) as error:
        parse_json(text)
    assert str(error.value).startswith(message) and isinstance(error.value, UserError)


def test_json_is_read_and_a_key_that_comes_twice_is_refused_if_asked():
    assert parse_json('\ufeff{"a": [1, 2.5]}'.encode()) == {"a": [1, 2.5]} == parse_json('{"a": 1, "a": [1, 2.5]}')
    with pytest.raises(NotJson, match="a key comes twice"):
        parse_json('{"a": 1, "a": 2}', unique_keys=True)


BERT = ["--model", "bert-tiny", "--device", "cpu:virtual", "--batch", "2", "--steps", "1"]
TEXT = str(Path(__file__).parents[1] / "support" / "text" / "stories.txt")


@pytest.mark.parametrize(("flags", "name"), [
    (["--plan"], "p.json"), (["--device"], "sim:p.json"), (["--device"], "cpu:p.json"), (["--data"], "p.tar"),
    (["--data"], "p.parquet"), ([*BERT, "--data"], "p.txt"), ([*BERT, "--data", TEXT, "--vocab"], "p"),
    (["--model", "lenet", "--batch", "2", "--device", "cpu:virtual", "--steps", "1", "--weights"], "p.safetensors"),
])
def test_no_flag_waits_for_a_pipe(tmp_path, monkeypatch, capsys, flags, name):
    monkeypatch.chdir(tmp_path)
    os.mkfifo(name.rpartition(":")[2])
    with within(60):
        assert train.main([*flags, name]) == 2
    assert "a pipe, not a file" in capsys.readouterr().err
    assert os.listdir() == [name.rpartition(":")[2]]
