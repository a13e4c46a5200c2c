"""The learning rate of lesson 08: a warm-up, then half a cosine."""

import math


def warm_up_and_cosine(warm_up, epochs, steps):
    """For LambdaLR: the share of the highest rate at each step. `warm_up` counts epochs of `steps` steps."""
    rise = warm_up * steps
    fall = max(1, epochs * steps - rise)

    def share(step):
        if step < rise:
            return min(1, (step + 1) / rise)
        return (1 + math.cos(math.pi * (step - rise) / fall)) / 2

    return share
