"""Random orders of commands and edits: no text of a person is lost, and every list has the text that holds now."""

import json
import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.fake_captioner import FakeReader, record
from tests.tiers import EVERY, Tier
from vidspec.config.run_spec import RunSpec
from vidspec.events.tally import Tally
from vidspec.runs.formats.base import make_format
from vidspec.runs.merge import render_records, write_merged
from vidspec.runs.planning import plan
from vidspec.runs.remaining import plan_clips
from vidspec.runs.review import CaptionFiles
from vidspec.runs.store.places import read_captions
from vidspec.runs.store.records import record_of

CLIPS = ("k/a.mp4", "k/b.mp4", "k/sub/c.mp4")
#: Of all parts; thousands in ``make sweep``.
ORDERS = 60 if Tier.quick else 2000 if os.environ.get(EVERY) else 600


@dataclass
class Person:
    """The model: texts that a person wrote, where they hold, and those that commands were told to replace."""

    holds: dict[Path, str] = field(default_factory=dict)  # by caption file
    aside: list[str] = field(default_factory=list)  # each is in a FILE~
    texts: int = 0

    def write(self, file: Path) -> str:
        self.texts += 1
        self.holds[file] = f"text {self.texts} of a person"
        return self.holds[file]

    def replaced(self, files: Iterator[Path]) -> None:
        self.aside += [self.holds.pop(file) for file in [*files] if file in self.holds]

    def check(self) -> None:
        for file, text in self.holds.items():
            assert file.read_text().strip() == text, f"{file} is not as the person left it"
        kept = {path.read_text().strip() for path in Path().rglob("*.txt~*")}
        assert {*self.aside} <= kept, "a replaced text is nowhere"


class Orders:
    """What a person and commands do in one folder, in any order."""

    def __init__(self, seed: int) -> None:
        self.random, self.person, self.done = random.Random(seed), Person(), []
        self.touched = 0
        for clip in CLIPS:
            Path(clip).parent.mkdir(parents=True, exist_ok=True)
            Path(clip).write_bytes(b"x")

    def file(self, folder: str = "k") -> Path:
        return Path(folder, os.path.relpath(self.random.choice(CLIPS), "k")).with_suffix(".txt")

    def caption(self, most: int = 99, **fields: object) -> None:
        """Caption as a command does, at most so many parts: a run that is killed then leaves its files behind."""
        planned = plan(RunSpec.make({"paths": ("k",), **fields}))
        spec, profile = planned.spec, planned.profile
        store = planned.open_store()
        for job in plan_clips(planned.entries, store, spec, profile, Tally(total=len(CLIPS))):
            parts = [job.part(number, 2) for number in range(2)] if spec.segment else [job]
            for part in parts:
                if part.segment is not None:
                    part.start, part.end = part.segment * 1.5, part.segment * 1.5 + 1.5
                if most == 0 or (part.segment is not None and part.segment in job.done):
                    continue
                most -= 1
                part = replace(part, result=record(job.path))
                pending = store.add(job, record_of(part, spec, profile, job.content))
                if pending is not None:
                    pending.show()
        store.close(planned.entries, complete=most > 0)

    def rerun(self) -> None:
        self.caption(format="txt", most=self.random.choice((1, 99)))

    def another_template(self) -> None:
        self.caption(format="txt", template=f"v{self.random.randrange(3)} {{caption}}")

    def another_format(self) -> None:
        self.caption(format=self.random.choice(("txt,srt", "srt", "webdataset-txt,srt")))

    def into_a_folder(self) -> None:
        self.caption(format="txt,csv,musubi", output_dir="out")

    def a_list(self) -> None:
        self.caption(format="musubi", output="list.jsonl")
        self.check_list("list.jsonl")

    def merge(self) -> None:
        captions = read_captions([Path("k")]).one_each()
        form = make_format("musubi", several=True)
        write_merged(Path("merged.jsonl"), render_records(captions.records, form), form)
        self.check_list("merged.jsonl")

    def check_list(self, name: str) -> None:
        found = {row["video_path"]: row["caption"] for row in map(json.loads, Path(name).read_text().splitlines())}
        wanted = {clip: self.person.holds.get(Path(clip).with_suffix(".txt")) for clip in CLIPS}
        for clip, text in wanted.items():
            if text is not None and Path("k/.vidspec.jsonl").exists():
                assert found.get(clip) == text, f"{name} has not the text of {clip} that holds"

    def cut(self) -> None:
        self.caption(segment="1.5", cut="cut")

    def overwrite(self) -> None:
        self.person.replaced(Path(clip).with_suffix(".txt") for clip in CLIPS)
        self.caption(format="txt", overwrite=True)

    def replace_foreign(self) -> None:
        before = {path: text for path, text in self.person.holds.items() if path.parts[0] == "k"}
        self.caption(format="txt", existing="replace")
        self.person.replaced(path for path, text in before.items() if path.read_text().strip() != text)

    def edit(self) -> None:
        file = self.random.choice([self.file(), self.file(), self.file("out"), self.segment()])
        if file.parent.is_dir():
            file.write_text(self.person.write(file) + self.random.choice(("", "\n")))

    def segment(self) -> Path:
        file = self.file("cut")
        return file.with_name(f"{file.stem}-00{self.random.randint(1, 2)}.txt")

    def delete(self) -> None:
        file = self.random.choice([self.file(), self.file("out"), self.segment()])
        file.unlink(missing_ok=True)
        self.person.holds.pop(file, None)

    def review(self) -> None:
        files = CaptionFiles(plan(RunSpec.make({"paths": ("k",), "format": "txt"})))
        number = self.random.randrange(len(CLIPS))
        clip = files.clip(number)
        before = self.person.holds.get(clip.file)
        saved = files.save(number, self.person.write(clip.file), clip.version)
        if self.random.random() < 0.3:
            files.undo(number, saved.version)
            self.person.holds.pop(clip.file)
            self.person.holds |= {} if before is None else {clip.file: before}

    def another_clip(self) -> None:
        self.touched += 1
        Path(self.random.choice(CLIPS)).write_bytes(b"x" * (self.touched + 1))

    def take(self, steps: int) -> None:
        commands = (self.rerun, self.another_template, self.another_format, self.into_a_folder, self.a_list, self.merge)
        commands += (self.cut, self.overwrite, self.replace_foreign)
        people = (self.edit, self.edit, self.delete, self.review, self.another_clip)
        for _ in range(steps):
            step = self.random.choice(commands + people)
            self.done.append(step.__name__)
            step()
            self.person.check()


@pytest.fixture
def fast(tmp_path, monkeypatch):
    """In a folder of its own, without waiting for the disk."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr("os.fsync", lambda number: None)
    monkeypatch.setattr("vidspec.runs.segment_files.ClipReader", FakeReader)
    return tmp_path


def test_context_quotes_the_text_of_a_part_that_holds_now(fast):
    """And summaries are made of it: an edited file of a segment wins over its record."""
    orders, film = Orders(0), {"segment": "1.5", "cut": "cut", "context": True}
    orders.caption(most=1, **film)
    Path("cut/a-001.txt").write_text("edited by eye")
    planned = plan(RunSpec.make({"paths": ("k",), **film}))
    store = planned.open_store()
    job = plan_clips(planned.entries, store, planned.spec, planned.profile, Tally(total=3))[0]
    store.close(planned.entries, complete=False)
    assert (job.path, job.done) == ("k/a.mp4", {0: "edited by eye"})


@pytest.mark.sample(full=4)
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.full) for part in range(1, 10))])
def test_no_text_of_a_person_is_lost_in_any_order_of_commands(fast, part):
    for seed in range(part * ORDERS // 10, (part + 1) * ORDERS // 10):
        folder = fast / str(seed)
        folder.mkdir()
        os.chdir(folder)
        orders = Orders(seed)
        try:
            orders.take(12)
        except Exception as error:
            raise AssertionError(f"seed {seed}, after {', '.join(orders.done)}: {error}") from error
        shutil.rmtree(folder)
