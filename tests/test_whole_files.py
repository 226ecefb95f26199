"""A file is written completely or not at all, whatever happens while it is written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from benchmarks.torture.faults import tried
from mercer.files.whole import folder_beside, whole_file, write_text_whole


def test_contents_are_in_place_after_the_block_and_nothing_is_left_beside(tmp_path):
    place = tmp_path / "f.txt"
    place.write_text("old")
    with whole_file(place) as beside:
        beside.write_text("new")
        assert beside.parent.parent == tmp_path
        assert place.read_text() == "old"
    assert place.read_text() == "new"
    assert os.listdir(tmp_path) == ["f.txt"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("existed", [False, True])
def test_failure_in_the_block_leaves_what_was_there(tmp_path, error, existed):
    place = tmp_path / "f.txt"
    if existed:
        place.write_text("old")

    def write_half():
        with whole_file(place) as beside:
            beside.write_text("half of the n")
            raise error

    with pytest.raises(error):
        write_half()
    assert os.listdir(tmp_path) == ["f.txt"] * existed
    assert not existed or place.read_text() == "old"


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_failure_after_the_block_leaves_what_was_there(tmp_path, monkeypatch, step):
    place = tmp_path / "f.txt"
    place.write_text("old")

    def fail(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(OSError, match="no space"):
        write_text_whole(place, "new")
    assert place.read_text() == "old"
    assert os.listdir(tmp_path) == ["f.txt"]


def test_contents_reach_the_disk_before_the_name_does_and_then_the_name(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (calls.append("fsync"), fsync(descriptor)))
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("replace"), replace(a, b)))
    write_text_whole(tmp_path / "f.txt", "new")
    assert calls == ["fsync", "replace", "fsync"]


def test_a_killed_process_leaves_the_old_file_and_the_next_writer_clears_up(tmp_path):
    place = tmp_path / "f.txt"
    place.write_text("old")
    script = (
        "import os, signal, sys\n"
        "from mercer.files.whole import whole_file\n"
        "with whole_file(sys.argv[1]) as beside:\n"
        "    beside.write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(place)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert place.read_text() == "old"
    assert len(os.listdir(tmp_path)) == 2  # what it was writing is left
    write_text_whole(tmp_path / "other.txt", "another file")
    assert len(os.listdir(tmp_path)) == 3
    write_text_whole(place, "new")
    assert sorted(os.listdir(tmp_path)) == ["f.txt", "other.txt"]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_permissions_are_those_of_a_new_file_under_the_umask(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        with whole_file(tmp_path / "f.txt") as beside, tempfile.NamedTemporaryFile(dir=tmp_path) as file:
            # Some writers replace the file by one of their own, which only its owner may read.
            os.chmod(file.name, 0o600)
            os.link(file.name, f"{beside}.link")
            os.replace(f"{beside}.link", beside)
    finally:
        os.umask(before)
    assert (tmp_path / "f.txt").stat().st_mode & 0o777 == mode


def test_a_symbolic_link_stays_one_and_its_file_is_replaced(tmp_path):
    real, link = tmp_path / "real", tmp_path / "elsewhere" / "link"
    real.write_text("old")
    link.parent.mkdir()
    link.symlink_to(real)
    write_text_whole(link, "new – ü")
    assert link.is_symlink()
    assert real.read_text(encoding="utf-8") == "new – ü"
    assert os.listdir(link.parent) == ["link"]


def test_a_missing_folder_is_an_error_before_anything_is_written(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_text_whole(tmp_path / "absent" / "f.txt", "new")
    assert list(Path(tmp_path).iterdir()) == []


def test_what_another_writer_is_still_writing_is_left_alone(tmp_path):
    place = tmp_path / "f.txt"
    with whole_file(place) as slow:
        slow.write_text("slow")
        write_text_whole(place, "quick")
        assert slow.read_text() == "slow"
    assert place.read_text() == "slow"
    assert os.listdir(tmp_path) == ["f.txt"]


@pytest.mark.parametrize("days", [1, 30])
def test_without_locks_only_what_is_long_unchanged_counts_as_left_behind(tmp_path, monkeypatch, days):
    monkeypatch.setattr("mercer.files.whole.fcntl", None)
    place = tmp_path / "f.txt"
    with whole_file(place) as beside:
        then = os.stat(beside).st_mtime - days * 24 * 3600
        for path in (beside, beside.parent):
            os.utime(path, (then, then))
        with folder_beside(place):
            assert beside.exists() == (days < 7)
        if not beside.exists():  # so that the block can end
            beside.parent.mkdir()
            beside.touch()


def test_files_of_the_user_with_similar_names_are_never_removed(tmp_path):
    place = tmp_path / "f.txt"
    with whole_file(place) as beside:
        name = beside.parent.name
    similar = [name, name[:-1], f"{name}0", f"{name[:-8]}notes", f".{place.name}.0123abcd"]
    for each in similar:
        (tmp_path / each).write_text("mine")  # a file, where Mercer has folders
    (tmp_path / f"{name[:-8]}my-folder").mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / f"{name[:-8]}01234567").symlink_to(elsewhere)
    before = sorted(os.listdir(tmp_path))
    write_text_whole(place, "new")
    assert sorted(os.listdir(tmp_path)) == before


def test_the_longest_file_name_can_be_written(tmp_path):
    place = tmp_path / ("x" * 255)
    write_text_whole(place, "new")
    assert os.listdir(tmp_path) == [place.name]


def test_an_error_names_the_file_and_not_the_folder_beside_it(tmp_path):
    place = tmp_path / "absent" / "f.txt"
    with pytest.raises(FileNotFoundError) as caught:
        write_text_whole(place, "new")
    assert caught.value.filename == str(place)


def test_parts_of_a_table_lie_in_the_folder_that_the_next_writer_clears_up(tmp_path):
    pl = pytest.importorskip("polars")
    from mercer.cli.outputs import write_frames

    place = tmp_path / "table.parquet"
    seen = []

    def frames():
        for i in range(3):
            seen.append(os.listdir(tmp_path))
            yield pl.DataFrame({"x": [i]})

    write_frames(frames(), place)
    assert [len(names) for names in seen] == [1, 1, 1]
    assert os.listdir(tmp_path) == [place.name]
    assert pl.read_parquet(place)["x"].to_list() == [0, 1, 2]


def test_a_fault_at_any_call_leaves_the_old_file_or_the_new_one(tmp_path):
    place = tmp_path / "f.txt"
    place.write_text("old")

    def check(raw):
        if raw not in (b"old", b"new one"):
            raise ValueError(f"neither: {raw!r}")

    found = tried("a text", place, lambda: write_text_whole(place, "new one"), check)
    assert found.cases > 40
    assert found.failures == ()
