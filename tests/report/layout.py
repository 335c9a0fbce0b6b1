"""Which text of a page is cut off, and which is printed over other text? As the browser lays the page out."""

from __future__ import annotations

from pathlib import Path

from tests.report.browser import Browser

# The width of A4 paper without Chromium's margins, in CSS pixels.
PAPER = 718

_TEXTS = """(() => {
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement;
    if (!node.data.trim() || parent.closest("script, style") || !parent.checkVisibility()) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects())
      if (box.width >= 1 && box.height >= 1) found.push({ node, parent, box, text: node.data.trim().slice(0, 60) });
  }
  return found;
})()"""

_CUT = f"""(() => {{
  const width = document.documentElement.clientWidth;
  const cut = ({{ parent, box }}) => {{
    if (box.left < -1 || box.right > width + 1) return true;
    for (let up = parent; up; up = up.parentElement) {{
      if (getComputedStyle(up).overflowX === "visible") continue;
      const outer = up.getBoundingClientRect();
      if (box.left < outer.left - 1 || box.right > outer.right + 1) return true;
    }}
    return false;
  }};
  return {_TEXTS}.filter(cut).map((one) => one.text);
}})()"""

_OVERPRINTED = f"""(() => {{
  const texts = {_TEXTS}.sort((a, b) => a.box.top - b.box.top), found = [];
  texts.forEach((one, i) => {{
    for (let j = i + 1; j < texts.length && texts[j].box.top < one.box.bottom - 3; j++) {{
      const other = texts[j];
      const across = Math.min(one.box.right, other.box.right) - Math.max(one.box.left, other.box.left);
      const down = Math.min(one.box.bottom, other.box.bottom) - other.box.top;
      if (across > 2 && down > 3 && one.node !== other.node) found.push(one.text + " | " + other.text);
    }}
  }});
  return found;
}})()"""


def cut_off(tab: Browser) -> list[str]:
    """Texts that stick out of the window, or out of an element that hides or scrolls what sticks out."""
    return list(tab.value(_CUT))


def overprinted(tab: Browser) -> list[str]:
    """Pairs of texts that lie over each other."""
    return list(tab.value(_OVERPRINTED))


def faults(tab: Browser, page: Path) -> dict[str, list[str]]:
    """Both, on a wide screen, on a narrow one and on paper; the kinds without a fault are left out."""
    found: dict[str, list[str]] = {}
    for name, width, paper in (("1280 px", 1280, False), ("480 px", 480, False), ("paper", PAPER, True)):
        tab.open(page, width=width, paper=paper)
        found[f"cut off, {name}"] = cut_off(tab)
        found[f"overprinted, {name}"] = overprinted(tab)
    return {name: texts for name, texts in found.items() if texts}
