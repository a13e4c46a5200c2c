"""The pictures of the READMEs: readable on any ground, nothing fetched, the same each time."""

import re
from xml.etree import ElementTree

import pytest

from tools import links, pictures, speeds

SVG = "{http://www.w3.org/2000/svg}"
DRAWN = sorted(pictures.FOLDER.glob("*.svg"))


@pytest.mark.parametrize("path", DRAWN, ids=lambda path: path.name)
def test_it_can_be_read_on_a_light_and_on_a_dark_page(path):
    text = path.read_text()
    assert not re.findall(r"url\((?!#)|href=\"(?!#)|@import|@font-face|<script|<image", text), "fetched"
    tree = ElementTree.fromstring(text)
    assert len(list(tree.iter(f"{SVG}text"))) > 10, "letters are letters, and no outlines"
    assert "fill: none" in tree.find(f".//{SVG}g[@id='patch_1']/{SVG}path").get("style"), "no ground"


def test_the_same_is_drawn_again(tmp_path):
    pictures.hero.draw(tmp_path / "hero.svg")
    pictures.ring(tmp_path / "ring.svg")
    links.draw(tmp_path / "links.svg")
    speeds.draw(tmp_path / "gpt_step.svg")
    for path in tmp_path.iterdir():
        assert path.read_text() == (pictures.FOLDER / path.name).read_text(), "make pictures"
