"""The options of lesson 14, the checks of their values, the settings that all workers
share, and the images that are kept for validation.
"""

import math
from argparse import Namespace

import workload


def add(parser):
    title = "options of this lesson, or with a different default"
    group = parser.add_argument_group(title, conflict_handler="resolve")
    option = group.add_argument
    option("--epochs", type=int, default=4, help="epochs of each trial (4)")
    option("--lr", type=float, nargs=2, default=(0.003, 0.3), help="lowest and highest (0.003 0.3)")
    sizes = (15, 30, 60, 120)
    option("--batch-size", type=int, nargs="+", default=sizes, help="batch sizes to try (15 30 60 120)")
    option("--train-size", type=int, help="images, validation included (digits: 2400; other data: all)")
    option("--validation-size", type=int, help="training images kept for validation (a tenth)")
    option("--trials", type=int, default=1000, help="stop after this many trials (1000)")
    option("--seconds", type=float, default=60, help="stop this long after the first trial started (60)")
    option("--price", type=float, default=0, help="dollars per hour and worker (0)")
    option("--dollars", type=float, default=math.inf, help="stop when all workers together cost this much")
    option("--pruner", choices=("median", "none"), default="median", help="what ends trials early")
    option("--time-limit", type=float, default=30, help="seconds of silence after which a trial is lost (30)")


def check(arguments):
    if arguments.train_size is None and arguments.data == "digits":
        arguments.train_size = 2400
    low, high = arguments.lr
    smallest, largest = min(arguments.batch_size), max(arguments.batch_size)
    for lr, batch_size in ((low, smallest), (high, largest)):
        of_a_trial = Namespace(**vars(arguments))
        of_a_trial.lr = lr
        of_a_trial.batch_size = batch_size
        workload.check(of_a_trial, replicas=1)
    size = arguments.validation_size
    if size is not None and size < 1:
        workload.refuse(f"--validation-size must be at least 1, not {size}")
    if arguments.trials < 1:
        workload.refuse(f"--trials must be at least 1, not {arguments.trials}")
    if not arguments.seconds > 0:
        workload.refuse(f"--seconds must be above 0, not {arguments.seconds}")
    if not arguments.dollars > 0:
        workload.refuse(f"--dollars must be above 0, not {arguments.dollars}")
    if low > high:
        workload.refuse(f"--lr needs the lowest rate first, then the highest, not {low} {high}")
    has_a_limit = arguments.dollars < math.inf
    if arguments.price < 0 or (has_a_limit and not arguments.price):
        workload.refuse("--dollars needs a --price above 0: the dollars that one worker costs per hour")


def settings(arguments):
    """The settings that must be equal on all workers, so that their trials can be
    compared.
    """
    return {
        "data": arguments.data,
        "train_size": arguments.train_size,
        "validation_size": arguments.validation_size,
        "test_size": arguments.test_size,
        # The journal keeps tuples as lists, and a tuple never equals a list.
        "batch_size": list(arguments.batch_size),
        "lr": list(arguments.lr),
        "epochs": arguments.epochs,
        "width": arguments.width,
        "seed": arguments.seed,
        "pruner": arguments.pruner,
        "trials": arguments.trials,
        "seconds": arguments.seconds,
        "price": arguments.price,
        "dollars": arguments.dollars,
        "time_limit": arguments.time_limit,
    }


def split_images(train_set, arguments):
    """Return the training images and the validation images."""
    size = arguments.validation_size or len(train_set) // 10
    left = len(train_set) - size
    if left < max(arguments.batch_size):
        problem = f"only {left} training images are left, less than one --batch-size"
        workload.refuse(f"{problem}: take more --train-size")
    return workload.split(train_set, size)
