"""The learning rate of lesson 08: a linear warm-up, then half a cosine."""

import math


def warm_up_and_cosine(warm_up, epochs, steps):
    """Return a function for LambdaLR that maps a step to its share of the highest learning rate.

    `warm_up` is a number of epochs, and `steps` is the number of steps per epoch.
    """
    rise = warm_up * steps
    fall = max(1, epochs * steps - rise)

    def share(step):
        if step < rise:
            return min(1, (step + 1) / rise)
        return (1 + math.cos(math.pi * (step - rise) / fall)) / 2

    return share
