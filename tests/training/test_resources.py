"""Training in processes of its own: it takes the memory that it says, and goes on after SIGKILL as before it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vidspec.training.steps import GPU_CLIPS
from vidspec.training.train import train, training_bytes

FOLDER = Path(__file__).parent
STEPS = 56


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peak memory is read as Linux counts it")
@pytest.mark.full
@pytest.mark.sample(full=1)
@pytest.mark.parametrize("shape", [(256, 1024, 8000), (896, 4864, 30000)], ids=["small", "medium"])
def test_training_takes_the_memory_that_it_says(shape):
    """No more, and more than half of it."""
    command = [sys.executable, str(FOLDER / "memory_of.py"), *map(str, shape)]
    estimate, taken = map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    assert taken <= estimate <= 2 * taken


def test_a_head_of_7b_fits_24_gb():
    """Qwen2.5-VL-7B in bfloat16: two blocks, five states, a Markov head of rank 256, embedding and output head."""
    hidden, inner, ids, rank = 3584, 18944, 152064, 256
    block = 2 * hidden * 128 * (28 + 4) + 3 * hidden * inner
    numbers = 2 * block + 5 * hidden * hidden + 2 * ids * rank
    assert (
        15e9 < training_bytes(numbers, 2 * ids * hidden * 2, ids, hidden, 28, 350, gpu=True) < 23e9 and GPU_CLIPS == 4
    )


@pytest.fixture(scope="module")
def uninterrupted(caption_lines, tmp_path_factory):
    """The files of a head whose training nothing ended."""
    folder = tmp_path_factory.mktemp("whole")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("platformdirs.user_cache_dir", lambda name: str(folder / "cache"))
        for _ in train(caption_lines, steps=STEPS, out=folder / "head"):
            pass
    torch.set_num_threads(threads)
    return {file.name: file.read_bytes() for file in (folder / "head").iterdir()}


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "count", "continues"),
    [("StatesProgress", 2, True), ("StepsProgress", 53, True), ("MeasuredClip", 1, True), ("TrainingPlan", 0, False)],
    ids=["states", "steps", "evaluation", "before"],
)
def test_a_killed_command_goes_on_and_gives_the_same_head(
    caption_lines, user_cache, tmp_path, uninterrupted, kind, count, continues, monkeypatch
):
    arguments = [caption_lines, user_cache, tmp_path / "head", STEPS, kind, count]
    killed = subprocess.run([sys.executable, str(FOLDER / "killed.py"), *map(str, arguments)], check=False)
    assert killed.returncode == -signal.SIGKILL and not (tmp_path / "head").exists()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    events = [*train(caption_lines, steps=STEPS, out=tmp_path / "head")]
    torch.set_num_threads(threads)
    assert events[0].continues == continues
    assert {file.name: file.read_bytes() for file in (tmp_path / "head").iterdir()} == uninterrupted
    begun = next((event.step for event in events if type(event).__name__ == "StepsProgress"), None)
    assert begun == {"StepsProgress": 51, "MeasuredClip": 56}.get(kind, 1)
    assert [*(user_cache / "training").iterdir()] == []
