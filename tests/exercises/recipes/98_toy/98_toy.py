"""Exercise 98: toy. 2 points.

Say here what the exercise is for, and what one has to know to begin.

    98.1 (2 points)  the sum over all processes

The grader calls the function on several processes, with a different number on each.
"""

import torch
import torch.distributed as dist


def total(number):
    """The sum of all processes' numbers, a float, on each process."""
    # cut 98.1: the sum over all processes
    found = torch.tensor(number, dtype=torch.float64)
    dist.all_reduce(found)
    return found.item()
    # end
