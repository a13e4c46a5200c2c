"""Letters in a rank's colour that can be read on a light page and on a dark one."""

from matplotlib.colors import to_rgb

from show.pictures import INK


def readable(colour):
    """The same hue, but as bright as INK: orange letters on white would have a contrast of only 2.3."""
    factor = brightness(INK) / brightness(colour)
    scaled = []
    for part in linear(colour):
        scaled.append(gamma(min(1, part * factor)))
    return tuple(scaled)


def brightness(colour):
    red, green, blue = linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def linear(colour):
    """How much light each part of a colour gives. In sRGB, which stores colours, this scale is bent."""
    parts = []
    for part in to_rgb(colour):
        if part <= 0.04045:
            parts.append(part / 12.92)
        else:
            parts.append(((part + 0.055) / 1.055) ** 2.4)
    return parts


def gamma(light):
    """The inverse of `linear`, for one part."""
    if light <= 0.0031308:
        return 12.92 * light
    return 1.055 * light ** (1 / 2.4) - 0.055
