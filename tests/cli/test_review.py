"""``vidspec review``: captions on disk on a page, saved so that no run replaces them, by nobody but its own page."""

import html
import json
import os
import re
import shutil
from http.client import HTTPConnection
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")
from starlette.testclient import TestClient

from tests.fake_captioner import SHORT, TEXT, FakeCaptioner
from tests.serve.servers import running
from vidspec.config.prompts import style
from vidspec.config.run_spec import RunSpec
from vidspec.embedded.samples import shipped
from vidspec.files import FileLock
from vidspec.runs.planning import plan
from vidspec.runs.review import CaptionFiles
from vidspec.runs.store import journal_lines
from vidspec.runs.store.journal_lines import parsed_mark
from vidspec.serve.config import ServeConfig
from vidspec.serve.review import FreshCaptions, build_review

#: A caption as a file holds it.
LINE = " ".join(TEXT.split())
MINE = "A caption that\nsomebody wrote."
V2 = ("--template", "v2 {caption}")
TOKEN = "token-of-the-test"


class Page:
    """The page of a review and what it can do."""

    def __init__(self, *paths, **fields):
        typed = RunSpec.make({"paths": paths, "format": "txt", **fields})
        planned = plan(typed)
        loads, asked = [], []

        class Fresh(FreshCaptions):
            def caption(self, run):
                asked.append(run)
                return super().caption(run)

        def load(profile):
            loads.append(profile.name)
            captioner = FakeCaptioner(profile)
            captioner.close = lambda: loads.append("closed")
            return captioner

        self.asked, self.loads, self.fresh = asked, loads, Fresh(load)
        app = build_review(CaptionFiles(planned, typed), self.fresh, ServeConfig(), TOKEN, "Captions")
        self.client = TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)

    def rows(self):
        """State, version and text of each clip."""
        page = self.client.get(f"/{TOKEN}/").text
        row = re.compile(
            r'data-name="(.*?)" data-state="(.*?)" data-version="(.*?)".*?<textarea.*?>\n(.*?)</', re.DOTALL
        )
        found = [one.groups() for part in page.split("<article")[1:] if (one := row.search(part))]
        return {name: (state, version, text) for name, state, version, text in found}

    def save(self, number, text, version, **more):
        return self.client.post(f"/{TOKEN}/clips/{number}/save", json={"text": text, "version": version}, **more)


@pytest.fixture(autouse=True)
def clips():
    for name in ("k/a/good.mp4", "k/b/good.mp4", "k/c/good.mp4"):
        Path(name).parent.mkdir(parents=True)
        Path(name).write_bytes(b"0123456789")


def text_of(name, folder="k"):
    return Path(f"{folder}/{name}/good.txt").read_text()


@pytest.mark.parametrize("more", [(), ("--output-dir", "out")], ids=["beside", "output-dir"])
def test_a_saved_caption_is_kept_by_the_next_run(vidspec, more):
    folder, fields = ("out", {"output_dir": "out"}) if more else ("k", {})
    assert vidspec("caption", "k", "--format", "txt", *more).code == 0
    page = Page("k", **fields)
    shown = page.rows()
    assert {state for state, *_ in shown.values()} == {"written"} and shown["k/a/good.mp4"][2] == LINE
    answer = page.save(1, MINE, shown["k/a/good.mp4"][1])
    assert answer.status_code == 200 and answer.json()["state"] == "edited"
    assert text_of("a", folder) == MINE + "\n" and page.rows()["k/a/good.mp4"] == (
        "edited",
        answer.json()["version"],
        MINE,
    )
    ran = vidspec("caption", "k", "--format", "txt", *more, *V2)
    assert ran.code == 0 and "1 edited file was kept" in ran.err
    assert text_of("a", folder) == MINE + "\n" and text_of("b", folder).startswith("v2")


def test_a_text_that_a_run_wrote_too_is_kept_once_it_is_saved(vidspec):
    """A journal knows the last two texts of a file: a saved one that is the same must count as edited all the same."""
    vidspec("caption", "k", "--format", "txt")
    first = text_of("a")
    vidspec("caption", "k", "--format", "txt", *V2)
    page = Page("k")
    for number, name, text in ((1, "a", first), (2, "b", text_of("b"))):
        answer = page.save(number, text, page.rows()[f"k/{name}/good.mp4"][1])
        assert answer.json()["state"] == "edited" and text_of(name).strip() == text.strip()
    vidspec("caption", "k", "--format", "txt", "--template", "v3 {caption}")
    assert text_of("a").strip() == first.strip() and text_of("b").startswith("v2") and text_of("c").startswith("v3")


def test_a_save_reads_no_journal_again(vidspec, monkeypatch):
    vidspec("caption", "k", "--format", "txt")
    parsed = []
    monkeypatch.setattr(journal_lines, "parsed_mark", lambda line: parsed.append(line) or parsed_mark(line))
    page = Page("k")
    shown = page.rows()
    lines = Path("k/.vidspec.jsonl").read_text().count("\n")
    assert len(parsed) == lines
    for number, (_, version, _) in enumerate(shown.values(), 1):
        now = page.save(number, MINE, version).json()
        assert now["state"] == page.save(number, f"{MINE} again", now["version"]).json()["state"] == "edited"
    assert {state for state, *_ in page.rows().values()} == {"edited"}
    assert len(parsed) == lines


def test_a_run_that_ends_while_the_page_is_open_is_seen(vidspec):
    page = Page("k")
    assert {state for state, *_ in page.rows().values()} == {"missing"}
    vidspec("caption", "k", "--format", "txt")
    shown = page.rows()
    assert {state for state, *_ in shown.values()} == {"written"}
    vidspec("caption", "k", "--format", "txt", *V2)
    assert page.save(1, MINE, shown["k/a/good.mp4"][1]).status_code == 409
    assert page.rows()["k/a/good.mp4"] == ("written", page.rows()["k/a/good.mp4"][1], f"v2 {LINE}")


#: Values of other types than a run writes.
ODD = [{"error": "x"}, {"original": ["x"]}, {"speed": {"tokens_per_s": "x"}}, {"models": "x"}, {"token_ids": 3}]


@pytest.mark.parametrize("odd", ODD, ids=str)
def test_an_odd_record_is_told_at_its_clip_alone(vidspec, odd):
    vidspec("caption", "k", "--format", "txt")
    file = Path("k/.vidspec.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    next(one for one in lines if one.get("path") == "k/b/good.mp4").update(odd)
    file.write_text("".join(json.dumps(one) + "\n" for one in lines))
    page = Page("k")
    text = page.client.get(f"/{TOKEN}/").text
    assert text.count("a record is not as vidspec writes it") == 1
    assert "a record is not as vidspec writes it" in text.split('id="clip-2"')[1].split('id="clip-3"')[0]
    assert {name: row[2] for name, row in page.rows().items()} == dict.fromkeys(page.rows(), LINE)
    assert page.save(2, MINE, page.rows()["k/b/good.mp4"][1]).json()["state"] == "edited"
    shutil.copy(file, "all.jsonl")
    ran = vidspec("report", "all.jsonl", "-o", "report.html")
    assert ran.code == 0 and ran.err.startswith("note: k/b/good.mp4: a record is not as vidspec writes it")
    assert "report.html: 3 records" in ran.err and "2 captioned, 1 failed" in Path("report.html").read_text()


@pytest.mark.parametrize("odd", [{"segment": []}, {"size": "x"}, {"existing": 1}], ids=str)
def test_an_odd_place_of_a_record_makes_its_line_a_damaged_one(vidspec, odd):
    vidspec("caption", "k", "--format", "txt")
    file = Path("k/.vidspec.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    next(one for one in lines if one.get("path") == "k/b/good.mp4")["job"].update(odd)
    file.write_text("".join(json.dumps(one) + "\n" for one in lines))
    assert {text for _, _, text in Page("k").rows().values()} == {LINE}
    ran = vidspec("caption", "k", "--format", "txt")
    assert ran.code == 0 and text_of("b").strip() == LINE


def test_it_shows_what_is_on_the_disk(vidspec):
    vidspec("caption", "k/a", "k/b", "--format", "txt")
    Path("k/d").mkdir()
    Path("k/d/good.mp4").write_bytes(b"x")
    Path("k/d/good.txt").write_text("<b>by hand</b>")
    Path("k/b/good.txt").write_text("")
    Path("k/a/good.mp4").write_bytes(b"another clip")
    page = Page("k")
    assert [state for state, *_ in page.rows().values()] == ["superseded", "missing", "missing", "foreign"]
    assert page.rows()["k/d/good.mp4"][2] == "&lt;b&gt;by hand&lt;/b&gt;"
    Path("k/a/good.txt").write_text("edited")
    assert page.rows()["k/a/good.mp4"][0] == "edited"


def test_the_text_before_a_rewrite_and_the_summary_are_folded(vidspec):
    passes = ("--rewrite", "shorter", "--segment", "1.5s", "--summary")
    assert vidspec("caption", "k/a", "--format", "txt", *passes).code == 0
    page = Page("k/a").client.get(f"/{TOKEN}/").text
    texts = re.findall(r'<details><summary>([^<]*)</summary><div class="caption">(.*?)</div>', page, re.DOTALL)
    assert texts == [("Before the rewrite", f"{TEXT}\n{TEXT}"), ("Summary of the whole clip", SHORT)]


def test_a_caption_that_a_stopped_run_would_replace_is_superseded(vidspec):
    vidspec("caption", "k", "--format", "txt")
    before = text_of("a")
    vidspec("caption", "k", "--format", "txt", *V2)
    Path("k/a/good.txt").write_text(before)  # a run that is killed after its mark leaves the earlier text
    assert [state for state, *_ in Page("k").rows().values()] == ["superseded", "written", "written"]


def test_a_missing_caption_is_written_and_kept(vidspec):
    page = Page("k", output_dir="new")
    assert page.save(3, MINE, "").json()["state"] == "foreign"
    ran = vidspec("caption", "k", "--format", "txt", "--output-dir", "new")
    assert "1 file that no run wrote was kept" in ran.err and text_of("c", "new") == MINE + "\n"


def test_captions_of_a_jsonl_are_shown_where_there_is_no_file_and_saved_as_one(vidspec):
    vidspec("caption", "k", "-o", "captions.jsonl")
    records = Path("captions.jsonl").read_bytes()
    Path("k/b/good.txt").write_text(MINE)
    page = Page("captions.jsonl")
    assert page.rows() == {
        "k/a/good.mp4": ("missing", "", TEXT),
        "k/b/good.mp4": ("foreign", page.rows()["k/b/good.mp4"][1], MINE),
        "k/c/good.mp4": ("missing", "", TEXT),
    }
    assert page.client.get(f"/{TOKEN}/").text.count("is the caption in the list") == 2
    assert page.save(1, MINE, "").status_code == 200 and text_of("a") == MINE + "\n"
    assert Path("captions.jsonl").read_bytes() == records and not Path("k/c/good.txt").exists()


def test_a_file_that_changed_since_it_was_shown_is_not_replaced(vidspec):
    vidspec("caption", "k", "--format", "txt")
    page = Page("k")
    version = page.rows()["k/a/good.mp4"][1]
    Path("k/a/good.txt").write_text("by another hand")
    answer = page.save(1, MINE, version)
    assert answer.status_code == 409 and "has changed on the disk" in answer.json()["error"]["message"]
    assert text_of("a") == answer.json()["now"]["text"] == "by another hand"
    assert page.save(2, MINE, "").status_code == 409, "a file that was not there when it was shown"
    assert page.save(1, MINE, answer.json()["now"]["version"]).status_code == 200 and text_of("a") == MINE + "\n"
    Path("k/c/good.txt").unlink()
    assert page.save(3, MINE, version).status_code == 409 and not Path("k/c/good.txt").exists()


def test_nothing_is_saved_while_a_run_writes(vidspec):
    vidspec("caption", "k", "--format", "txt")
    page = Page("k")
    before, version = text_of("a"), page.rows()["k/a/good.mp4"][1]
    with FileLock(Path(os.path.realpath("k/.vidspec.jsonl"))):
        answer = page.save(1, MINE, version)
    assert answer.status_code == 409 and "another run is writing it" in answer.json()["error"]["message"]
    assert text_of("a") == before and page.save(1, MINE, version).status_code == 200


def test_what_is_no_text_is_told_and_never_replaced():
    Path("k/a/good.txt").write_bytes(b"\xff\xfe\xfa")
    os.mkfifo("k/b/good.txt")
    page = Page("k")
    assert page.client.get(f"/{TOKEN}/").text.count("is not UTF-8 text") == 1
    assert list(page.rows()) == ["k/c/good.mp4"]
    for number in (1, 2):
        assert page.save(number, MINE, "").status_code == 409
    assert Path("k/a/good.txt").read_bytes() == b"\xff\xfe\xfa"


def again(page, number, prompt):
    return page.client.post(f"/{TOKEN}/clips/{number}/again", json={"prompt": prompt})


def test_another_caption_is_made_by_models_that_are_loaded_once_and_writes_nothing(vidspec):
    vidspec("caption", "k", "--format", "txt")
    page, before = Page("k", prompt=("Who?",)), text_of("b")
    page.rows()
    assert page.loads == [] and 'value="Who?"' in page.client.get(f"/{TOKEN}/").text
    for prompt in ("Where?", "  "):
        assert again(page, 2, prompt).json() == {"text": LINE}
    assert [(run.job.path, run.job.prompt, run.prompt) for run in page.asked] == [
        ("k/b/good.mp4", "Where?", "Where?"),
        ("k/b/good.mp4", None, "Who?"),
    ], "the given prompt is the profile's"
    page.fresh.close()
    assert page.loads == [page.asked[0].profile.name, "closed"] and text_of("b") == before


def test_another_caption_is_like_those_of_the_run(vidspec):
    """Its pair, profile, prompt and template; of a clip without a caption those of the last run of the folder."""
    run = ("--style", "brief", "--template", "ohwx, {caption}", "--pair", "embedded-qwen", "--profile", "vanilla-sd")
    os.rename("k/c", "c")
    assert vidspec("caption", "k", "--format", "txt", *run).code == 0
    os.rename("c", "k/c")
    assert vidspec("caption", "k/b", "--format", "txt", "--prompt", "Who?", "--max-new-tokens", "9").code == 0
    page = Page("k")
    shown = page.client.get(f"/{TOKEN}/").text
    prompts = [html.unescape(one) for one in re.findall(r'<input value="(.*?)"', shown)]
    assert prompts == [style("brief"), "Who?", "Who?"]
    assert "embedded-qwen, profile vanilla-sd, template &#39;ohwx, {caption}&#39;" in shown
    assert again(page, 1, "").json() == again(page, 1, "What else?").json() == {"text": f"ohwx, {LINE}"}
    assert again(page, 2, "").json() == again(page, 3, "").json() == {"text": f"ohwx, {LINE}"}, "which b's run kept"
    models = [(one.profile.models.pair, one.profile.generate.max_new_tokens, one.job.prompt) for one in page.asked]
    assert models[:2] == [("embedded-qwen", models[0][1], None), ("embedded-qwen", models[0][1], "What else?")]
    assert [one[1:] for one in models[2:]] == [(9, None), (9, None)] and models[2][0] != "embedded-qwen"
    assert page.loads == ["vanilla-sd", "closed", page.asked[2].profile.name]


def test_options_of_review_hold_for_another_caption(vidspec):
    vidspec("caption", "k", "--format", "txt", "--template", "ohwx, {caption}", "--profile", "vanilla-sd")
    page = Page("k", overrides={"generate.max_new_tokens": 5, "models.pair": "embedded-qwen"})
    assert again(page, 1, "").json() == {"text": f"ohwx, {LINE}"}
    (run,) = page.asked
    assert (run.profile.models.pair, run.profile.generate.max_new_tokens) == ("embedded-qwen", 5)
    assert run.profile.name == "vanilla-sd"


def test_segments_a_rewrite_and_fields_of_a_run_are_repeated(vidspec):
    Path("m.jsonl").write_text(json.dumps({"path": "k/a/good.mp4", "tags": "red"}))
    passes = ("--rewrite", "shorter", "--segment", "1.5s", "--summary", "--template", "{tags}: {caption}")
    assert vidspec("caption", "--manifest", "m.jsonl", "--format", "txt", *passes).code == 0
    page, written = Page("k/a"), text_of("a")
    assert (again(page, 1, "").json() == {"text": written.strip()} and "red: " not in written) or "red" in written


def test_captions_of_version_0_4_0_are_captioned_again_by_the_profile(vidspec):
    vidspec("caption", "k", "--format", "txt", "--template", "ohwx, {caption}")
    journal = Path("k/.vidspec.jsonl")
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(line for line in lines if not line.startswith('{"run": ')))
    assert again(Page("k"), 1, "").json() == {"text": LINE}


def undo(page, number, version):
    return page.client.post(f"/{TOKEN}/clips/{number}/undo", json={"version": version})


def test_the_last_save_is_undone(vidspec):
    """The file is as the run wrote it again, or not there; what changed since is kept."""
    vidspec("caption", "k/a", "--format", "txt")
    page, before = Page("k"), text_of("a")
    for number, name, state in ((1, "a", "written"), (2, "b", "missing")):
        saved = page.save(number, MINE, page.rows()[f"k/{name}/good.mp4"][1]).json()
        answer = undo(page, number, saved["version"])
        assert (answer.status_code, answer.json()["state"]) == (200, state)
        assert undo(page, number, answer.json()["version"]).status_code == 409
    assert text_of("a") == before and not Path("k/b/good.txt").exists()
    saved = page.save(1, MINE, page.rows()["k/a/good.mp4"][1]).json()
    Path("k/a/good.txt").write_text("by another hand")
    assert undo(page, 1, saved["version"]).status_code == 409 and text_of("a") == "by another hand"
    assert undo(page, 3, "").status_code == 409


def test_videos_are_sent_in_ranges():
    answer = Page("k").client.get(f"/{TOKEN}/clips/2", headers={"range": "bytes=2-4"})
    assert (answer.status_code, answer.content) == (206, b"234")
    assert answer.headers["content-range"] == "bytes 2-4/10" and answer.headers["content-type"] == "video/mp4"


def test_hostile_requests(vidspec):
    vidspec("caption", "k", "--format", "txt")
    page, before = Page("k"), text_of("a")
    version = page.rows()["k/a/good.mp4"][1]
    for headers in ({"host": "evil.example"}, {"origin": "http://evil.example"}, {"origin": "null"}):
        assert page.save(1, MINE, version, headers=headers).status_code == 403
        assert page.client.get(f"/{TOKEN}/", headers=headers).status_code == 403
        assert page.client.get(f"/{TOKEN}/clips/1", headers=headers).status_code == 403
    body = {"text": MINE, "version": version}
    for path in ("/clips/1/save", "/other/clips/1/save", "//clips/1/save", f"/{TOKEN}x/clips/1/save"):
        assert page.client.post(path, json=body).status_code == 404
    for path in ("/", "/clips/1", "/other/", "/other/clips/1"):
        answer = page.client.get(path)
        assert answer.status_code == 404 and TOKEN not in answer.text
    names = (
        "0",
        "4",
        "-1",
        "99999999999999999999",
        "9" * 5000,
        "\u0661",
        "1.0",
        "k/a/good.txt",
        "%2fetc%2fpasswd",
        "1%00",
    )
    for name in names:
        assert page.client.get(f"/{TOKEN}/clips/{name}").status_code == 404
        assert page.client.post(f"/{TOKEN}/clips/{name}/save", json=body).status_code == 404
    with running(page.client.app, ServeConfig()) as url:  # no client here takes the dots out of a path
        for name in ("..", "../..", "%2e%2e", "../../k/a/good.txt", "1/../../../../etc/passwd", "/etc/passwd"):
            asked = HTTPConnection(url.partition("//")[2])
            asked.request("GET", f"/{TOKEN}/clips/{name}")
            assert asked.getresponse().status == 404
    plain = page.client.post(f"/{TOKEN}/clips/1/save", content=json.dumps(body), headers={"content-type": "text/plain"})
    assert plain.status_code == 415
    for wrong in ([], {}, {"text": 1, "version": version}, {"text": MINE}, "x"):
        assert page.client.post(f"/{TOKEN}/clips/1/save", json=wrong).status_code == 400
    for path, half in (("save", b'{"text": "\\ud800", "version": "%s"}'), ("again", b'{"prompt": "\\udfff"}')):
        half = half.replace(b"%s", version.encode())
        answer = page.client.post(
            f"/{TOKEN}/clips/1/{path}", content=half, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 400
    huge = {"text": "x" * (5 << 20), "version": version}
    assert page.client.post(f"/{TOKEN}/clips/1/save", json=huge).status_code == 413
    long = {"text": "x" * (1 << 20), "version": version}
    assert page.client.post(f"/{TOKEN}/clips/1/save", json=long).json()["error"]["message"].endswith("at most 1 MiB")
    assert page.client.get(f"/{TOKEN}/clips/1/save").status_code == 405
    assert text_of("a") == before and page.loads == []
    policy = page.client.get(f"/{TOKEN}/").headers
    assert "frame-ancestors 'none'" in policy["content-security-policy"] and policy["referrer-policy"] == "no-referrer"


def test_a_page_without_a_server_is_for_reading_only(vidspec):
    shutil.copy(shipped()[0], "k/a/good.mp4")
    os.rename("k/a/good.mp4", "k/a/#1 %41.mp4")
    vidspec("caption", "k", "--format", "txt")
    ran = vidspec("review", "k", "-o", "page.html")
    assert (ran.code, ran.err) == (0, "page.html: 3 clips, for reading only\n")
    page = Path("page.html").read_text()
    assert (
        "3 written. <strong>Read-only<" in " ".join(page.split())
        and page.count(" readonly>") == 3
        and "data-do=" not in page.partition("<script>")[0]
    )
    assert 'src="k/a/%231%20%2541.mp4"' in page and page.count("<dt>tokens/s</dt>") == 3
    assert FakeCaptioner.made[1:] == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("k", "--format", "jsonl"), "--format jsonl: review edits one file of text for each clip"),
        (("k", "--format", "txt,srt"), "--format txt,srt: review edits one file of text for each clip"),
        (("k", "--format", "json", "--output-dir", "out"), "--format json: review edits one file of text"),
        (("k", "-o", "page.txt"), "--output page.txt: must end in .html"),
        (("k", "-o", "page.html", "--open"), "--output and --open exclude each other"),
        (("k", "-o", "page.html", "--prompt", "a"), "--output and --prompt exclude each other"),
        (("https://example.org/clip.mp4",), "https://example.org/clip.mp4: review needs clips that are files"),
        (("none",), "none: "),
    ],
)
def test_refused_with_a_hint(vidspec, args, message):
    if args == ("none",):
        Path("none").mkdir()
        message = "there is no video"
    ran = vidspec("review", *args)
    assert ran.code == 2 and ran.err.startswith(f"error: {message}") and ran.err.count("\n") == 1


def test_packages_that_are_missing_are_named(vidspec, monkeypatch):
    monkeypatch.setattr("vidspec.cli.serve.find_spec", lambda name: None)
    ran = vidspec("review", "k")
    assert ran.code == 2 and ran.err == (
        "error: review needs starlette, which is not installed (pip install aiohttp starlette uvicorn)\n"
    )
