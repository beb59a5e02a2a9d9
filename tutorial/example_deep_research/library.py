"""A library of our own, as an MCP server: `search` lists a market's pages, `open` shows one. Prices are drawn, so that
no model can know them."""

import random

ITEMS = ("eel", "fig", "ham", "jam", "nut", "oat", "pea", "yam")
MARKETS, SOLD = "ABCDEFGHIJKLMNOPQRSTUVWXYZ", 3

Library = dict[str, dict[str, tuple[str, int]]]
"""Of each market, in the order of its pages: what a page is about, its name, and what the item costs."""


def library(draw: random.Random, markets: str = MARKETS) -> Library:
    """Of these markets. A page is named by its market and its item."""
    return {
        market: {item: (f"{market} {item}", draw.randint(10, 99)) for item in draw.sample(ITEMS, SOLD)}
        for market in draw.sample(markets, len(markets))
    }


LIBRARY = library(random.Random(7))
PAGES = dict(page for sold in LIBRARY.values() for page in sold.values())


def listed(sold: dict[str, tuple[str, int]]) -> str:
    """What a search finds in a market."""
    return "\n".join(page for page, _ in sold.values())


def search(name: str) -> str:
    """The pages about a market."""
    return listed(LIBRARY[name]) if name in LIBRARY else "nothing found"


def open_page(name: str) -> str:
    """The text of a page, by its name."""
    return str(PAGES.get(name, "no such page"))


if __name__ == "__main__":
    try:
        from mcp.server import MCPServer
    except ImportError:  # mcp 1
        from mcp.server.fastmcp import FastMCP as MCPServer

    server = MCPServer("library")
    server.tool(name="search")(search)
    server.tool(name="open")(open_page)
    server.run()
