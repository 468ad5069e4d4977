"""The reference of all keys in docs/use/keys.md: ``python -m tests.golden.make keys`` writes it from the schema."""

import json
from pathlib import Path

from annotated_types import Ge, Gt, Le

from vidspec.acceptance.base import rules
from vidspec.cli.keys import FLAGS, choices
from vidspec.config.profiles import KEYS
from vidspec.config.schema import Profile
from vidspec.drafting.base import drafters
from vidspec.pruning.base import pruners
from vidspec.pruning.target.base import lossy
from vidspec.registry import options_of
from vidspec.schedule import schedules

PAGE = Path(__file__).resolve().parents[2] / "docs" / "use" / "keys.md"
BEGIN, END = "<!-- keys, written by python -m tests.golden.make keys -->\n", "<!-- end of keys -->\n"
PARTS = {registry.key.partition(".")[0]: registry for registry in (drafters, pruners, rules, lossy)}
#: Settings of this machine, of which the page knows nothing.
MACHINE = {"threads", "draft_threads"}
ROUND = {2**31 - 1: "2^31 - 1", 2**63 - 1: "2^63 - 1"}


def reference() -> str:
    """A table of each section's keys, with option, values, default and meaning."""
    lines = []
    for section, about in Profile.model_fields.items():
        if section in KEYS:
            continue
        model = about.annotation
        lines += [f"### {section}", "", model.__doc__.split("\n")[0], ""]
        lines += ["| key, option | values | default | |", "|---|---|---|---|"]
        owners = {} if section not in PARTS else _owners(PARTS[section])
        for key, field in model.model_fields.items():
            names = ", ".join(f"`{name}`" for name in (f"{section}.{key}", *_flags(f"{section}.{key}")))
            default = field.get_default(call_default_factory=True)
            of = f"{', '.join(owners[key])}: " if key in owners else ""
            cells = names, _values(f"{section}.{key}", field), f"`{_shown(default)}`", f"{of}{field.description}."
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)


def _owners(registry):
    """The built-in parts that take each key."""
    owners = {}
    for name in sorted(registry.modules()):
        for key in options_of(registry.get(name), *registry.known).model_fields:
            owners.setdefault(key, []).append(name)
    return {key: names for key, names in owners.items() if key in registry.section_keys()}


def _flags(key):
    return [flag for flag, of in FLAGS.items() if of == key]


def _values(key, field):
    """The values of a key: names, or bounds."""
    named = choices(field)
    for part in (*PARTS.values(), schedules):
        if part.key == key:
            named = sorted({*part.always, *part.modules()})
    if named:
        return ", ".join(f"`{name}`" for name in named)
    if key.rpartition(".")[2] in MACHINE:
        return "1 or more"
    low = next((f"{bound.ge:g}" for bound in field.metadata if isinstance(bound, Ge)), "")
    low = next((f"above {bound.gt:g}" for bound in field.metadata if isinstance(bound, Gt)), low)
    high = next((bound.le for bound in field.metadata if isinstance(bound, Le)), None)
    return f"{low} to {ROUND.get(high, high)}" if high is not None else f"{low} or more" if low else ""


def _shown(value):
    return "null" if value is None else value if isinstance(value, str) else json.dumps(value)


def write_reference():
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}{reference()}{END}{rest.partition(END)[2]}", encoding="utf-8")
