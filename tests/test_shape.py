"""Counters of the code's shape. A commit that raises a bound says what the functions buy.

Each bound is what was counted when it was set, and two percent.
"""

import gc
import shutil
import statistics
import sys
import threading
from importlib import import_module
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType

import pytest

import vidspec
from vidspec import Captioner
from vidspec.cli import main
from vidspec.decoding.sequence import Sequence
from vidspec.display.state import PanelState
from vidspec.embedded.samples import shipped
from vidspec.engine.forward import Engine
from vidspec.events.events import Finished, Round
from vidspec.runs.run import _RunningClips

ROOT = Path(vidspec.__file__).parent
#: Parts of functions.
INNER = ("<lambda>", "<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<module>")
#: Functions, and their files, from the end of a pass of the target to the panel, on both threads.
WAY, WAY_FILES = 35, 22
#: Functions that run in this process to caption one clip.
RAN = 1550
#: Functions of cli, config and runs from the arguments to the first clip that a captioner is asked, and climbs between
#: their files; 233 and 92 in version 0.4.0.
BEGUN, CLIMBS = 207, 83
#: Classes with the path of the clip while it is captioned.
HELD = 7


def is_own(code: CodeType) -> bool:
    return code.co_filename.startswith(str(ROOT)) and code.co_name not in INNER


class EngineCalls:
    """Profiles the engine's thread: ``ways`` has the functions entered between a target pass and its delivery."""

    def __init__(self):
        self.ways, self.target, self._seen = [], None, None
        self._run = getattr(Engine.run, "__wrapped__", Engine.run).__code__

    def __call__(self, frame, event, argument):
        code = frame.f_code
        if event == "c_call" and self._seen is not None and code.co_name == "_step":
            if getattr(argument, "__name__", "") == "put":
                self.ways.append(self._seen)
                self._seen = None
        elif event == "return" and code is self._run and frame.f_locals["self"].model is self.target:
            self._seen = {}
        elif event == "call" and self._seen is not None and is_own(code):
            self._seen[code] = None


@pytest.fixture
def profiled():
    """Sets a profiler of this thread and of those that start later, and takes both back."""
    before = sys.getprofile()

    def start(here, others=None):
        threading.setprofile(others)
        sys.setprofile(here)

    yield start
    sys.setprofile(before)
    threading.setprofile(None)


def usual(ways):
    """The way with the median number of functions."""
    length = statistics.median_low([len(way) for way in ways])
    return next(way for way in ways if len(way) == length)


def test_the_way_of_a_token_from_the_pass_to_the_panel(profiled):
    engine, here, mine, clip = EngineCalls(), {}, [], str(shipped()[0])

    def caller(frame, event, argument):
        if event == "call" and is_own(frame.f_code):
            here[frame.f_code] = None

    threading.setprofile(engine)
    with Captioner.from_profile("vanilla-sd", overrides={"models.threads": 1, "draft.gamma": 5}) as captioner:
        engine.target = captioner.client.setup.target.model
        panel = PanelState(path=clip, profile="vanilla-sd")
        profiled(caller, engine)
        for event in captioner.stream(clip, max_new_tokens=64):
            panel.apply(event)
            if isinstance(event, Round):
                mine.append(dict(here))
            here.clear()
        profiled(None)
    way = [*usual(engine.ways), *usual(mine)]
    files = {code.co_filename for code in way}
    told = "\n".join(f"{Path(code.co_filename).relative_to(ROOT)}: {code.co_name}" for code in way)
    assert panel.counts.emitted > 9 and any(code.co_name == "apply" for code in way), told
    assert 9 < len(way) <= WAY and len(files) <= WAY_FILES, told


@pytest.mark.full
def test_the_functions_that_run_for_one_clip(profiled, capsys):
    seen = set()

    def note(frame, event, argument):
        if event == "call" and is_own(frame.f_code):
            seen.add(frame.f_code)

    profiled(note, note)
    code = main(["caption", str(shipped()[-1]), "--quiet"])
    profiled(None)
    assert code == 0 and capsys.readouterr().out
    assert 500 < len(seen) <= RAN


def test_the_way_from_the_arguments_to_the_first_clip(profiled, monkeypatch, capsys):
    """Distinct functions that are entered, comprehensions and bodies of classes and modules apart.

    A climb is a return to a file that was left before: where the reader goes back to it.
    """
    way, take = {}, _RunningClips.take
    rooms = tuple(f"{ROOT / room}/" for room in ("cli", "config", "runs"))

    def note(frame, event, argument):
        code = frame.f_code
        is_function = code.co_flags & CO_OPTIMIZED and code.co_name not in INNER
        if event == "call" and is_function and code.co_filename.startswith(rooms):
            way.setdefault(code)

    def taken(source):
        if (request := take(source)) is not None:
            profiled(None)
        return request

    import_module("vidspec.cli.app")  # makes the options, once for each process
    monkeypatch.setattr(_RunningClips, "take", taken)
    profiled(note)
    code = main(["caption", str(shipped()[-1]), "--format", "jsonl", "--set", "generate.max_new_tokens=2"])
    profiled(None)
    assert code == 0 and capsys.readouterr().out
    climbs, left, here = 0, set(), ""
    for one in way:
        climbs += one.co_filename != here and one.co_filename in left
        here = one.co_filename
        left.add(here)
    told = "\n".join(f"{Path(one.co_filename).relative_to(ROOT)}: {one.co_qualname}" for one in way)
    assert 50 < len(way) <= BEGUN and climbs <= CLIMBS, f"{len(way)} functions, {climbs} climbs\n{told}"


def holders(text):
    """Classes of the package whose objects refer to a text, themselves or by a mapping or a sequence of theirs."""
    found = set()
    for one in gc.get_objects():
        kind = type(one)
        if not str(getattr(kind, "__module__", "")).startswith("vidspec"):
            continue
        for held in gc.get_referents(one):
            values = held.values() if isinstance(held, dict) else held if isinstance(held, tuple | list) else (held,)
            if any(isinstance(value, str) and value == text for value in values):
                found.add(f"{kind.__module__}.{kind.__qualname__}")
    return found


@pytest.mark.full
def test_the_classes_that_hold_a_clip(tmp_path, monkeypatch):
    clip = str(shutil.copy(shipped()[-1], tmp_path / "a-clip-of-this-test.mp4"))
    emit, found, rounds = Sequence.emit, set(), []

    def sampled(sequence, event):
        rounds.append(isinstance(event, Round))
        if (rounds[-1:] == [True] and rounds.count(True) in (1, 3)) or isinstance(event, Finished):
            found.update(holders(clip))
        return emit(sequence, event)

    monkeypatch.setattr(Sequence, "emit", sampled)
    for _ in vidspec.run(clip, output=str(tmp_path / "out.jsonl"), profile="vanilla-sd", max_new_tokens=40):
        found |= holders(clip)
    assert 2 <= len(found) <= HELD, "\n".join(sorted(found))
