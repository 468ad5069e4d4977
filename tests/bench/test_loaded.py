"""Which profiles and models a bench is given."""

from __future__ import annotations

import pytest

from vidspec.bench.loaded import Source, names_of
from vidspec.errors import UsageError


def test_all_means_every_lossless_profile_with_plain_decoding_first():
    names = names_of("all")
    assert names[0] == "ar" and len(names) == len(set(names)) > 10
    assert {"parallelvlm", "specvlm", "self-sd"} <= set(names)
    assert not any(name.startswith(("lvspec", "fly", "random-loose")) for name in names)


@pytest.mark.parametrize("text, complaint", [(" , ", "names none"), ("ar,sd-rand,ar", "names ar twice")])
def test_names_that_make_no_run(text, complaint):
    with pytest.raises(UsageError, match=complaint):
        names_of(text)


def test_a_draft_needs_a_target():
    with pytest.raises(UsageError, match="--draft needs --target"):
        Source(draft="x").names  # noqa: B018
    assert Source(target="x").names == ("x", None)
