"""Converts a page to Markdown: headings, paragraphs, lists, tables and links, without scripts and styles.

Invariant: one pass with work proportional to the page's size, for any page. A hostile page of a few hundred kilobytes
keeps the standard library's parser busy for minutes. A tag ends at the next `>`; without a `>` the page ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import Literal
from urllib.parse import urljoin

RAW = frozenset({"script", "style", "title", "textarea", "noscript", "iframe"})
"""Elements with raw text instead of markup."""
SILENT = frozenset({"template", "svg", "canvas", "object"})
BLOCKS = frozenset(
    ["p", "div", "section", "article", "main", "header", "footer", "nav", "aside", "ul", "ol", "li", "table", "tr"]
    + ["blockquote", "pre", "form", "figure", "dl", "dt", "dd", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6"]
)
NAME = re.compile(r"/?[A-Za-z][A-Za-z0-9:-]*")
ATTRIBUTE = re.compile(r"""([^\s=>"'/]+)(?:\s*=\s*("[^"]*"|'[^']*'|[^\s"'>]*))?""")
MAX_TAG = 8192
"""Characters of a tag examined at most."""


def readable(page: str, url: str = "", *, images: bool | Literal["described"] = False) -> tuple[str, str]:
    """Return title and text of an HTML page, with absolute link addresses if `url` is given.

    Args:
        images: False omits images, True writes description and address, "described" writes the description.
    """
    reader = PageReader(url, images)
    for tag, text in _split_markup(page):
        reader.text(text) if tag is None else reader.tag(tag, text)
    text = "".join(reader.parts)
    text = re.sub(r"\[\s*\]\([^)\s]*\)", "", text)  # links without text
    text = "\n".join(line.strip(" \t") for line in text.split("\n"))
    return reader.title, re.sub(r"\n{3,}", "\n\n", text).strip()


def _split_markup(page: str) -> Iterator[tuple[str | None, str]]:
    """Yield texts as (None, text) and tags as (name, attributes).

    The name of an end tag has a slash. The content of a raw element is the second part of its tag.
    """
    lower, position = page.lower(), 0
    if len(lower) != len(page):  # a few letters become two in lower case; both texts need the same positions
        page = lower
    while position < len(page):
        start = page.find("<", position)
        if start != position:
            yield None, page[position:start] if start >= 0 else page[position:]
        if start < 0:
            return
        name = NAME.match(page, start + 1)
        if name is None and page[start + 1 : start + 2] not in ("!", "?", "/"):
            yield None, "<"
            position = start + 1
            continue
        end = page.find("-->", start) if page.startswith("<!--", start) else page.find(">", start)
        if end < 0:
            return
        position = end + (3 if page.startswith("-->", end) else 1)
        if name is None:
            continue
        tag = name[0].lower()
        if tag not in RAW:
            yield tag, page[name.end() : min(end, name.end() + MAX_TAG)]
            continue
        close = lower.find(f"</{tag}", position)
        yield tag, page[position : close if close >= 0 else len(page)]
        position = close if close >= 0 else len(page)


class PageReader:
    """Collects a page's text as Markdown from its texts and tags, in order."""

    def __init__(self, url: str, images: bool | Literal["described"]) -> None:
        self.url, self.images = url, images
        self.parts: list[str] = []
        self.title = ""
        self.silent, self.silent_depth = "", 0
        self.links: list[str] = []
        self.preformatted = 0

    def text(self, text: str) -> None:
        """Append a text with collapsed whitespace, except in a `pre` element; text of a silent element is dropped."""
        if not self.silent:
            text = unescape(text)
            self.parts.append(text if self.preformatted else re.sub(r"\s+", " ", text))

    def tag(self, tag: str, rest: str) -> None:
        """Handle one tag: skip silent elements, take raw elements as a whole, and write Markdown for others.

        Args:
            tag: name in lower case; with a slash for an end tag.
            rest: the attributes, or the complete content of a raw element.
        """
        if self.silent:
            # The depth counts nested elements of the same name, so the matching end tag ends the silence.
            self.silent_depth += (tag == self.silent) - (tag == f"/{self.silent}")
            self.silent = self.silent if self.silent_depth else ""
        elif tag in SILENT and not rest.endswith("/"):
            self.silent, self.silent_depth = tag, 1
        elif tag in RAW:
            self._read_raw_element(tag, rest)
        elif tag.startswith("/"):
            self._end_element(tag[1:])
        else:
            self._start_element(tag, rest)

    def _read_raw_element(self, tag: str, content: str) -> None:
        """Take the title of the page, or the text of a text area; scripts and styles are dropped."""
        if tag == "title" and not self.title:
            self.title = " ".join(unescape(content).split())
        elif tag == "textarea":
            self.text(content)

    def _start_element(self, tag: str, attributes: str) -> None:
        """Append the Markdown that begins an element: a heading, list item, cell, link or picture."""
        if tag in BLOCKS:
            self.parts.append("\n" if tag in ("li", "tr", "br") else "\n\n")
        if len(tag) == 2 and tag[0] == "h" and tag[1].isdigit():
            self.parts.append(f"{'#' * int(tag[1])} ")
        elif tag == "li":
            self.parts.append("- ")
        elif tag in ("td", "th"):
            self.parts.append(" | ")
        elif tag == "a":
            self.links.append(self._link_address(_find_attribute(attributes, "href")))
            self.parts.append("[" if self.links[-1] else "")
        elif tag == "img" and self.images == "described":
            self.parts.append(_find_attribute(attributes, "alt"))
        elif tag == "img" and self.images:
            address = self._link_address(_find_attribute(attributes, "src"))
            self.parts.append(f"![{_find_attribute(attributes, 'alt')}]({address})" if address else "")
        self.preformatted += tag == "pre"

    def _end_element(self, tag: str) -> None:
        """Append the Markdown that ends an element: the address of a link, or a line break."""
        if tag == "a" and self.links:
            target = self.links.pop()
            self.parts.append(f"]({target})" if target else "")
        elif tag in BLOCKS:
            self.parts.append("\n" if tag in ("li", "tr") else "\n\n")
        if tag == "pre" and self.preformatted:
            self.preformatted -= 1

    def _link_address(self, href: str) -> str:
        """Return the address of a link; "" for an anchor, a script or embedded data."""
        try:
            address = urljoin(self.url, href.strip()) if href and not href.startswith("#") else ""
        except ValueError:
            return ""
        scheme = address.split(":", 1)[0].lower() if ":" in address.split("/", 1)[0] else "http"
        return "".join(address.split()) if scheme in ("http", "https", "mailto") else ""


def _find_attribute(attributes: str, attribute_name: str) -> str:
    """Return the unescaped value of an attribute in a tag's text, or ""."""
    for name, value in ATTRIBUTE.findall(attributes):
        if name.lower() == attribute_name:
            return unescape(value.strip("\"'"))
    return ""
