"""Options of ``vidspec caption`` for answers in JSON."""

import pytest

pytest.importorskip("llguidance")


@pytest.mark.parametrize("option", [("--fields", "a"), ("--json-schema", '{"type": "object"}')])
def test_json_excludes_what_says_more(vidspec, option):
    ran = vidspec("caption", "good.mp4", "--json", *option)
    assert (ran.code, ran.out) == (2, "") and f"--json and {option[0]} exclude each other" in ran.err


def test_messages_name_the_option_that_was_typed(vidspec):
    ran = vidspec("caption", "good.mp4", "--json-schema", "no.json")
    assert ran.err == "error: --json-schema: no.json: No such file or directory\n"
    ran = vidspec("caption", "good.mp4", "--json", "--stop", ".")
    assert ran.code == 2 and "--stop: excludes --json, which ends the text" in ran.err


def test_tables_have_the_columns_of_the_fields(vidspec):
    assert (
        vidspec("caption", "good.mp4", "--fields", "a, b", "--format", "csv")
        .out.splitlines()[0]
        .endswith(",prompt,data_a,data_b")
    )
    assert vidspec("caption", "good.mp4", "--json", "--format", "csv").out.splitlines()[0].endswith(",prompt")
