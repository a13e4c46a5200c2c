"""The pictures of the READMEs: readable on any ground, nothing fetched, the same each time."""

import re
import subprocess
from xml.etree import ElementTree

import matplotlib.colors
import pytest

from parts import colours
from tools import gpu_links, lessons
from tools.makers import hero, house, mechanisms, pictures, splits, step_trace
from tools.makers.gpu import h100_page

SVG = "{http://www.w3.org/2000/svg}"
DRAWN = sorted(pictures.FOLDER.glob("*.svg"))


@pytest.mark.parametrize("path", DRAWN, ids=lambda path: path.name)
def test_it_can_be_read_on_a_light_and_on_a_dark_page(path):
    text = path.read_text()
    assert not re.findall(r"url\((?!#)|href=\"(?!#)|@import|@font-face|<script|<image", text), "fetched"
    tree = ElementTree.fromstring(text)
    assert len(list(tree.iter(f"{SVG}text"))) > 10, "letters are letters, and no outlines"
    assert "fill: none" in tree.find(f".//{SVG}g[@id='patch_1']/{SVG}path").get("style"), "no ground"


def test_a_colour_is_written_once_for_python_and_once_for_the_site():
    """And the site's icon, which has no style sheet, is blue as well."""
    theme = "tools/makers/site/theme"
    of_python = {}
    for name, value in vars(colours).items():
        if str(value).startswith("#"):
            of_python[name.lower()] = value
    css = (lessons.ROOT / theme / "site.css").read_text()
    of_site = dict(re.findall(r"--(\w+): (#\w{6});", css))
    del of_site["button"]
    assert len(of_site) == 9 and of_site.items() <= of_python.items()
    assert f'stroke="{colours.BLUE}"' in (lessons.ROOT / theme / "favicon.svg").read_text()

    words = ["git", "grep", "-lEi", "|".join(of_python.values()), "--", "*.py", "*.js", "*.css", "*.jinja"]
    places = subprocess.check_output(words, cwd=lessons.ROOT, text=True).split()
    assert places == ["lessons/parts/colours.py", f"{theme}/site.css"]


def contrast(one, other):
    """Of two colours, as WCAG computes it."""
    luminances = [luminance(one) + 0.05, luminance(other) + 0.05]
    return max(luminances) / min(luminances)


def luminance(colour):
    red, green, blue = map(linear, matplotlib.colors.to_rgb(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def linear(part):
    if part <= 0.04045:
        return part / 12.92
    return ((part + 0.055) / 1.055) ** 2.4


def test_the_first_picture_can_be_read_on_a_phone_and_its_letters_stand_out():
    tree = ElementTree.fromstring((pictures.FOLDER / "hero.svg").read_text())
    width = float(tree.get("viewBox").split()[2])
    sizes = []
    for text in tree.iter(f"{SVG}text"):
        assert f"fill: {colours.DARK}" in text.get("style"), text.text
        sizes.append(float(re.search(r"([\d.]+)px", text.get("style"))[1]))
    assert min(sizes) * 380 / width >= 10, "dots, on a phone that has 380 of them for a picture"
    for tile in (*hero.SHARDS, hero.GREY, hero.GREEN):
        assert contrast(colours.DARK, tile) >= 4.5


def test_the_picture_of_links_is_the_planners_formula_and_its_words_say_what_it_shows():
    """An all-reduce over a link: seven eighths of the bytes, twice, and fourteen messages."""
    bandwidths = [link.bandwidth for link in gpu_links.LINKS]
    assert bandwidths == sorted(bandwidths)
    assert (bandwidths[0], bandwidths[-1]) == (125e6, 450e9)
    assert gpu_links.seconds(14e9, gpu_links.LINKS[0]) == pytest.approx(2 * 7 / 8 * 14e9 / 125e6 + 14 * 5e-6)
    alt = (lessons.ROOT / "lessons/launch/README.md").read_text().split("links.svg")[1].split(">")[0]
    for bandwidth in bandwidths:
        assert f"{bandwidth / 1e9:g}" in alt


def test_the_picture_of_a_gpts_step_has_all_of_the_step_and_its_words_say_what_it_shows():
    times = {}  # for each kind, the milliseconds in each of the rows
    for row in h100_page.measured("gpt").values():
        budget = h100_page.budget(row)
        assert sum(budget.values()) == pytest.approx(1000 * row["seconds"] / (row["size"] / 8), rel=0.01)
        for kind in h100_page.KINDS:
            times.setdefault(kind, []).append(round(budget[kind]))
    products, attention, others, adam, rest = times.values()

    alt = (lessons.ROOT / "lessons/launch/on_gpus.md").read_text().split("gpt_step.svg")[1].split(">")[0]
    said = list(map(int, re.findall(r"\d+", alt.split("8 texts")[1])))
    assert said[:3] == [min(products), max(products), attention[0]]
    assert set(attention) == {said[2]}
    assert said[3:6] == [others[0], min(others), max(others[1:])]
    assert said[6:9] == [adam[0], adam[-1], 16] and said[9:] == [min(rest), max(rest)]


@pytest.mark.parametrize("way", splits.WAYS, ids=lambda way: way.name)
def test_the_two_processes_of_a_split_hold_all_weights_and_all_texts(way):
    """What is split is held once, and the rest twice."""
    if way.name != "experts":  # their boxes have gaps
        for layer in range(splits.LAYERS):
            area = 0
            for rank in (0, 1):
                for (left, right), (bottom, top) in splits.held_weights(way, rank)[layer]:
                    area += (right - left) * (top - bottom)
            assert area == (2 if way.name in ("data", "context") else 1)
    shares = splits.held_data(way, 0), splits.held_data(way, 1)
    for text in range(splits.TEXTS):
        length = 0
        for share in shares:
            if share[text] is not None:
                begin, end = share[text]
                length += end - begin
        assert length == (2 if way.name in ("pipeline", "tensor") else 1)


def test_the_same_is_drawn_again(tmp_path):
    pictures.hero.draw(tmp_path / "hero.svg")
    pictures.ring(tmp_path / "ring.svg")
    gpu_links.draw(tmp_path / "links.svg")
    h100_page.draw(tmp_path / "gpt_step.svg")
    splits.draw(tmp_path / "splits.svg")
    mechanisms.draw_ranks(tmp_path / "ranks.svg")
    mechanisms.draw_rename(tmp_path / "rename.svg")
    house.draw(tmp_path / "house.svg")
    step_trace.draw(tmp_path / "ddp_step.svg")
    for path in tmp_path.iterdir():
        assert path.read_text() == (pictures.FOLDER / path.name).read_text(), "make pictures"
