"""Prometheus's text format, read as strictly as we can without Prometheus, and by its own `promtool` where that is
installed."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from math import inf

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None and not os.environ.get("CI"), reason="promtool is not installed: it comes with Prometheus"
)
"""For tests that repeat with Prometheus's own tool what others check without it."""

Sample = tuple[str, frozenset[tuple[str, str]]]
BASE_UNITS = ("seconds", "bytes", "ratio", "tokens", "usd", "info", "fds")
OTHER_UNITS = re.compile(
    r"_(ms|milliseconds|minutes|hours|days|us|kb|mb|kib|mib|kilobytes|percent|count|sum|bucket)(_|$)"
)
LE = "le"


def promtool(*arguments: str, stdin: str = "") -> None:
    """Run it; it must have nothing to say against what it checks."""
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *arguments], input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == "", done.stderr


def families(text: str) -> dict[str, Metric]:
    """By the name that stands in the text: a counter's has its `_total`."""
    found = list(text_string_to_metric_families(text))
    by_name = {f"{f.name}_total" if f.type == "counter" else f.name: f for f in found}
    assert len(by_name) == len(found), "a family occurs twice"
    return by_name


def samples(text: str) -> dict[Sample, float]:
    """(name, labels) -> value."""
    read = [((s.name, frozenset(s.labels.items())), s.value) for f in families(text).values() for s in f.samples]
    found = dict(read)
    assert len(found) == len(read), "a sample occurs twice"
    return found


def value(text: str, name: str, **labels: str) -> float:
    """Of just this sample."""
    return samples(text)[name, frozenset(labels.items())]


def total(text: str, name: str, **labels: str) -> float:
    """Over all samples that have these labels, and perhaps more."""
    return sum(v for (n, found), v in samples(text).items() if n == name and labels.items() <= found)


def faults(text: str) -> Iterator[str]:
    """What is wrong with a page, by the rules of the format and the conventions for names and units."""
    if not text.endswith("\n") or "\n\n" in text or "\r" in text:
        yield "lines must end in one newline"
    declared = re.findall(r"^# (HELP|TYPE) (\S+) (.+)$", text, re.MULTILINE)
    names = [name for kind, name, _ in declared if kind == "TYPE"]
    if declared[::2] != [d for d in declared if d[0] == "HELP"] or [d[1] for d in declared[::2]] != names:
        yield "HELP and TYPE must come in pairs"
    yield from (
        f"{name}: _total is for counters, and for all of them"
        for kind, name, what in declared
        if kind == "TYPE" and name.endswith("_total") != (what == "counter")
    )
    for name, family in families(text).items():
        yield from (f"{name}: {fault}" for fault in _faults(name, family))
    order = [_family_of(line, names) for line in text.splitlines() if not line.startswith("#")]
    changes = [after for before, after in pairwise([None, *order]) if before != after]
    if len(set(changes)) != len(changes):
        yield "the samples of a family must stand together"


def _faults(name: str, family: Metric) -> Iterator[str]:
    if not re.fullmatch(r"refrain_[a-z0-9]+(_[a-z0-9]+)*", name):
        yield "a name is refrain_ and words in lower case"
    if OTHER_UNITS.search(name):
        yield "another unit than the base unit, or a suffix that histograms have"
    if family.type == "histogram" and not name.endswith(BASE_UNITS):
        yield "a histogram has a unit"
    if not re.fullmatch(r"[A-Z0-9].*\.", family.documentation) or '"' in family.documentation:
        yield "the help is a sentence"
    if family.type not in ("counter", "gauge", "histogram"):
        yield f"type {family.type}"
    names = {tuple(sorted(s.labels.keys() - {LE})) for s in family.samples}
    if len(names) > 1:
        yield f"different label names: {names}"
    if family.type == "histogram":
        yield from _histogram_faults(name, family)
    elif any(not 0 <= s.value < inf for s in family.samples):
        yield "a value that is negative or no number"


def _histogram_faults(name: str, family: Metric) -> Iterator[str]:
    series: dict[frozenset[tuple[str, str]], dict[str, list[tuple[float, float]]]] = {}
    for s in family.samples:
        labels = frozenset((k, v) for k, v in s.labels.items() if k != LE)
        kinds = series.setdefault(labels, {})
        kinds.setdefault(s.name.removeprefix(name), []).append((float(s.labels.get(LE, "nan")), s.value))
    bounds = set()
    for kinds in series.values():
        if kinds.keys() != {"_bucket", "_count", "_sum"}:
            yield f"a histogram has buckets, a count and a sum, not {sorted(kinds)}"
            return
        buckets = kinds["_bucket"]
        bounds.add(tuple(bound for bound, _ in buckets))
        if sorted(buckets) != buckets or [c for _, c in buckets] != sorted(c for _, c in buckets):
            yield "buckets must grow"
        if buckets[-1] != (inf, kinds["_count"][0][1]):
            yield "the last bucket holds all"
    if len(bounds) > 1:
        yield "one histogram, several sets of bounds"
    if any(not 12 <= len(b) <= 22 for b in bounds):
        yield f"{[len(b) for b in bounds]} buckets"


def _family_of(line: str, names: list[str]) -> str:
    name = re.split(r"[{ ]", line, maxsplit=1)[0]
    return name if name in names else re.sub(r"_(bucket|count|sum)$", "", name)
