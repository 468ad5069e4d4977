"""Every packaged profile as it resolves, key by key.

After a change that is meant to change what a profile resolves to, write the file anew and read the difference::

    python tests/golden/test_profiles.py
"""

import json
from pathlib import Path

from vidspec.config import profiles

GOLDEN = Path(__file__).with_name("profiles.json")


def resolved():
    """By name, as JSON has it: tuples are lists. The user's own profiles are left out."""
    names = [info.name for info in profiles.available() if info.source == "packaged"]
    return json.loads(json.dumps({name: profiles.load(name, env={}).model_dump() for name in sorted(names)}))


def test_packaged_profiles_resolve_as_before(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    now, before = resolved(), json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert now.keys() >= before.keys()
    for name, profile in before.items():
        assert now[name] == profile, name


if __name__ == "__main__":
    lines = (f"{json.dumps(name)}: {json.dumps(one, sort_keys=True)}" for name, one in resolved().items())
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
