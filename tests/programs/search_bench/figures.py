"""What share of a question's evidence a ranking has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.programs.search_bench.corpora import Dialogue, Question
from tests.programs.search_bench.rankers import Ranker

TOP = 10
BUDGET_TOKENS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The figures of one question."""

    in_top: float
    """Share of its evidence among the first TOP rows."""
    in_budget: float
    """Share of its evidence among the rows that fit into BUDGET_TOKENS."""
    is_empty: bool
    """Whether nothing was found."""
    has_evidence: bool
    kind: str
    is_fitted: bool


def results_of(dialogue: Dialogue, rank: Ranker) -> list[Result]:
    """Return the figures of all questions that have evidence, and of those without an answer."""
    return [
        _result(dialogue, question, rank(question.text))
        for question in dialogue.questions
        if question.evidence or question.kind == "abstention"
    ]


def within_budget(dialogue: Dialogue, ranked: Iterable[int]) -> set[int]:
    """Return the rows that fit, by rank; others are left out."""
    left = BUDGET_TOKENS
    kept = set()
    for place in ranked:
        tokens = dialogue.rows[place].tokens
        if tokens <= left:
            left -= tokens
            kept.add(place)
    return kept


def recall(results: Sequence[Result]) -> str:
    """Return both means over the questions with evidence, in percent, and their number."""
    counted = [result for result in results if result.has_evidence]
    if not counted:
        return "-"
    top = 100 * sum(result.in_top for result in counted) / len(counted)
    budget = 100 * sum(result.in_budget for result in counted) / len(counted)
    return f"{top:.1f} / {budget:.1f} ({len(counted)})"


def abstentions(results: Sequence[Result]) -> str:
    """Return the share of questions without an answer for which nothing was found."""
    counted = [result for result in results if result.kind == "abstention"]
    if not counted:
        return "-"
    return (
        f"{100 * sum(result.is_empty for result in counted) / len(counted):.0f} % ({len(counted)})"
    )


def _result(dialogue: Dialogue, question: Question, ranked: Sequence[int]) -> Result:
    evidence = question.evidence
    count = len(evidence) or 1
    return Result(
        in_top=len(evidence.intersection(ranked[:TOP])) / count,
        in_budget=len(evidence & within_budget(dialogue, ranked)) / count,
        is_empty=not ranked,
        has_evidence=bool(evidence),
        kind=question.kind,
        is_fitted=dialogue.is_fitted,
    )
