"""The mistakes of ``tests.mutations`` still fit the code, so that the study can be repeated."""

import pytest

from tests.mutations import MUTATIONS, ROOT, Mutation


@pytest.mark.parametrize("one", MUTATIONS, ids=lambda one: one.name)
def test_fits_the_code(one: Mutation):
    assert (ROOT / one.file).read_text(encoding="utf-8").count(one.old) == 1
    assert all((ROOT / name).exists() for name in one.tests.split(" ") if name.startswith("tests/"))
