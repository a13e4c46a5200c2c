"""The options of lesson 08, the checks of their values, and the settings that a resumed
run must share with its snapshot.
"""

import math

import torch

import workload


def add(parser):
    title = "of this lesson, or with a different default"
    group = parser.add_argument_group(title, conflict_handler="resolve")
    option = group.add_argument
    option("--epochs", type=int, default=4, help="passes over the images (4)")
    option("--batch-size", type=int, default=60, help="images per step, over all ranks (60)")
    option("--lr", type=float, default=0.1, help="highest rate, for a batch of 60 (0.1)")
    option("--train-size", type=int, help="images to train and validate on (3000 digits; others: all)")
    option("--validation-size", type=int, help="images that choose the best epoch (a tenth)")
    option("--width", type=int, help="channels of the first layer (8 for digits, else 64)")
    option("--warm-up", type=float, default=0.5, help="epochs with a rising rate (0.5)")
    option("--patience", type=int, default=3, help="epochs without a better one (3)")
    option("--workers", type=int, default=0, help="DataLoader workers per process (0)")
    option("--compile", action="store_true", help="compile the model (minutes; needs gcc)")
    double = {"dest": "dtype", "action": "store_const", "const": torch.float64, "default": torch.float32}
    option("--double", **double, help="compute in 64 bits")
    option("--profile", action="store_true", help="write a trace for ui.perfetto.dev")
    option("--peak-tflops", type=float, help="peak of one process; shows MFU")


def check(arguments):
    """Exit with a one-line message if this run cannot work. Set the defaults that
    depend on the data.
    """
    if arguments.width is None:
        arguments.width = 8 if arguments.data == "digits" else 64
    if arguments.train_size is None and arguments.data == "digits":
        arguments.train_size = 3000
    if arguments.patience < 1:
        workload.refuse(f"--patience must be at least 1, not {arguments.patience}")
    if arguments.workers < 0:
        workload.refuse(f"--workers must be at least 0, not {arguments.workers}")
    epochs, warm_up, peak = arguments.epochs, arguments.warm_up, arguments.peak_tflops
    if not 0 <= warm_up <= epochs:
        workload.refuse(f"--warm-up must be from 0 to the {epochs} epochs, not {warm_up}")
    if peak is not None and not 0 < peak < math.inf:
        workload.refuse(f"--peak-tflops must be a number above 0, not {peak}")
    workload.check(arguments)
    images = arguments.train_size
    if arguments.data != "digits":
        images = len(workload.load_images(arguments)[0])
    if arguments.validation_size is None:
        arguments.validation_size = max(1, images // 10)
    size, batch_size = arguments.validation_size, arguments.batch_size
    if size < 1:
        workload.refuse(f"--validation-size must be at least 1, not {size}")
    if images - size < batch_size:
        left = f"{images} images without the {size} of --validation-size"
        workload.refuse(f"{left} do not fill one --batch-size of {batch_size}")


def settings(arguments):
    """The settings that a snapshot and the run that resumes from it must share."""
    return {
        "warm_up": arguments.warm_up,
        "patience": arguments.patience,
        "dtype": str(arguments.dtype),
        # The best epoch is chosen with the validation images.
        "validation_size": arguments.validation_size,
    }
