"""Colours of all plots and of the report: the palette of Okabe and Ito, safe for colour-blind readers.

M. Okabe and K. Ito, "Color Universal Design" (2008).
"""

BLACK = "#000000"
ORANGE = "#E69F00"
SKY_BLUE = "#56B4E9"
GREEN = "#009E73"
YELLOW = "#F0E442"
BLUE = "#0072B2"
VERMILION = "#D55E00"
PURPLE = "#CC79A7"

# For reference lines; not part of the palette.
GREY = "#666666"
LIGHT_GREY = "#D9D9D9"
