"""Requests as parsed: the bodies of clients, and hostile ones, whose memory and time are bounded."""

import json
import subprocess
import sys

import pytest

from tests.serve.servers import asked, data_url
from vidspec.models.chat_request import MAX_JSON, MAX_STOP, MAX_VALUES, ChatError, parse_chat

URL = data_url(b"clip")
TEXT = {"type": "text", "text": "What moves?"}


def parsed(part, **more):
    body = {"messages": [{"role": "user", "content": [part, TEXT]}], **more}
    return parse_chat(json.dumps(body).encode(), lambda name: pytest.fail(f"{name} is not known"))


def test_shapes_of_a_video():
    coded = URL.partition(",")[2]
    for part in (
        {"type": "video_url", "video_url": {"url": URL}},
        {"type": "video", "video": URL},
        {"type": "video", "video": {"url": URL}},
        {"type": "file", "file": {"file_data": URL}},
    ):
        assert parsed(part).media[:2] == ("file", [URL])
    inline = parsed({"type": "input_video", "input_video": {"data": coded, "format": "mp4"}})
    assert inline.media[:2] == ("file", [f"data:;base64,{coded}"])


@pytest.mark.parametrize("where", ["part", "video", "mm_processor_kwargs"])
def test_frames_with_their_rate(where):
    frames, rate = ["data:image;base64,AAAA", "data:image/jpeg;base64,BBBB"], {"fps": 4}
    part = {"type": "video", "video": {"frames": frames, **rate} if where == "video" else frames}
    chat = parsed(part | (rate if where == "part" else {}), **({where: rate} if where == "mm_processor_kwargs" else {}))
    assert chat.media == ("frames", frames, "messages[0].content[0]", 4.0)


def test_a_rate_beside_the_video_samples_it():
    part = {"type": "video_url", "video_url": {"url": URL}, "fps": 0.5}
    assert parsed(part).sampling == {"fps": 0.5, "frames": None}
    assert parsed({"type": "video", "video": URL, "nframes": 6}).sampling == {"frames": 6, "fps": None}


SCHEMA = {"type": "object", "properties": {"scene": {"type": "string"}}}


@pytest.mark.parametrize(
    "constraint",
    [
        {"guided_json": SCHEMA},
        {"guided_choice": ["yes", "no"]},
        {"guided_regex": "a+"},
        {"structured_outputs": {"json": SCHEMA}},
        {"structural_tag": "{}"},
        {"grammar": 'root ::= "yes"'},
        {"json_schema": SCHEMA},
        {"regex": "a+"},
        {"ebnf": 'root ::= "yes"'},
        {"format": SCHEMA},
        {"nvext": {"guided_json": SCHEMA}},
        {"bad_words": ["red"]},
        {"allowed_token_ids": [1]},
        {"stop_token_ids": [1]},
        {"min_tokens": 5},
        {"response_format": {"type": "json_object", "value": SCHEMA}},
        {"response_format": {"type": "regex", "pattern": "a+"}},
    ],
)
def test_a_constraint_that_is_not_obeyed_is_refused(constraint):
    with pytest.raises(ChatError) as refused:
        parse_chat(json.dumps(asked(URL, **constraint)).encode(), lambda name: None)
    (name,) = constraint
    assert refused.value.status == 400 and refused.value.param.startswith(name)


def test_constraints_of_nothing():
    parse_chat(json.dumps(asked(URL, guided_json=None, min_tokens=0, stop_token_ids=[])).encode(), pytest.fail)


@pytest.mark.parametrize("kind", ["json_object", "json_schema", None])
def test_a_schema_within_the_format_is_obeyed(kind):
    form = {"schema": SCHEMA} if kind is None else {"type": kind, "schema": SCHEMA}
    chat = parse_chat(json.dumps(asked(URL, response_format=form)).encode(), pytest.fail)
    assert json.loads(chat.caption.generate["json_schema"]) == SCHEMA


def test_a_long_stop_string():
    with pytest.raises(ChatError, match="stop"):
        parse_chat(json.dumps(asked(URL, stop=["x" * (MAX_STOP + 1)])).encode(), pytest.fail)
    assert parse_chat(json.dumps(asked(URL, stop="x" * MAX_STOP)).encode(), pytest.fail)


def test_what_is_not_media_is_small():
    for more in ({"user": "x" * MAX_JSON}, {"zz": "\\" * MAX_JSON}):
        with pytest.raises(ChatError, match="beside its media") as large:
            parse_chat(json.dumps(asked(URL, **more)).encode(), lambda name: None)
        assert large.value.status == 413
    lines = "\n".join(["A" * 76] * (MAX_JSON // 20))
    assert parse_chat(json.dumps(asked(f"data:video/mp4;base64,{lines}")).encode(), pytest.fail).nbytes > 3 * MAX_JSON
    assert parse_chat(json.dumps(asked("data:," + "/" * MAX_JSON)).replace("/", "\\/").encode(), pytest.fail)


def test_frames_of_one_url_are_split_as_far_as_they_are_allowed():
    body = json.dumps(asked("data:video/jpeg;base64," + "AAAA," * 1000)).encode()
    assert len(parse_chat(body, pytest.fail, 16).media.urls) == 17


#: Bodies of 4 MiB, and of as many values as are parsed.
HOSTILE = """
import json, resource, sys
from vidspec.models.chat_request import MAX_VALUES, ChatError, parse_chat
SOME = b'{"messages":[{"role":"user","content":"x"}],"%s":[%s]}'
def repeated(head, one, tail):
    for size in (4 << 20, len(one) * MAX_VALUES // sum(map(one.count, (b",", b"[", b"{")))):
        yield head + one * (size // len(one)) + tail
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
for head, one, tail in (
    (b'{"messages":[', b"0,", b"0]}"), (b'{"messages":[', b"{},", b"{}]}"), (b'{"messages":', b"[", b"]}"),
    *((b'{"messages":[{"role":"user","content":"x"}],"%s":[' % name, one, one[:-1] + b"]}")
      for name in (b"stop", b"zz", b"metadata") for one in (b"1,", b"[],", b"{},", b'{"a":1},', b'"",')),
    (b'{"messages":[{"role":"user","content":[', b'{"type":"text"},', b'{"type":"text","text":""}]}]}'),
    (b'{"messages":[{"role":"user","content":[', b"0,", b"0]}]}"),
    (b'{"messages":[{"role":"user","content":[{"type":"video","video":[', b"0,", b"0]}]}]}"),
    (b'{"messages":[{"role":"user","content":[{"type":"video_url","video_url":{"url":"data:video/jpeg;base64,', b",",
     b'"}}]}]}'),
):
    for body in repeated(head, one, tail):
        before = peak()
        try:
            parse_chat(body, lambda name: None)
        except ChatError:
            pass
        print(len(body), peak() - before, head[-40:], one)
fields = b'{"messages":[]' + b"".join(b',"f%d":1' % number for number in range(MAX_VALUES - 1)) + b"}"
before = peak()
try:
    parse_chat(fields, lambda name: None)
except ChatError:
    pass
print(len(fields), peak() - before, b"fields")
"""


def test_values_beyond_the_most_are_not_parsed():
    for one in ("0", "{}", "[]", '{"a":1}'):
        with pytest.raises(ChatError, match="JSON values") as many:
            parse_chat(f'{{"messages":[{",".join([one] * 2 * MAX_VALUES)}]}}'.encode(), pytest.fail)
        assert many.value.status == 413
    with pytest.raises(ChatError, match=r"messages\[0\]: must be an object"):  # the first error, of one
        parse_chat(b'{"messages":[0,0]}', pytest.fail)


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="measures memory as Linux tells it")
def test_memory_of_hostile_bodies():
    done = subprocess.run([sys.executable, "-c", HOSTILE], capture_output=True, text=True, check=True)
    grown = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    assert len(grown) > 40
    # the peak never falls, so that what several bodies take is the sum
    assert sum(int(more) for _, more, _ in grown) < 64 << 20, done.stdout
    assert MAX_VALUES * 400 < 64 << 20
