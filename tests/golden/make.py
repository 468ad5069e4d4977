"""Results that no change of structure may change: ``python -m tests.golden.make`` from the checkout's root.

Texts and counters of ten profiles on both built-in pairs, one clip after the other; the options of ``vidspec caption``;
the schema of records. Only a change that is meant to alter one of them may write them anew, and says so in the
changelog.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
PAIRS = ("embedded", "embedded-qwen")
#: A profile of each way of drafting, one whose windows do not depend on measured times.
PROFILES = (
    "ar",
    "vanilla-sd",
    "specvlm",
    "specvlm-chain",
    "self-sd",
    "std",
    "onsd",
    "tabed-mt-star",
    "uv-sequential",
    "lvspec",
)
SETTINGS = {"generate.max_new_tokens": 40, "video.frames": 8, "models.threads": 1}
COUNTED = ("target_forwards", "draft_forwards", "drafted", "accepted", "corrections", "bonus", "emitted", "loose")


def counted(caption):
    """The numbers of a record that follow from models and clip alone."""
    return {name: caption.counters[name] for name in COUNTED} | {
        "accepted_lengths": list(caption.counters["accepted_lengths"]),
        "visual_tokens_kept": caption.counters["visual_tokens_kept"],
    }


def captioner(pair, name, loaded=None):
    """A captioner of a built-in pair, over the models of another one that is loaded."""
    from vidspec.captioner import Captioner
    from vidspec.config import profiles

    profile = profiles.load(name, {**SETTINGS, "models.pair": pair})
    if loaded is None:
        return Captioner.from_profile(profile)
    draft = loaded.client.setup.draft.model if profile.draft.has_model else None
    return Captioner(profile, loaded.client.setup.target.model, draft)


def texts():
    """By pair: plain decoding's token ids of each clip, and by profile its counters (and ids, if it is loose)."""
    from vidspec.embedded.samples import shipped

    found = {}
    for pair in PAIRS:
        plain, profiles = {}, {}
        for name in PROFILES:
            with captioner(pair, name) as one:
                records = {clip.stem: one.caption(clip) for clip in shipped()}
            if name == "ar":
                plain = {clip: record.token_ids for clip, record in records.items()}
            profiles[name] = {
                clip: counted(record) | ({} if record.token_ids == plain[clip] else {"token_ids": record.token_ids})
                for clip, record in records.items()
            }
        found[pair] = {"plain": plain, "profiles": profiles}
    return found


def options():
    """Names of all that ``vidspec caption`` takes."""
    import typer

    from vidspec.cli.app import app

    caption = typer.main.get_command(app).commands["caption"]
    return sorted(name for one in caption.params for name in (*one.opts, *one.secondary_opts) if name != "--help")


def schema():
    from vidspec.runs.schema import record_schema

    return record_schema()


MADE = {"texts": texts, "caption_options": options, "record_schema": schema}


def main(names):
    for name in names or MADE:
        content = json.dumps(MADE[name](), separators=(",", ":"), sort_keys=True)
        (FOLDER / f"{name}.json").write_text(content + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
