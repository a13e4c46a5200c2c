"""Another solution of exercise 98."""

import torch.distributed as dist


def gathered():
    """All numbers gathered, and added up on each process."""

    def total(number):
        numbers = [None] * dist.get_world_size()
        dist.all_gather_object(numbers, number)
        return float(sum(numbers))
