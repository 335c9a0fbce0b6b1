"""A page as a parser sees it: elements with their attributes and text, and tags that do not match."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"br", "hr", "link", "meta", "path"}


@dataclass
class Node:
    tag: str
    attributes: dict[str, str | None] = field(default_factory=dict)
    text: str = ""


class Reading(HTMLParser):
    """Read a page; `nodes` has every element, `unmatched` every end tag without a start."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.nodes: list[Node] = []
        self.open: list[Node] = []
        self.unmatched: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.nodes.append(Node(tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(self.nodes[-1])

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.nodes.append(Node(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1].tag == tag:
            self.open.pop()
        else:
            self.unmatched.append(tag)

    def handle_data(self, data: str) -> None:
        for node in self.open:
            node.text += data

    def all(self, tag: str, class_: str | None = None) -> list[Node]:
        """Elements of a kind, in the order of the page."""
        found = [node for node in self.nodes if node.tag == tag]
        return [n for n in found if class_ is None or class_ in (n.attributes.get("class") or "").split()]

    @property
    def text(self) -> str:
        """Everything that is to be read, without style and script."""
        hidden = sum((self.all(tag) for tag in ("style", "script")), [])
        body = self.all("body")[0].text
        for node in hidden:
            body = body.replace(node.text, "")
        return body
