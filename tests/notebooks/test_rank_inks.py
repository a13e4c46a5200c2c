"""Letters in the colour of a rank."""

from show import rank_inks
from tests.notebooks.test_show import contrast


def test_letters_in_the_colour_of_a_rank_can_be_read_on_white_and_on_dark_pages():
    for colour in (*rank_inks.INK_OF_RANK, rank_inks.RED_INK):
        for page in ("#ffffff", "#0d1117"):  # GitHub's
            assert contrast(colour, page) > 3.9, (colour, page)
