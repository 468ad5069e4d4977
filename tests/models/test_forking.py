"""Forks of a process that has used tokenizers in parallel."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
Tokenizer(WordLevel({"a": 0}, unk_token="a")).encode_batch(["a"] * 64)  # in parallel
from vidspec.models.chat_template import render_template
setting = lambda: os.environ.get("TOKENIZERS_PARALLELISM", "unset").encode() + b" "
os.register_at_fork(after_in_child=lambda: os.write(1, setting()))
render_template("t", lambda: "text")
os.write(1, setting())
"""


@pytest.mark.parametrize("set_by_user", [None, "true"])
def test_rendering_a_template_prints_no_warning_of_tokenizers(set_by_user):
    env = {key: value for key, value in os.environ.items() if key != "TOKENIZERS_PARALLELISM"}
    if set_by_user is not None:
        env["TOKENIZERS_PARALLELISM"] = set_by_user
    ran = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == [set_by_user or "false", set_by_user or "unset"] and ran.stderr == ""
