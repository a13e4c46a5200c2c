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
