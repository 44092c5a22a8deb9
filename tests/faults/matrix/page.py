"""The page docs/failures.md: its tables are what was observed."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.faults.matrix.cases import FORMS, Case, Form, Forms, Got, Mode, Row
from tests.faults.matrix.faults import FAULTS
from tests.faults.matrix.observe import Observed

PAGE = Path(__file__).parents[3] / "docs" / "failures.md"
BEGIN = "<!-- observed: `python -m tests.faults.matrix` writes what stands from here -->"
END = "<!-- to here -->"

HEAD = ("what fails", "leader", "the leader gets", "the first who joined gets", "the next ones get", "calls", "kept")
TITLES: dict[Mode, str] = {
    "stream": "### Endpoints with `mode: stream`",
    "request_response": "### Endpoints with `mode: request_response`",
}


def tables(observed: Observed) -> str:
    """Both tables in Markdown."""
    parts = []
    for mode, title in TITLES.items():
        lines = [line(HEAD), line("---" for _ in HEAD)]
        for fault in FAULTS[mode]:
            lines += map(line, rows(observed, mode, fault))
        parts.append("\n".join([title, "", *lines]))
    return "\n\n".join(parts)


def rows(observed: Observed, mode: Mode, fault: str) -> Iterator[tuple[str, ...]]:
    """One row where it makes no difference whether the leader stays; its own cell says what it gets then."""
    seen = {
        gone: {forms: observed.row(Case(mode, fault, gone, forms)) for forms in FORMS[mode]} for gone in (False, True)
    }
    stays, leaves = (others(seen[gone]) for gone in (False, True))
    if stays == leaves:
        yield (fault, "stays or leaves", leader(seen[False]), *stays)
    else:
        yield (fault, "stays", leader(seen[False]), *stays)
        yield (fault, "leaves", "", *leaves)


Seen = dict[Forms, Row]


def leader(seen: Seen) -> str:
    return cell((forms[0], row.leader) for forms, row in seen.items())


def others(seen: Seen) -> tuple[str, ...]:
    return (
        cell((forms[1], row.first) for forms, row in seen.items()),
        cell((forms[2], row.second) for forms, row in seen.items()),
        " or ".join(sorted({str(row.calls) for row in seen.values()})),
        " or ".join(sorted({"yes" if row.kept else "no" for row in seen.values()})),
    )


def cell(gots: Iterable[tuple[Form, Got | None]]) -> str:
    """What clients in the same place got: said once, or by form where that makes a difference."""
    said: dict[str, dict[str, Form]] = {}
    for form, got in sorted(gots, key=lambda pair: pair[0], reverse=True):
        if got is not None:
            said.setdefault(got.outcome, {})[words(got)] = form
    return "; ".join(f"`{outcome}` {by_form(texts)}" for outcome, texts in said.items())


def by_form(texts: dict[str, Form]) -> str:
    if len(texts) == 1:
        return next(iter(texts))
    return "; ".join(f"{form}: {text}" for text, form in texts.items())


def words(got: Got) -> str:
    code = f"`{got.code}`"
    retry = "" if got.retry_after is None else f", `Retry-After: {got.retry_after}`"
    match got.end:
        case "whole":
            return f"{got.status}, whole"
        case "broken off":
            return f"{got.status}, then error event {code}"
        case "error":
            return f"{got.status} {code}{retry}"
        case "cut off":
            return f"{got.status}, without an end"


def line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def shown() -> str:
    """The tables as the page has them."""
    return PAGE.read_text().partition(f"{BEGIN}\n\n")[2].partition(f"\n\n{END}")[0]


def rewrite(observed: Observed) -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{tables(observed)}\n\n{END}{after}")
