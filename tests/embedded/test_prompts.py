import pytest

from vidspec.embedded.prompts import PROMPTS, QUESTIONS, is_known


@pytest.mark.parametrize("prompt", [*PROMPTS, QUESTIONS["count"], "Where does the red star end?"])
def test_known(prompt):
    assert is_known(prompt)


@pytest.mark.parametrize(
    "prompt", ["", "Why?", "Where does the star end?", "Where does the {thing} end?", PROMPTS[0][:-1]]
)
def test_unknown(prompt):
    assert not is_known(prompt)
