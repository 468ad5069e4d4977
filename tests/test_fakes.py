"""Fakes have the contract of what they stand for: no other names, and the same arguments by position."""

import inspect

import pytest

from tests.fake_captioner import FakeCaptioner, FakeClient, FakeInputs, FakeReader, FakeVision

#: Members that tests use of a fake.
OWN = {"made", "load_error", "warm", "most"}
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@pytest.mark.parametrize("fake", [FakeCaptioner, FakeClient, FakeInputs, FakeVision, FakeReader])
def test_names_and_arguments_are_those_of_the_real_class(fake):
    real = fake.__base__
    for name, member in vars(fake).items():
        if name.startswith("_") or name in OWN:
            continue
        assert hasattr(real, name) or name in real.__init__.__code__.co_names, f"{real.__name__} has no {name}"
        if inspect.isfunction(member):
            mine, theirs = (
                [one.name for one in inspect.signature(made).parameters.values() if one.kind in POSITIONAL]
                for made in (member, getattr(real, name))
            )
            assert mine == theirs, name
