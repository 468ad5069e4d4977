"""The types of a record's parts and its schema say the same."""

import typing

import pytest

from vidspec.events import record
from vidspec.runs.schema import record_schema

PARTS = {name: kind for name, kind in typing.get_type_hints(record.Caption, vars(record) | {"Trace": object}).items()}


def typed_dict(kind):
    return next((one for one in (kind, *typing.get_args(kind)) if typing.is_typeddict(one)), None)


@pytest.mark.parametrize("name", [name for name, kind in PARTS.items() if typed_dict(kind)])
def test_a_parts_keys_are_those_of_the_schema(name):
    declared = record_schema()["properties"][name]
    described = next((one for one in (declared, *declared.get("oneOf", ())) if "properties" in one), None)
    assert described is not None and set(described["properties"]) <= set(typed_dict(PARTS[name]).__annotations__)
    if described.get("additionalProperties") is False:
        assert set(described["properties"]) == set(typed_dict(PARTS[name]).__annotations__)
