"""The table of links is the planner's formula, and says what it is made of."""

import pytest

import links
from lessons import ROOT

PAGE = (ROOT / "lessons/launch/README.md").read_text()


def test_an_all_reduce_over_a_link():
    """Seven eighths of the bytes, twice, and fourteen messages."""
    slowest, fastest = links.LINKS[0], links.LINKS[-1]
    assert slowest.bandwidth == 125e6 and fastest.bandwidth == 450e9
    assert links.seconds(14e9, slowest) == pytest.approx(2 * 7 / 8 * 14e9 / 125e6 + 14 * 5e-6)
    assert links.seconds(0, fastest) == pytest.approx(14 * 5e-6)
    assert sorted(links.LINKS, key=lambda link: link.bandwidth) == list(links.LINKS)


def test_the_page_has_the_table_and_says_what_the_picture_shows():
    assert links.listed() in PAGE
    alt = PAGE.split("links.svg")[1].split(">")[0]
    assert all(f"{link.bandwidth / 1e9:g}" in alt for link in links.LINKS)
