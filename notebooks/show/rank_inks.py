"""Letters in the colour of a rank, as bright as INK, so that they can be read on light and on dark pages.

RANKS is for surfaces and lines: orange letters on white would have a contrast of 2.3, and a reader needs 4.
"""

INK_OF_RANK = ["#2B7CB8", "#A26C00", "#00855F", "#B0568A"]  # blue, orange, green, pink, as in RANKS
RED_INK, GREEN_INK = "#C45600", INK_OF_RANK[2]
