"""What is left of a notebook where it is read: GitHub strips styles, classes, ids and scripts."""

import html
from html.parser import HTMLParser

import nbconvert
import pytest

import notebooks

VOID = {"br", "hr", "img", "input", "meta", "link"}


class Sanitizer(HTMLParser):
    """The page as GitHub would let it through, and the text of each pre-formatted block in it."""

    def __init__(self, page):
        super().__init__()
        self.page, self.blocks, self.pictures = [], [], []
        self.inside, self.dropped = 0, None
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        if tag in ("style", "script"):
            self.dropped = tag
        if self.dropped:
            return
        kept = [(name, value) for name, value in attributes if name not in ("style", "class", "id")]
        self.page.append(f"<{tag}{''.join(f' {name}={html.escape(str(value))!r}' for name, value in kept)}>")
        if tag == "pre":
            self.inside += 1
            self.blocks.append("")
        if tag == "img":
            self.pictures.append(dict(kept))

    def handle_endtag(self, tag):
        if tag == self.dropped:
            self.dropped = None
        elif not self.dropped and tag not in VOID:
            self.page.append(f"</{tag}>")
            self.inside -= tag == "pre"

    def handle_data(self, data):
        if not self.dropped:
            self.page.append(html.escape(data))
            if self.inside:
                self.blocks[-1] += data


def sanitized(notebook):
    page, _ = nbconvert.HTMLExporter(template_name="basic").from_notebook_node(notebook)
    return Sanitizer(page)


@pytest.mark.parametrize("path", notebooks.NOTEBOOKS, ids=lambda path: path.stem)
def test_code_diffs_and_pictures_survive_without_styles(path):
    """Indentation, signs and a font of one width, in pre-formatted blocks; each picture with its words."""
    notebook = notebooks.read(path)
    found = sanitized(notebook)
    blocks = [block.strip("\n") for block in found.blocks]
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.source.strip("\n") in blocks
        for output in cell.get("outputs", []):
            text = output.get("data", {}).get("text/markdown", "")
            for fence in text.split("```")[1::2]:
                lines = fence.partition("\n")[2].strip("\n")
                assert lines in blocks, f"{lines[:200]!r} is not pre-formatted"
    words = [picture.get("alt", "") for picture in found.pictures]
    assert all(len(alt) > 20 and "No description" not in alt for alt in words), "nbconvert's own words"


def test_the_sanitizer_strips_and_keeps():
    page = '<style>p {}</style><pre style="color: red" class="x" id="y">- a\n+   b</pre><script>1</script>'
    found = Sanitizer(page)
    assert found.blocks == ["- a\n+   b"]
    assert "".join(found.page) == "<pre>- a\n+   b</pre>"
