"""The next command after ``paceline plan``, for the HTML page."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.report.page.next_step import Then

if TYPE_CHECKING:
    from paceline.plan.search.advice import Advice
    from paceline.plan.search.offers import Offers

_OF_CLUSTER = ("--gpus", "--recipe", "--price", "--per-node", "--network")
_OUTPUTS = ("--html", "--json")
_TARGETS = ("--target-tokens", "--target-samples")


def after_plan(advice: Advice, options: dict[str, Any]) -> Then:
    """Return the next step after a plan for one cluster."""
    if advice.best is None or (options["lora"] is not None and not options["catalogue"]):
        what = "Find machines on which the model fits" if advice.best is None else "Compare the price of other machines"
        return Then(what=what, command=_catalogue(advice))
    if options["recipe"] is not None:
        what = "Train with this recipe in a program that uses `paceline.train`"
        return Then(what=what, command=_launched(advice, options["recipe"]))
    added = ["--recipe", "recipe.toml"]
    return Then(
        what="Write a recipe with the best layout that `paceline.train` supports", command=_plan(added, _OUTPUTS)
    )


def after_offers(found: Offers) -> Then:
    """Return the next step after a comparison of machines."""
    cheapest = found.best[0].machines.name
    what = f"Plan the training on the cheapest machines, {cheapest}"
    left_out = (*_OUTPUTS, "--catalogue", "--region", "--max-price", "--deadline")
    return Then(what=what, command=_plan(["--gpus", cheapest], left_out))


def _catalogue(advice: Advice) -> str:
    from paceline.plan.models.architecture import Transformer

    transformer = isinstance(advice.wish.model, Transformer)
    target = ["--target-tokens", "10b"] if transformer else ["--target-samples", "100m"]
    given = any(word.startswith(_TARGETS) for word in sys.argv)
    return _plan(["--catalogue", *([] if given else target)], (*_OF_CLUSTER, *_OUTPUTS))


def _launched(advice: Advice, recipe: Path) -> str:
    cluster = advice.wish.cluster
    nodes = max(1, cluster.count // cluster.per_node)
    ranks = ["--nnodes", f"{nodes}"] if nodes > 1 else []
    each = ["--nproc-per-node", f"{min(cluster.count, cluster.per_node)}"]
    return shlex.join(["torchrun", *ranks, *each, "train.py", "--recipe", str(recipe)])


def _plan(added: Sequence[str], left_out: Sequence[str]) -> str:
    """Return the `paceline plan` command that the user typed, with some options added and others removed."""
    typed = sys.argv[1:]
    verbs = 2 if typed[:2] == ["plan", "for"] else 1
    return shlex.join(["paceline", "plan", *added, *_without(typed[verbs:], left_out)])


def _without(words: Sequence[str], left_out: Sequence[str]) -> Iterator[str]:
    """Yield the words of a command without some options and their values; options of the user's program stay."""
    rest = iter(words)
    for word in rest:
        name, _, value = word.partition("=")
        if word in ("--", "-m") or word.endswith(".py"):
            yield word
            yield from rest
        elif name in (*left_out, "--open"):
            if not value and name not in ("--catalogue", "--open"):
                next(rest, None)
        else:
            yield word
