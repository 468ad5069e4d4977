"""Every packaged profile as it resolves: ``ar`` in full, the others by the keys in which they differ from it.

After a change that is meant to change what a profile resolves to, write the file again and read the difference::

    python -m tests.golden.test_profiles
"""

import json
from pathlib import Path

from vidspec.config import profiles

GOLDEN = Path(__file__).with_name("profiles.json")
BASE = "ar"


def flat(profile):
    """The keys of a profile, dotted, with their values as JSON has them."""
    return {
        f"{section}.{key}": value
        for section, keys in profile.items()
        for key, value in (keys.items() if isinstance(keys, dict) else [("", keys)])
    }


def resolved():
    """Return the packaged profiles by name; the user's own are left out."""
    names = sorted(info.name for info in profiles.available() if info.source == "packaged")
    found = json.loads(json.dumps({name: flat(profiles.load(name, env={}).model_dump()) for name in names}))
    base = found[BASE]
    assert all(one.keys() == base.keys() for one in found.values())
    differing = {name: {key: one[key] for key in one if one[key] != base[key]} for name, one in found.items()}
    return differing | {BASE: base}


def test_packaged_profiles_resolve_as_before(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    now, before = resolved(), json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert now.keys() >= before.keys() and len(before) > 50
    for name, profile in before.items():
        assert now[name] == profile, name


if __name__ == "__main__":
    lines = (f"{json.dumps(name)}: {json.dumps(one, sort_keys=True)}" for name, one in resolved().items())
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
