"""Citations of the five papers name places that exist, and of some subjects the right one."""

import re
from pathlib import Path

import pytest

from vidspec.config import prompts

ROOT = Path(__file__).parents[2]
#: Of each paper: subsections by section, equations, figures, tables, appendices.
PLACES = {
    "SpecVLM": ((0, 2, 2, 5, 2, 0), 7, 11, 6, "ABCDEF"),
    "LVSpec": ((0, 2, 3, 4, 2, 0, 0, 0, 0), 20, 12, 8, "ABCDEFGHIJ"),
    "ParallelVLM": ((0, 2, 0, 3, 3, 0, 0), 13, 11, 7, "ABCDE"),
    "HIPPO": ((0, 2, 2, 2, 2, 4, 0, 0, 0), 7, 20, 3, "ABCDEFGH"),
    "TABED": ((0, 3, 2, 2, 2, 3, 0, 0), 1, 9, 14, "ABCDEFGHIJ"),
}
CITED = re.compile(
    rf"\b(?P<paper>{'|'.join(PLACES)})(?:'s)?,? \(?"
    r"(?:(?P<kind>Eq\.|Fig\.|Figure|Table|App\.|Appendix) (?:(?P<letter>[A-J])\b|(?:\d+-)?(?P<number>\d+))"
    r"|(?P<section>\d(?:\.\d)?))(?![\w%]|\.\d)"
)
#: Subjects that a paper treats in one place, as a pattern of the words before the citation.
SUBJECTS = {
    r"SD-Rand\b": "SpecVLM 4.1",
    r"SD-(?:Uniform|Frame|FastVID|DyCoke)\b": "SpecVLM 4.4",
    r"(?:window(?: baselines)?|SD-Attention)\b": "SpecVLM 4.3",
    r"HIPPO-(?:Random|Frame|FastVID|DyCoke)\b": "HIPPO 6.4",
    r"25 nodes, five deep": "SpecVLM App. B",
    r"(?:half of the visual tokens kept by UV-Prune|parallelvlm-alpha-0 in)": "ParallelVLM Fig. 6",
    r"\(P of": "TABED 6.1",
    r"\(C of": "TABED 6.2",
    r"Average features 2 x 2": "TABED 6.1",
}


def lines():
    for folder, pattern in (("vidspec", "*.py"), ("research", "*.py"), ("profiles", "*.yaml"), ("docs", "*.md")):
        for path in sorted(Path(ROOT, folder).rglob(pattern)):
            if "measured" not in path.parts:
                yield from path.read_text(encoding="utf-8").splitlines()


def exists(cited):
    sections, equations, figures, tables, appendices = PLACES[cited["paper"]]
    if cited["section"]:
        section, _, part = cited["section"].partition(".")
        return 1 <= int(section) <= len(sections) and int(part or 0) <= sections[int(section) - 1]
    if cited["letter"]:
        return cited["letter"] in appendices
    return int(cited["number"]) <= {"E": equations, "F": figures, "T": tables}[cited["kind"][0]]


def test_every_citation_names_a_place_that_exists():
    found = [one for line in lines() for one in CITED.finditer(line)]
    assert len(found) > 100 and not [one.group() for one in found if not exists(one)]


@pytest.mark.parametrize(("subject", "place"), SUBJECTS.items())
def test_a_subject_is_cited_at_its_place(subject, place):
    paper, _, where = place.partition(" ")
    before = re.compile(rf"{subject}[^.;]{{0,60}}?\b{paper} (?P<place>(?:(?:Eq|Fig|App)\. |Table )?[\w.]*\w)")
    found = [one["place"] for line in lines() for one in before.finditer(line)]
    assert found and set(found) == {where}


def test_the_prompt_of_the_papers_is_theirs():
    """SpecVLM Fig. 10 and 11."""
    assert prompts.style("subjects-actions-background") == (
        "Please provide a detailed description of the video, focusing on the main subjects, their actions, and the "
        "background scenes."
    )
