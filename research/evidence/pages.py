"""Pages from measurements: one per part for the site, docs/research/measured.md and the README's table."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from textwrap import fill
from typing import Any, TypeAlias

from research.evidence import gpu
from research.evidence.beside import beside
from research.evidence.parts import PAIRS, PARTS, Part
from research.gains import gains
from vidspec.bench.tables import table
from vidspec.embedded.prompts import QUESTIONS
from vidspec.errors import VidspecError
from vidspec.models.loading import embedded_folder

ROOT = Path(__file__).resolve().parents[2]
#: Marks around a table that is written here.
BEGIN, END = "<!-- {}, written by make evidence -->", "<!-- end of {} -->"
#: Names of the peers as the tables have them, and as a reader knows them.
PEERS = {
    "openvino": "OpenVINO GenAI, plain",
    "openvino-int8-cache": "OpenVINO, its default: an 8-bit cache",
    "vllm": "vLLM, CPU build, plain",
    "generate": "`transformers` `generate`",
}
#: Placeholders in a page's commands, and their meaning.
PLACES = {
    "CLIPS": "CLIPS are the first of `python -m research.draw --out clips --count 200 --seed 20000000`, which training "
    "has not seen.",
    "openvino=OPENVINO": "OPENVINO is the Python of an environment that `make peers` makes.",
    "vllm=VLLM": "VLLM is the Python of an environment that `make peers` makes.",
}
#: Profiles in the README's table of the Qwen pair, with a description.
README_ROWS = {
    "ar": "plain decoding",
    "sparrow": "the default here: a head drafts blocks from rows of text",
    "vanilla-sd-auto": "the default of other models: the draft sees everything",
    "specvlm-chain": "SpecVLM: the draft sees a tenth",
    "parallelvlm": "ParallelVLM: both models at the same time",
    "hippo": "HIPPO: both models at the same time",
    "tabed-mt-star": "TABED: with and without the video",
    "hybrid": "the draft, or a lookup in earlier captions",
    "openvino": "",
    "openvino-int8-cache": "",
    "vllm": "",
    "generate": "",
}
#: The table of other machines, seen from the README.
ELSEWHERE = "docs/research/measured.md#other-machines"
#: Profiles that are compared for being the default.
RACED = ("sparrow", "vanilla-sd-auto", "vanilla-sd", "sd-adaptive-tree", "hybrid")
Results: TypeAlias = Mapping[str, Any]


def page(part: Part, results: Results) -> str:
    """Return the page of a part from its results: commands, machine and output."""
    lines = [f"# {part.title}", "", _filled(part.about), "", _filled(_where(results)), ""]
    for command, printed in zip(results["commands"], results["output"], strict=True):
        text = "\n".join(printed)
        markdown = text.startswith(("|", "#")) or "\n|" in text or "\n#" in text
        lines += ["```console", f"$ {command}", *(["```", "", text] if markdown else [text, "```"]), ""]
    return "\n".join([*lines, *(f"{_filled(note)}\n" for note in results.get("notes", ()))])


def dump(results: Results) -> str:
    """Return results as JSON with a line for each row, and for each line of output, so that a person can read it."""
    output = json.dumps(results["output"], indent=1)
    fields = [f"{json.dumps(key)}: {_listed(value)}" for key, value in results.items() if key != "output"]
    return "{\n" + ",\n".join([*fields, f'"output": {output}']) + "\n}\n"


def _listed(value: Any) -> str:
    if not isinstance(value, list) or not value:
        return json.dumps(value)
    return "[\n" + ",\n".join(json.dumps(one, separators=(",", ":")) for one in value) + "\n]"


def _filled(text: str) -> str:
    return fill(text, 120, break_on_hyphens=False, break_long_words=False)


def _where(about: Results) -> str:
    words = {word for command in about["commands"] for word in command.split()}
    return " ".join(
        (
            f"Commit {about['commit']}, {about['date']}, {about['machine']}"
            + (f", {about['minutes']} minutes." if about["minutes"] is not None else "."),
            *(text for word, text in PLACES.items() if word in words),
        )
    )


def times(value: Sequence[float] | None) -> str:
    return "-" if not value else f"{value[0]:.2f}x"


def span(values: Iterable[Sequence[float] | None]) -> str:
    """Return the least and the greatest of several machines' medians, once if they are the same to two digits."""
    medians = [value[0] for value in values if value is not None]
    least, greatest = min(medians), max(medians)
    return f"{least:.2f}x" if f"{least:.2f}" == f"{greatest:.2f}" else f"{least:.2f}x to {greatest:.2f}x"


def share(row: Results, results: Results) -> str:
    """Return passes per second over the bandwidth limit at the baseline's context."""
    facts, plain = results["facts"], results["rows"][0]
    context = row.get("context") or plain["context"]
    bytes_read = facts["target_pass_MB"] * 1e6 + context * facts["target_entry_bytes"]
    passes = row["tokens_per_s"] / (row.get("tokens_per_target_pass") or 1.0)
    return f"{passes * bytes_read / (facts['copy_GB_per_s'] * 1e9):.0%}"


def figure(value: float | None, form: str = ".2f") -> str:
    return "-" if value is None else format(value, form)


def readme(results: Results, machines: Sequence[Results] = ()) -> str:
    """Return the README's table of one run; ratios that other ``machines`` have too are ranges over all of them."""
    machines = same_code(machines)
    rows, others = _by_name(results), [_by_name(one) for one in machines]
    lines = []
    for name, what in README_ROWS.items():
        if (row := rows.get(name)) is None:
            reason = results["left_out"].get(name, "not measured")
            lines.append((PEERS.get(name, f"`{name}`"), f"left out: {reason}", *["-"] * 5))
            continue
        lines.append(
            (
                f"`{name}`: {what}" if what else PEERS[name],
                span([row["decode"], *(one[name]["decode"] for one in others if name in one)]),
                f"{row['tokens_per_s']:.0f}",
                figure(row["tokens_per_target_pass"]),
                times(row["first"]),
                span([row["end_to_end"], *(one[name]["end_to_end"] for one in others if name in one)]),
                share(row, results),
            )
        )
    heads = (
        "method",
        "decoding",
        "tokens/s",
        "tokens / target pass",
        "first token",
        "end to end",
        "share of bandwidth limit",
    )
    clips = results["rows"][0]["clips"]
    return (
        f"{table(heads, lines)}\n\n`python -m research.evidence profiles-embedded-qwen`, commit {results['commit']}, "
        f"{results['date']}, {results['machine']}: the Qwen2.5-VL pair in float32, medians over {clips} drawn clips, "
        "all in turns in one run; ratios are to `ar`."
        + (f" Ranges: the same on [{len(machines) + 1} machines]({ELSEWHERE})." if machines else "")
    )


def same_code(machines: Sequence[Results]) -> list[Results]:
    """Return the results by the present code; those by earlier code say in ``earlier`` what has changed since."""
    return [one for one in machines if not one.get("earlier")]


def _by_name(results: Results) -> dict[str, Results]:
    return {name: row for row in results["rows"] for name in (row["name"], *row.get("also", ()))}


#: Columns of :func:`comparison`.
COMPARED: Mapping[str, Callable[[Results], str]] = {
    "decoding": lambda row: times(row["decode"]),
    "end to end": lambda row: times(row["end_to_end"]),
    "tokens/s": lambda row: f"{row['tokens_per_s']:.0f}",
}


def comparison(here: Results, ours: Results) -> str:
    """Return the README's methods as measured on this machine, beside the published figures."""
    both = _by_name(here), _by_name(ours)
    lines = []
    for name in README_ROWS:
        rows = [one.get(name) for one in both]
        cells = [PEERS.get(name, f"`{name}`")]
        for form in COMPARED.values():
            cells += ["-" if row is None else form(row) for row in rows]
        lines.append(cells)
    heads = [f"{what}, {where}" for what in COMPARED for where in ("here", "published")]
    about = (
        f"{where}: {one['machine']}, commit {one['commit']}, {one['date']}, {one['rows'][0]['clips']} clips"
        for where, one in (("Here", here), ("Published", ours))
    )
    return "\n".join([table(("method", *heads), lines), "", *about])


def elsewhere(machines: Sequence[Results]) -> str:
    """Return the README's methods on several machines: decoding, then end to end, both over ``ar`` there."""
    known = [_by_name(one) for one in machines]
    lines = []
    for name in README_ROWS:
        if all(name not in rows for rows in known):
            continue
        cells = [
            f"{times(rows[name]['decode'])}, {times(rows[name]['end_to_end'])}" if name in rows else "-"
            for rows in known
        ]
        lines.append((PEERS.get(name, f"`{name}`"), *cells))
    shares = (share(rows["ar"], one) for rows, one in zip(known, machines, strict=True))
    lines.append(("share of the bandwidth limit that `ar` reaches", *shares))
    where = (
        f"{one['machine']}, {one['date']}, version {one['facts']['vidspec']}"
        + (f", {one['earlier']}" if one.get("earlier") else "")
        for one in machines
    )
    return table(("method", *where), lines)


def race(results: Mapping[str, Results]) -> str:
    """Return each default candidate's distance to the fastest, on single clips and folders; "" without a race."""
    rates: dict[tuple[str, str], float] = {}
    for title, one in results.items():
        for row in one["rows"]:
            if "batch" in row:
                rates[f"{title}, {row['batch']} at once", row["name"]] = row["clips_per_s"]
            else:
                rates[f"{title}, single clips", row["name"]] = row["end_to_end"][0]
    raced, where = 0, list(dict.fromkeys(place for place, _ in rates))
    behind: dict[str, list[float]] = {name: [] for name in RACED}
    for place in where:
        known = {name: rates[place, name] for name in RACED if (place, name) in rates}
        if len(known) < 2:  # no race
            continue
        best = max(known.values())
        for name, rate in known.items():
            behind[name].append(best / rate - 1)
        raced += 1
    if not raced:
        return ""
    found = (f"`{name}` {median(some):.1%} ({max(some):.1%})" for name, some in behind.items() if some)
    return _filled(f"The median of {raced} runs, and the most: {', '.join(found)}.")


def lone_target(results: Results) -> str:
    """Return the candidates for the default of a lone target by ground and clips at once; "" of a single ground."""
    rows = results["rows"]
    places = list(dict.fromkeys((row["ground"], row["batch"]) for row in rows))
    found = {(row["ground"], row["batch"], row["name"]): row for row in rows}
    names = [name for name in dict.fromkeys(row["name"] for row in rows) if all((*at, name) in found for at in places)]
    lines = []
    for name in names if len({ground for ground, _ in places}) > 1 else ():
        cells = []
        for place in places:
            row, plain = found[*place, name], found[*place, names[0]]
            gain = f", {row['tokens_per_s'] / plain['tokens_per_s']:.2f}x" if row["tokens_per_s"] is not None else ""
            cells.append(f"{row['tokens_per_target_pass']:.2f}{gain}")
        lines.append((f"`{name}`", *cells))
    return table(("profile", *(f"{ground}, {batch} at once" for ground, batch in places)), lines) if lines else ""


INTRO = """\
# Measured

`make evidence` measures everything here on an idle machine and writes a JSON file for each part with its commands,
commit, machine, complete output and rows. Within a table all methods took turns in one run: do not compare two tables.
Unless a page names others, the models are the built-in pairs, in float32, whose targets have 9 million parameters.
Definitions: [metrics.md](metrics.md).
"""
SECTIONS = {
    "What you gain": (
        "Over plain decoding of one clip at a time, by `vidspec caption clip.mp4 --target MODEL`, or `clips/` for a "
        "folder; the caption is the same. MODEL is `Qwen/Qwen2.5-VL-7B-Instruct` or "
        "`llava-hf/llava-onevision-qwen2-7b-ov-hf`; the 32B takes "
        "`--profile ar --set models.weights=int4`. Measured rows are from the parts below. Predicted rows are "
        "arithmetic on data sheets with assumed acceptance and constants measured on an H100 ([how](predicted.md)), "
        "from 2,000 to 25,000 visual tokens, folders at 2,000; no published model has run there. `--baseline` measures "
        "yours."
    ),
    "Beside OpenVINO and vLLM": (
        "The Qwen2.5-VL pair's target under other programs on the same CPU, with the same weights, frames and prompts, "
        "in turns. Above 1.00x they are faster; the largest leads stand first. {where} None of them was run here on "
        "real language or on a GPU."
    ),
    "The default of a lone target": (
        "Without a listed draft, a head and a GPU: tokens a target pass, and if the run was timed, tokens a second "
        "over plain decoding's, on real language and on the drawn world ([how](measured/real-language.json)). The "
        "default is `LONE_TARGET` of `vidspec/decoding/default_profile.py`: the profile that gains time in all columns "
        "with the least memory. Passes of a copy cost time that tokens a pass do not show."
    ),
    "Other machines": (
        "Decoding, then end to end, of the Qwen2.5-VL pair. The faster plain decoding runs there, the less a draft "
        "gains: the last row is the share of the bandwidth limit that it reaches. A dash: not measured, or by an "
        "earlier definition of decoding. `make evidence ARGS='--quick --keep NAME'` adds a column."
    ),
    "The default profile": (
        "How much longer each candidate takes than the fastest of them, over single clips and folders of both pairs. "
        "Without a block head `vanilla-sd-auto` is the default: not every family can verify trees."
    ),
}


def measured(data: Mapping[str, Results], machines: Sequence[Results] = ()) -> str:
    """Return docs/research/measured.md from the results of the parts, with links to them.

    Args:
        data: results by part.
        machines: results of ``make evidence ARGS=--quick`` on other machines.
    """
    single = {pair: data[f"profiles-{pair}"] for pair in PAIRS if f"profiles-{pair}" in data}
    many = {f"{pair}, a folder": data[f"folder-{pair}"] for pair in PAIRS if f"folder-{pair}" in data}
    qwen = [single["embedded-qwen"], *machines] if "embedded-qwen" in single else []
    folder = data.get("folder-embedded-qwen")
    tables = {
        "What you gain": gains(same_code(qwen), folder) if qwen and folder else "",
        "Beside OpenVINO and vLLM": beside(qwen[0], folder) if qwen and folder else "",
        "The default profile": race({**single, **many}),
        "The default of a lone target": lone_target(data["real-language"]) if "real-language" in data else "",
        "Other machines": elsewhere(qwen) if machines and qwen else "",
    }
    runs = {"Single clips": qwen[0] if qwen else None, "folders": folder}
    where = ", ".join(f"{what}: commit {one['commit']}, {one['date']}" for what, one in runs.items() if one) + "."
    parts = [INTRO]
    for title, text in tables.items():
        if text:
            parts += [f"## {title}\n", _filled(SECTIONS[title].format(where=where)) + "\n", text + "\n"]
    return "\n".join([*parts, "## Parts\n", *_all_parts(data), "- [On a GPU](measured/gpu.json)", ""])


def _all_parts(known: Iterable[str]) -> list[str]:
    """Return a line for each part that has results; parts of both pairs share one."""
    found: dict[str, list[str]] = {}
    for part in PARTS:
        title, _, pair = part.title.partition(": `")
        if part.name in known:
            label = pair.strip("`") if pair.strip("`") in PAIRS else part.title
            key = title if label in PAIRS else part.title
            found.setdefault(key, []).append(f"[{label}](measured/{part.name}.json)")
    return [
        f"- {links[0]}" if title in links[0] else f"- {title}: {', '.join(links)}" for title, links in found.items()
    ]


def filled(text: str, name: str, inside: str) -> str:
    """Return ``text`` with ``inside`` between the two marks of this name."""
    begin, end = BEGIN.format(name), END.format(name)
    before, _, rest = text.partition(begin)
    _, mark, after = rest.partition(end)
    if not mark:
        raise ValueError(f"no {begin} and {end}")
    return f"{before}{begin}\n\n{inside}\n\n{end}{after}"


def scores(both: Mapping[str, Results]) -> tuple[str, str]:
    """Return tables of the built-in pairs' scores and answered questions, from the files next to the weights."""
    lines = []
    for pair, found in both.items():
        for model, label in (("target", "target"), ("draft", "draft alone")):
            measures = [f"{found[f'{model}_{key}']:.3f}" for key in ("precision", "recall", "f1")]
            answers, target = f"{found[f'{model}_answers']['all']:.2f}", model == "target"
            more = (f"{found['tau']:.2f}", str(found["visual_tokens"])) if target else ("", "")
            lines.append((f"`{pair}`" if target else "", label, *measures, answers, *more))
    heads = ("pair", "model", "precision", "recall", "F1", "right answers", "tau at gamma 5", "visual tokens")
    asked = [
        (
            kind,
            f"`{text.format(thing='red circle')}`",
            "the caption, right or wrong" if kind in ("first", "backdrop") else "the clip",
            *(f"{one['target_answers'][kind]:.2f} ({one['draft_answers'][kind]:.2f})" for one in both.values()),
        )
        for kind, text in QUESTIONS.items()
    ]
    return table(heads, lines), table(("kind", "question", "answered by", *(f"`{pair}`" for pair in both)), asked)


def read_results(folder: Path) -> dict[str, Results]:
    """Return the results in a folder by the names of their files."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


def write_site(out: Path) -> None:
    """Write the page of each part beside its results in a folder; only the site has these pages."""
    data = read_results(out)
    for part in PARTS:
        if part.name in data:
            (out / f"{part.name}.md").write_text(page(part, data[part.name]), encoding="utf-8")
    (out / "gpu.md").write_text(gpu.page(), encoding="utf-8")


def write(out: Path) -> None:
    """Write all pages, and the tables of the README and of docs/internals/embedded.md, from the results in a folder."""
    data, others = read_results(out), list(read_results(out / "machines").values())
    write_site(out)
    (ROOT / "docs" / "research" / "measured.md").write_text(measured(data, others), encoding="utf-8")
    front = ROOT / "README.md"
    if (results := data.get("profiles-embedded-qwen")) is not None:
        front.write_text(
            filled(front.read_text(encoding="utf-8"), "profiles", readme(results, others)), encoding="utf-8"
        )
    folders = {pair: embedded_folder(pair, "target").parent for pair in PAIRS}
    known_scores = {
        pair: json.loads((one / "scores.json").read_text(encoding="utf-8")) for pair, one in folders.items()
    }
    about, (of_models, of_questions) = ROOT / "docs" / "internals" / "embedded.md", scores(known_scores)
    text = filled(about.read_text(encoding="utf-8"), "scores", of_models)
    about.write_text(filled(text, "questions", of_questions), encoding="utf-8")


def draw(clips: Path) -> None:
    """Draw the pictures of the panel for a sample clip, a folder of clips and real video, and those of the docs.

    Raises:
        VidspecError: drawing failed.
    """
    docs = ROOT / "docs"
    clip = ROOT / "vidspec" / "embedded" / "clips" / "three-objects.mp4"
    panels = {"panel.svg": clip, "panel-folder.svg": clips, "panel-real.svg": docs / "clips" / "grand-prix-1906.mp4"}
    commands = [["panel", str(source), str(docs / "pictures" / file)] for file, source in panels.items()]
    commands[-1].append("--still")
    for name, *arguments in [*commands, ["how"]]:
        command = [sys.executable, "-m", f"research.pages.{name}", *arguments]
        if subprocess.run(command, cwd=ROOT, stdout=sys.stderr).returncode:
            raise VidspecError(
                f"research.pages.{name}: failed", hint="the pages need Chromium, apt-get install chromium"
            )
