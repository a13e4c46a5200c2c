"""The links of a built site, followed without a browser."""

import os
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src"}


class Page(HTMLParser):
    """What a page names, what it links, and what it loads."""

    def __init__(self, text):
        super().__init__()
        self.names, self.links, self.loads = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, pairs):
        pairs = dict(pairs)
        self.names.add(pairs.get("id"))
        if tag == "a" and "href" in pairs:
            self.links.append(pairs["href"])
        if tag in LOADED and LOADED[tag] in pairs:
            self.loads.append(pairs[LOADED[tag]])


def problems(site: Path) -> list[str]:
    """What is wrong with the links of a site, one line for each."""
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html")}
    found = []
    for path, page in pages.items():
        where = path.relative_to(site)
        for target in page.links + page.loads:
            if re.match(r"\w+:|//", target):
                continue
            parts = urlsplit(target)
            other = Path(os.path.normpath(path.parent / unquote(parts.path))) if parts.path else path
            if not other.is_file():
                found.append(f"{where} leads to {target}, and there is none")
            elif parts.fragment and other in pages and parts.fragment not in pages[other].names | {"", "top"}:
                found.append(f"{where} leads to {target}, and that page has no such place")
    return found
