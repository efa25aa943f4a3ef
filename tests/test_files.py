"""Files are replaced whole or not at all; pipes and devices are written to; links and other people's files are left alone."""

from __future__ import annotations

import os
import threading

import pytest

from circuitlib.files import read_text, whole, write_text


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("old")
    with pytest.raises(RuntimeError), whole(path) as new:
        assert new.suffix == ".csv" and new.parent == tmp_path
        new.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old" and [one.name for one in tmp_path.iterdir()] == ["a.csv"]
    write_text(path, "new\nlines\n")
    assert path.read_bytes() == b"new\nlines\n" and [one.name for one in tmp_path.iterdir()] == ["a.csv"]


def test_a_pipe_is_written_to_and_stays_one(tmp_path):
    pipe, heard = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: heard.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "said")
    reader.join(10)
    assert heard == ["said"] and pipe.is_fifo() and len(list(tmp_path.iterdir())) == 1
    write_text("/dev/null", "said")
    assert not os.path.isfile("/dev/null")


def test_what_a_link_leads_to_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link").symlink_to("mine")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "mine").read_text() == "mine" and (tmp_path / "link").read_text() == "new"


def test_only_ordinary_files_of_some_size_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_text("x" * 11)
    (tmp_path / "text").write_bytes(b"\xef\xbb\xbfx")
    (tmp_path / "bytes").write_bytes(b"\xff")
    assert read_text(tmp_path / "text", 10) == "x"
    for name, said in (
        ("pipe", "expected a file"),
        ("", "expected a file"),
        ("none", "can't be read"),
        ("large", "more than 10 bytes"),
        ("bytes", "not UTF-8 text"),
    ):
        with pytest.raises(ValueError, match=said):
            read_text(tmp_path / name, 10)
