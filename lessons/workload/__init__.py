"""The code that all lessons share: the images, the model, the options, the report and the end of a process.

Nothing here changes from lesson to lesson. The training code is in the lessons themselves.
"""

import sys

if sys.platform == "win32":
    sys.exit("error: Windows itself cannot run the lessons: use WSL 2 (lessons/launch/README.md#windows)")

from workload.endings import (
    crash_once,
    end_with_parent,
    exit_with_status,
    print_first_error,
    refuse,
    say,
    told_to_stop,
)
from workload.evaluation import count_correct
from workload.images import (
    DATA,
    Images,
    add_data,
    cifar10,
    collate,
    digits,
    draw_digits,
    draw_fonts,
    from_torchvision,
    import_torchvision,
    load_images,
    mnist,
    split,
)
from workload.machine import (
    gpu_count,
    pick_device,
    random_state,
    require_precision,
    set_random_state,
    set_seed,
)
from workload.mesh import make_mesh
from workload.model import ConvNet, Normalize
from workload.options import Parser, check, parser, problem_with, require_torchrun, settings
from workload.report import progress, report
from workload.resuming import check_shared, say_nothing_left, settle

__all__ = [
    "DATA",
    "ConvNet",
    "Images",
    "Normalize",
    "Parser",
    "add_data",
    "check",
    "check_shared",
    "cifar10",
    "collate",
    "count_correct",
    "crash_once",
    "digits",
    "draw_digits",
    "draw_fonts",
    "end_with_parent",
    "exit_with_status",
    "from_torchvision",
    "gpu_count",
    "import_torchvision",
    "load_images",
    "make_mesh",
    "mnist",
    "parser",
    "pick_device",
    "print_first_error",
    "problem_with",
    "progress",
    "random_state",
    "refuse",
    "report",
    "require_precision",
    "require_torchrun",
    "say",
    "say_nothing_left",
    "set_random_state",
    "set_seed",
    "settings",
    "settle",
    "split",
    "told_to_stop",
]
