"""Letters in the colour of a rank."""

import colorsys

from matplotlib.colors import to_rgb

from show import rank_inks
from show.pictures import RANKS, RED
from tests.notebooks.test_show import contrast


def test_letters_in_the_colour_of_a_rank_can_be_read_on_white_and_on_dark_pages():
    for colour in (*rank_inks.INK_OF_RANK, rank_inks.RED_INK):
        for page in ("#ffffff", "#0d1117"):  # GitHub's
            assert contrast(colour, page) > 3.9, (colour, page)


def test_letters_have_the_hue_of_the_surface_that_they_belong_to():
    inks = [*rank_inks.INK_OF_RANK, rank_inks.RED_INK]
    for ink, surface in zip(inks, [*RANKS, RED], strict=True):
        hue_of_ink = colorsys.rgb_to_hsv(*to_rgb(ink))[0]
        hue_of_surface = colorsys.rgb_to_hsv(*to_rgb(surface))[0]
        assert abs(hue_of_ink - hue_of_surface) < 0.02, (ink, surface)
