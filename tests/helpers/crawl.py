"""The links of a built site, followed without a browser."""

import os
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src"}


class Page(HTMLParser):
    """What a page names, what it links, what it loads, and its pictures without an alt text."""

    def __init__(self, text):
        super().__init__()
        self.names, self.links, self.loads, self.silent = set(), [], [], []
        self.feed(text)

    def handle_starttag(self, tag, pairs):
        pairs = dict(pairs)
        self.names.add(pairs.get("id"))
        if tag == "a" and "href" in pairs:
            self.links.append(pairs["href"])
        if tag in LOADED and LOADED[tag] in pairs:
            self.loads.append(pairs[LOADED[tag]])
        if tag == "img" and not pairs.get("alt"):
            self.silent.append(pairs["src"])


def is_elsewhere(target):
    return bool(re.match(r"\w+:|//", target)) and not target.startswith("data:")


def problems(site: Path) -> list[str]:
    """What is wrong with the links of a site, one line for each."""
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html")}
    found = []
    for path, page in pages.items():
        where = path.relative_to(site)
        found += [f"{where} loads {target}" for target in page.loads if is_elsewhere(target)]
        found += [f"{where} has a picture without an alt text: {source}" for source in page.silent]
        for target in page.links + page.loads:
            if is_elsewhere(target) or target.startswith("data:"):
                continue
            parts = urlsplit(target)
            other = Path(os.path.normpath(path.parent / unquote(parts.path))) if parts.path else path
            if not other.is_file():
                found.append(f"{where} leads to {target}, and there is none")
            elif parts.fragment and other in pages and parts.fragment not in pages[other].names | {"", "top"}:
                found.append(f"{where} leads to {target}, and that page has no such place")
    for path in [*site.rglob("*.css"), *site.rglob("*.svg")]:
        for target in re.findall(r"url\(\s*[\"']?(https?:[^)]*)|@import\s+([^;]*)", path.read_text()):
            found.append(f"{path.relative_to(site)} loads {''.join(target)}")
    return found
