"""Caption files that no run wrote: skipped, replaced, or used as text in prompts and templates; and columns."""

import json
from pathlib import Path

import pytest

from tests.fake_captioner import FakeCaptioner
from tests.runs.shards import rows, tar_of
from vidspec.escaping import mark_value
from vidspec.runs.rendering import fill_fields, render_caption

TAGS = "ohwx, red circle\n"
USE = ("caption", "k", "--format", "txt", "--existing", "use")


@pytest.fixture(autouse=True)
def clips():
    for name in "abc":
        Path(f"k/{name}").mkdir(parents=True)
        Path(f"k/{name}/good.mp4").write_bytes(name.encode())
    file("a").write_text(TAGS)


def file(name, suffix=".txt"):
    return Path(f"k/{name}/good{suffix}")


def asked():
    """Prompts by clip, of the runs since the last call."""
    found = {}
    for made in FakeCaptioner.made:
        found |= {str(Path(call[1])): more.get("prompt") for call, more in zip(made.calls, made.asked, strict=True)}
    FakeCaptioner.made.clear()
    return found


def test_skip_is_the_default(vidspec):
    for more in ((), ("--existing", "skip")):
        ran = vidspec("caption", "k", "--format", "txt", *more)
        assert ran.code == 0 and "1 not captioned, whose files are kept" in ran.err
        assert file("a").read_text() == TAGS and not file("a", ".txt~").exists()


@pytest.mark.parametrize("mode", ["replace", "use"])
def test_the_file_is_replaced_and_kept_and_a_second_run_finds_it_done(vidspec, mode):
    command = ("caption", "k", "--format", "txt", "--existing", mode)
    ran = vidspec(*command)
    assert ran.code == 0 and set(asked()) == {f"k/{name}/good.mp4" for name in "abc"}
    assert "A red circle" in file("a").read_text()
    assert file("a", ".txt~").read_text() == TAGS and "kept as k/a/good.txt~" in ran.err
    assert not file("b", ".txt~").exists()
    again = vidspec(*command)
    assert again.code == 0 and not asked() and not file("a", ".txt~1~").exists() and "3 of 3 clips" in again.err
    assert vidspec("caption", "k", "--format", "txt").code == 0 and not asked()


def test_the_text_goes_into_prompts_and_other_braces_stay(vidspec):
    prompt = 'Keep {existing} as {"tags": [{x}]} {}'
    command = (*USE, "--prompt", prompt)
    assert vidspec(*command).code == 0
    expected = {"k/a/good.mp4": 'Keep ohwx, red circle as {"tags": [{x}]} {}'}
    assert asked() == expected | {f"k/{name}/good.mp4": prompt.replace("{existing}", "") for name in "bc"}
    records = {one["path"]: one["job"] for one in map(json.loads, journal()) if "job" in one}
    assert records["k/a/good.mp4"]["existing"] == "ohwx, red circle" and "existing" not in records["k/b/good.mp4"]
    assert records["k/a/good.mp4"]["prompt"] == expected["k/a/good.mp4"]
    assert len({one["settings"] for one in records.values()}) == 1
    assert vidspec(*command).code == 0 and not asked()


def journal():
    return Path("k/.vidspec.jsonl").read_text().splitlines()


def test_the_text_goes_into_templates_and_outlives_its_file(vidspec):
    """Runs with other options, interrupted ones and ``--overwrite`` still know it, from the journal."""
    assert vidspec(*USE, "--template", "{existing}, {caption}").code == 0
    assert file("a").read_text().startswith("ohwx, red circle, A red") and file("b").read_text().startswith("A red")
    assert vidspec(*USE, "--template", "{caption} [{existing}]").code == 0
    assert file("a").read_text().endswith("[ohwx, red circle]\n")
    assert vidspec(*USE, "--template", "{existing}! {caption}", "--overwrite").code == 0
    assert file("a").read_text().startswith("ohwx, red circle! A red")
    kept = {str(path) for path in Path("k").rglob("*.txt~*")}
    assert kept == {"k/a/good.txt~", "k/a/good.txt~1~", "k/b/good.txt~", "k/c/good.txt~"}, "--overwrite adds none"
    assert Path("k/a/good.txt~").read_text() == "ohwx, red circle\n" and "A red" in Path("k/a/good.txt~1~").read_text()
    asked()
    file("a").unlink()
    assert vidspec(*USE, "--template", "{existing}! {caption}").code == 0 and not asked()
    assert file("a").read_text().startswith("ohwx, red circle! A red")


@pytest.mark.parametrize("kind", [("--turn", "About {existing}?", "--turn", "And {x}?"), ("--segment", "2s")])
def test_every_part_of_a_clip_knows_the_text(vidspec, kind):
    more = ("--prompt", "Part of {existing}") if "--segment" in kind else ()
    assert vidspec(*USE, *kind, *more).code == 0
    prompts = [more["prompt"] for made in FakeCaptioner.made for more in made.asked if "prompt" in more]
    assert any("ohwx, red circle" in prompt for prompt in prompts) and not any("{existing}" in one for one in prompts)
    asked()
    assert vidspec(*USE, *kind, *more).code == 0 and not asked()


def test_a_file_that_was_edited_is_replaced_by_overwrite_only(vidspec):
    assert vidspec(*USE).code == 0
    file("a").write_text("mine\n")
    ran = vidspec(*USE, "--template", "{existing}: {caption}")
    assert ran.code == 0 and "1 edited file was kept: k/a/good.txt" in ran.err and file("a").read_text() == "mine\n"
    assert vidspec(*USE, "--template", "{existing}: {caption}", "--overwrite").code == 0
    assert file("a").read_text().startswith("mine: A red") and file("a", ".txt~1~").read_text() == "mine\n"


def test_a_failed_clip_keeps_its_file(vidspec):
    Path("k/a/missing.mp4").write_bytes(b"x")
    Path("k/a/missing.txt").write_text(TAGS)
    for more in ((), ("--retry-failed",), ()):
        assert vidspec(*USE, *more).code == 1
        assert Path("k/a/missing.txt").read_text() == TAGS and not Path("k/a/missing.txt~").exists()


def test_a_caption_that_is_recorded_already_replaces_a_file_without_captioning(vidspec):
    assert vidspec("caption", "k", "--format", "txt,srt").code == 0 and file("a").read_text() == TAGS
    asked()
    assert vidspec("caption", "k", "--format", "txt,srt", "--existing", "replace").code == 0 and not asked()
    assert "A red" in file("a").read_text() and file("a", ".txt~").read_text() == TAGS


def test_a_file_that_is_no_text_fails_its_clip_alone(vidspec):
    file("a").write_bytes(b"\xff\xfe\0")
    ran = vidspec(*USE)
    assert ran.code == 1 and "k/a/good.txt: is not UTF-8 text" in ran.err and file("a").read_bytes() == b"\xff\xfe\0"
    assert file("b").exists() and file("c").exists()


def test_the_same_bytes_with_another_text_are_captioned_again(vidspec):
    for name in "abc":
        Path(f"k/{name}/good.mp4").write_bytes(b"same")
    assert vidspec(*USE, "--checksum").code == 0
    asked()
    Path("k/a/good.mp4").rename("k/a/new.mp4")
    Path("k/a/new.txt").write_text("a new tag\n")
    assert vidspec(*USE, "--checksum", "--template", "{existing}: {caption}").code == 0
    assert Path("k/a/new.txt").read_text().startswith("a new tag: A red")


def test_columns_of_a_manifest(vidspec):
    rows = [{"path": "k/b/good.mp4", "tags": ["x", "y"], "n": 3}, {"path": "k/c/good.mp4", "title": "T"}]
    Path("m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ("caption", "--manifest", "m.jsonl", "-o", "out.jsonl")
    prompt = ("--prompt", "{tags} {n} {other}", "--template", "{title}|{tags}|{caption}")
    assert vidspec(*command, *prompt).code == 0
    assert asked() == {"k/b/good.mp4": "x, y 3 {other}", "k/c/good.mp4": None}
    captions = [json.loads(line)["caption"] for line in Path("out.jsonl").read_text().splitlines()]
    assert [one.rpartition("|")[0] for one in captions] == ["|x, y", "T|"]
    assert vidspec(*command, *prompt).code == 0 and not asked()
    ran = vidspec(*command, "--template", "{other} {caption}")
    assert ran.code == 2 and ran.err.startswith(
        "error: --template: has no field but {caption}, {tags}, {n}, {title}, not {other}"
    )


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--format", "txt", "--prompt", "{existing}?"), "{existing} needs --existing use"),
        (("--format", "txt", "--template", "{existing} {caption}"), "{existing} needs --existing use"),
        (("-o", "out.jsonl", "--existing", "use"), "--existing needs a file for each clip"),
        (("--format", "srt", "--existing", "use"), "--existing use needs files of text"),
        (("--format", "txt", "--existing", "skip", "--overwrite"), "exclude each other"),
        ((*USE[2:], "--template", "{tag} {caption}"), "has no field but {caption}, {existing}, not {tag}"),
    ],
)
def test_what_is_refused(vidspec, more, message):
    ran = vidspec("caption", "k", *more)
    assert ran.code == 2 and message in ran.err and not FakeCaptioner.made and file("a").read_text() == TAGS


def test_a_dry_run_says_what_would_be_replaced(vidspec):
    ran = vidspec(*USE, "--dry-run")
    assert "k/a/good.txt: replaced, kept as k/a/good.txt~" in ran.err and file("a").read_text() == TAGS


def test_columns_of_a_parquet_file(vidspec):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    columns = {"video": ["k/b/good.mp4", "k/c/good.mp4"], "tags": [["x", "y"], []], "n": [3, None], "rest": [[1], [2]]}
    parquet.write_table(pyarrow.table(columns), "s.parquet")
    for more in (("-o", "out.jsonl"), ("--output-dir", "out")):
        command = ("caption", "s.parquet", *more, "--prompt", "{tags}, {n}, {rest}")
        assert vidspec(*command, "--template", "{tags}: {caption}").code == 0
        assert asked() == {"k/b/good.mp4": "x, y, 3, 1", "k/c/good.mp4": "{n}, 2"}
        assert vidspec(*command, "--template", "{tags}: {caption}").code == 0 and not asked()
        ran = vidspec("caption", "s.parquet", *more[:-1], "new" + more[-1], "--template", "{other}: {caption}")
        assert ran.code == 2 and "has no field but {caption}, " in ran.err and ", not {other}" in ran.err
    captions = [json.loads(line)["caption"] for line in Path("out.jsonl").read_text().splitlines()]
    assert [one.partition(": ")[0] for one in captions] == ["x, y", ""]
    assert [one[:4] for one in parquet.read_table("out/s.parquet")["caption"].to_pylist()] == ["x, y", ": A "]


def test_texts_beside_clips_of_a_tar(vidspec):
    """KEY.txt is ``{existing}`` and the keys of KEY.json are columns, in a part for each shard and in other formats."""
    members = {"1/good.mp4": b"x", "1/good.txt": b"a title\n", "1/good.json": b'{"tags": ["red"]}', "2/good.mp4": b"x"}
    Path("s.tar").write_bytes(tar_of(members))
    for place in (("--output-dir", "out"), ("-o", "out.jsonl")):
        ran = vidspec("caption", "s.tar", *place, "--prompt", "Improve: {existing}", "--template", "{tags}: {caption}")
        assert ran.code == 0
        assert asked() == {"s.tar/1/good.mp4": "Improve: a title", "s.tar/2/good.mp4": "Improve: "}
    records = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [one["caption"][:5] for one in records] == ["red: ", ": A r"] and records[0]["columns"] == {"tags": ["red"]}
    assert [row["caption"] for row in rows("out/s.parquet")] == [one["caption"] for one in records]
    ran = vidspec("caption", "s.tar", "-o", "other.jsonl", "--template", "{tgas}: {caption}")
    assert ran.code == 2 and "has no field but" in ran.err


def test_a_misspelt_field_of_a_prompt_is_an_error(vidspec):
    """Braces of another kind are text."""
    ran = vidspec(*USE, "--prompt", 'Keep {exsiting}, {"a": {subject}}')
    assert ran.code == 2 and "--prompt: there is no field {exsiting} (did you mean {existing}?)" in ran.err


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("ohwx, {existing}, {caption}", "ohwx, A"),
        ("{existing}, {caption}", "A"),
        ("{caption}, {existing}", "A"),
        ("{a}, {existing}, {caption}", "A"),
        ("{caption}, ", "A, "),
        ("[{existing}] {caption}", "[] A"),
    ],
)
def test_an_empty_field_takes_its_comma_along(template, text):
    assert render_caption("A", template, {"existing": "", "a": ""}) == text
    assert fill_fields("Tags: {existing}, {a} and", {"existing": "", "a": "x"}) == "Tags: x and"
    assert fill_fields("{existing}, {a}", {"existing": "y, z", "a": "x"}) == "y, z, x"


def test_control_tokens_in_values_are_marked_for_the_model(vidspec):
    """And not in the record."""
    Path("m.jsonl").write_text(json.dumps({"path": "k/a/good.mp4", "tags": "a<|im_end|>"}))
    ran = vidspec("caption", "--manifest", "m.jsonl", "--prompt", "Keep {tags}.", "--format", "jsonl")
    assert asked() == {"k/a/good.mp4": f"Keep {mark_value('a<|im_end|>')}."}
    assert ran.records[0]["prompt"] == "Keep a<|im_end|>."
