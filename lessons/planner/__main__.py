"""Does it fit, how fast, how many GPUs are worth it, how often will it break, what does it cost?

    python lessons/planner --params 7.5e9 --gpus 64
    python lessons/planner --params 7.5e9 --gpus 4096 --sweep gpus

Formulas only: those of formulas.py, which tests hold against published figures. What they leave out:
stragglers, congestion, the data, a pipeline's own messages, and memory that the framework takes for itself.
"""

import argparse
import json
import math
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from planner import plans, report

CHOICES = {  # the first is what a plan assumes
    "recompute": (("selective", "none", "full"), "what backward computes again; FlashAttention: selective"),
    "algorithm": (("two-level", "ring", "tree", "server"), "of the data-parallel ranks' all-reduce"),
}
# A GPU as in NVIDIA's data sheet of the H100 SXM, a network as Llama 3's. Half of the peak is about what
# Megatron-LM reaches before data parallelism (Korthikanti 2022, table 5: 0.44 to 0.57).
OPTIONS = {  # name: (least, default, what it is). An int stays one.
    "params": (1, None, "parameters of the model, 7.5e9 for instance"),
    "gpus": (1, None, "in all; with --sweep, up to how many"),
    "tokens": (1, None, "to train on (20 for each parameter)"),
    "batch-tokens": (1, 2**24, "of one step of all GPUs (%(default)s)"),
    "seq": (1, 2048, "tokens of one text (%(default)s)"),
    "micro-batch": (1, 1, "texts that a GPU computes at once (%(default)s)"),
    "stage": (0, 1, "of ZeRO: what is cut among the data-parallel ranks, 0 to 3 (%(default)s)"),
    "tensor-parallel": (1, 1, "GPUs that share each matrix (%(default)s)"),
    "pipeline": (1, 1, "stages that the layers are cut into (%(default)s)"),
    "interleave": (1, 1, "pieces of the model on each stage (%(default)s)"),
    "layers": (1, None, "of the model (guessed from --params, in GPT-3's proportions)"),
    "hidden": (1, None, "width of the model (guessed)"),
    "heads": (1, None, "of attention (one for 128 of the width)"),
    "gpus-per-node": (1, 8, "that the faster links connect (%(default)s)"),
    "memory": (0.0, 80e9, "bytes of a GPU (H100: 80e9)"),
    "peak": (0.0, 989e12, "operations a second of a GPU (H100, bf16, not sparse: 989e12)"),
    "mfu": (0.0, 0.5, "share of the peak while it computes, communication apart (%(default)s)"),
    "bandwidth-node": (0.0, 450e9, "bytes a second of a GPU in its node, one way (NVLink 4: 450e9)"),
    "bandwidth-network": (0.0, 50e9, "bytes a second of a GPU to other nodes (400 Gb/s: 50e9)"),
    "latency": (0.0, 5e-6, "seconds of one message (%(default)s)"),
    "price-per-hour": (0.0, 3.0, "of a GPU, in dollars (%(default)s)"),
    "failure-rate": (0.0, 419 / 54 / 16384, "interruptions per GPU and day (Llama 3's: 419 / 54 / 16384)"),
    "save-seconds": (0.0, 60.0, "that a checkpoint holds the training up (%(default)s)"),
    "restart-seconds": (0.0, 300.0, "from an interruption to the next step (%(default)s)"),
}


# ---- the command --------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    def error(self, message):  # workload.refuse says it alike, but importing PyTorch takes seconds
        print(f"error: {' '.join(message.split())}", file=sys.stderr)
        sys.exit(2)


def number(least, text):
    """A number as people write them, 7.5e9; whole if `least` is, and not below it (above it, for a 0.0)."""
    value = float(text)
    if not math.isfinite(value) or value < least or (value == 0 and type(least) is float):
        bound = f"at least {least}" if type(least) is int else "above 0"
        raise argparse.ArgumentTypeError(f"must be {bound} and finite, not {text}")
    if type(least) is int and value != int(value):
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text}")
    return int(value) if type(least) is int else value


def main(words=None):
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, (least, default, text) in OPTIONS.items():
        kind = partial(number, least)
        kind.__name__ = "number"
        required = name in ("params", "gpus")
        parser.add_argument(f"--{name}", type=kind, default=default, required=required, help=text)
    for name, (choices, text) in CHOICES.items():
        parser.add_argument(f"--{name}", choices=choices, default=choices[0], help=f"{text} (%(default)s)")
    parser.add_argument("--sequence-parallel", action="store_true", help="cut norms and dropout too")
    parser.add_argument("--sweep", choices=["gpus"], help="a table, and the curve in OUT/planner.png")
    parser.add_argument("--json", action="store_true", help="the same for a program")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of the picture (out)")
    job = vars(parser.parse_args(words))
    swept, as_json, out = (job.pop(name) for name in ("sweep", "json", "out"))
    try:
        if job["stage"] > 3 or job["mfu"] > 1:
            raise ValueError("--stage is 0 to 3, and --mfu a share: at most 1")
        rows, end = plans.sweep(job) if swept else ([plans.plan(job)], "")
        if swept:
            picture = report.draw(rows, out)
    except ValueError as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"cannot write to --out {out} ({error.strerror}): name a folder that you own")
    if as_json:
        print(json.dumps({"rows": rows, "end": end, "picture": str(picture)} if swept else rows[0]))
    else:
        print(report.table(rows, end, picture) if swept else report.text(rows[0]))


if __name__ == "__main__":
    main()
