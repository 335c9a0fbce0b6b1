"""The comment under a pull request: short, and nothing of the user's becomes markup."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from tests.report import sample
from tests.report.strategies import diagnoses

from paceline.explain.model import Diagnosis
from paceline.report.run.markdown import code, escape, to_markdown

LIMIT = 65_536  # characters in a comment on GitHub
OWN_TAGS = {"details", "summary", "code", "b", "sub"}


def tags(text: str) -> set[str]:
    """Names of the HTML tags outside code spans."""
    without_code = re.sub(r"(`+).*?(?<!`)\1(?!`)", "", text)
    return set(re.findall(r"</?([A-Za-z]\w*)", without_code))


@pytest.mark.parametrize("scene", sample.SCENES)
def test_only_our_own_tags_and_a_sane_size(scene: str) -> None:
    text = to_markdown(sample.SCENES[scene]())
    assert tags(text) <= OWN_TAGS
    assert len(text) < LIMIT
    assert "\x1b" not in text


def test_what_it_says() -> None:
    text = to_markdown(sample.diagnosis())
    assert text.startswith("### 🟠 `loader-cpu-bound`")
    assert "| data wait | 61% | 5 min 12 s |" in text
    assert "- **Keep the decoded images (1.2 GiB, fits in memory)** (exact, 1.50x to 2.00x) `loader.cache`" in text
    assert "paceline explain DATA002" in text
    assert text.count("<details>") == text.count("</details>") == 4


def test_nobody_is_called_and_no_issue_is_linked() -> None:
    assert "@someone" not in escape("ask @someone about #12")
    assert "#12" not in escape("ask @someone about #12")
    assert escape("me@host") == "me@host"


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a|b", r"a\|b"),
        ("__init__", r"\_\_init\_\_"),
        ("# title", "# title"),
        ("- item", r"\- item"),
        ("1. item", r"\1. item"),
        ("<b>", "&lt;b&gt;"),
        ("[a](b)", r"\[a\](b)"),
    ],
)
def test_escape(text: str, escaped: str) -> None:
    assert escape(text).replace("\N{ZERO WIDTH NON-JOINER}", "") == escaped


@pytest.mark.parametrize(("text", "span"), [("a", "`a`"), ("`a`", "`` `a` ``"), ("a``b", "``` a``b ```")])
def test_code(text: str, span: str) -> None:
    assert code(text) == span


@given(diagnoses)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_diagnosis_becomes_markdown(diagnosis: Diagnosis) -> None:
    text = to_markdown(diagnosis)
    assert text.startswith("### ")
    assert "\x1b" not in text
