"""The colours of all pictures. Okabe and Ito chose the first seven: readers who cannot tell red
from green can still tell these colours apart.
"""

BLUE = "#0072B2"
ORANGE = "#E69F00"
GREEN = "#009E73"
PINK = "#CC79A7"
RED = "#D55E00"
SKY = "#56B4E9"
YELLOW = "#F0E442"
GREY = "#767676"
LIGHT_GREY = "#999999"

RANKS = [BLUE, ORANGE, GREEN, PINK]  # rank 0 is blue in every picture, rank 1 orange
LINES = [*RANKS, RED, SKY]  # for lines that are not ranks, in this order

INK = "#757575"  # letters without a background, readable on light and on dark pages
DARK = "#111111"  # letters on a pale background
