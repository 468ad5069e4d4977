"""``vidspec caption requests.jsonl --format openai-batch``: answered line by line, resumed, the same bytes again."""

import json
from pathlib import Path

from tests.fake_captioner import TEXT, FakeCaptioner
from tests.runs.shards import CLIP
from tests.runs.test_openai_batch import data_url, request, write


def test_a_batch_is_answered_and_resumed(vidspec):
    lines = [request(name, data_url(CLIP), f"What is {name}?", max_tokens=9) for name in ("a", "b")]
    lines.append(request("c", "nowhere.mp4"))
    write(lines[0], lines[2])
    args = ("caption", "b.jsonl", "--format", "openai-batch", "-o", "answers.jsonl")
    assert vidspec(*args).code == 1
    write(*lines)  # one more: the first is not captioned again
    ran = vidspec(*args, "--retry-failed")
    assert ran.code == 1 and [one["prompt"] for one in FakeCaptioner.made[-1].asked] == ["What is b?"]
    found = {one["custom_id"]: one for one in map(json.loads, Path("answers.jsonl").read_text().splitlines())}
    answers = {name: one["response"] and one["response"]["body"]["choices"][0] for name, one in found.items()}
    assert {name: one and one["message"]["content"] for name, one in answers.items()} == {
        "a": TEXT,
        "b": TEXT,
        "c": None,
    }
    assert "media must be data:" in found["c"]["error"]["message"]
    before = Path("answers.jsonl").read_bytes()
    assert vidspec(*args).code == 1 and Path("answers.jsonl").read_bytes() == before
    Path("answers.jsonl").unlink()
    assert vidspec(*args).code == 1 and sorted(Path("answers.jsonl").read_bytes()) == sorted(before)
