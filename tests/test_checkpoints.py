"""Checkpoints that tests share: written once, whoever asks first, and never half."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests import checkpoints
from tests.checkpoints import checkpoint, copy_checkpoint
from tests.checkpoints.qwen import QwenKind


@pytest.fixture
def written(monkeypatch, tmp_path):
    """The folders that are written, each of one file; a cache of the test's own."""
    found = []

    def save(folder, kind, **options):
        found.append((kind, options))
        folder.mkdir()
        time.sleep(0.05)
        (folder / "config.json").write_text(str(options))
        return folder

    monkeypatch.setattr(checkpoints.Cache, "folder", tmp_path)
    monkeypatch.setattr(checkpoints, "save_checkpoint", save)
    return found


def test_several_that_ask_at_once_share_one_folder(written):
    ready = threading.Barrier(4)

    def ask(_):
        ready.wait(60)
        return checkpoint("qwen3_vl", seed=3)

    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(ask, range(4)))
    assert len(folders) == len(written) == 1 and (folders.pop() / "config.json").read_text() == "{'seed': 3}"


def test_equal_recipes_are_one(written):
    kinds = [QwenKind("qwen3_vl", tied=False), QwenKind("qwen3_vl", tied=False, noise=0.0)]
    folders = {*map(checkpoint, kinds), checkpoint("qwen3_vl", tied=False, seed=0)}
    assert len(folders) == 1 and checkpoint("qwen3_vl") not in folders
    assert written == [("qwen3_vl", {"tied": False}), ("qwen3_vl", {})]


def test_what_a_dead_writer_left_is_written_again(written, tmp_path):
    folder = checkpoint("blip")
    half = folder.rename(folder.with_suffix(".unfinished"))
    assert checkpoint("blip") == folder and not half.exists() and len(written) == 2


def test_a_copy_may_be_changed_and_the_shared_one_is_marked_read_only(written, tmp_path):
    own = copy_checkpoint(tmp_path / "own", "blip")
    (own / "config.json").write_text("changed")
    shared = checkpoint("blip") / "config.json"
    assert shared.read_text() == "{}" and not os.stat(shared).st_mode & 0o222
