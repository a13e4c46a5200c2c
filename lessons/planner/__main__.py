r"""Does a training job fit, how fast is it, how many GPUs are worth it, how often will it break, and
what does it cost?

    python lessons/planner --params 7.5e9 --gpus 64
    python lessons/planner --params 7.5e9 --gpus 4096 --sweep gpus
    python lessons/planner --model llama3-70b --gpus 512 --tensor-parallel 8 --sequence-parallel
    python lessons/planner --model llama3-405b --gpus 16384 --seq 8192 --search
    python lessons/planner --params 70e9 --gpus 1024 --tensor-parallel 8 --play 1
    python lessons/planner --params 11.7e6 --seconds-per-example 4e-4 \
        --activations-per-example 24e6 --batch-examples 1024 --gpus 8

The plans are for transformers like GPT and Llama. For any other model, such as a ResNet,
the last command plans DDP from what a run on one GPU measured: the seconds and the bytes
of activations that one example takes.

The planner uses only the formulas of formulas.py, which tests compare with published figures.
They leave out stragglers, congestion, the data, a pipeline's own messages, and memory that
the framework takes for itself. They assume that ZeRO stage 2 sends gradients once per step. With
several micro-batches per step, it must send them after each, or hold all gradients as stage 1
does. Stage 0 is DDP with gradient_as_bucket_view=True: without it,
DDP's buckets take 2 more bytes per parameter, or 4 more with torch.autocast, whose gradients
have 32 bits. Autocast's 16-bit copies of the weights take up to 2 more.
"""

import argparse
import json
import math
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from planner import measured, plans, report

CHOICES = {  # the first is what a plan assumes
    "recompute": (
        ("selective", "none", "full"),
        "what backward computes again; FlashAttention: selective",
    ),
    "algorithm": (
        ("two-level", "ring", "tree", "server"),
        "of the data-parallel ranks' all-reduce",
    ),
    "precision": (("bf16", "fp8"), "of products with weights; what is kept and sent stays in 16 bits"),
}


SEARCH = "the best few ways to shard the job; an option that says how is taken as it is given"


class Option(NamedTuple):
    least: float  # an int option stays an int
    default: float | None
    help: str


# The GPU is NVIDIA's H100 SXM (data sheet), the network is Llama 3's. Half of the peak is about
# what Megatron-LM reaches before data parallelism (Korthikanti 2022, table 5: hardware FLOPs
# utilization of 0.44 to 0.57 over a whole step).
OPTIONS = {
    "params": Option(1, None, "parameters of the model, 7.5e9 for instance"),
    "gpus": Option(1, None, "in all; with --sweep, up to how many"),
    "tokens": Option(1, None, "to train on (20 for each parameter)"),
    "batch-tokens": Option(1, 2**24, "of one step of all GPUs (%(default)s)"),
    "seq": Option(1, 2048, "tokens of one text (%(default)s)"),
    "micro-batch": Option(1, 1, "texts that a GPU computes at once (%(default)s)"),
    "stage": Option(0, 1, "of ZeRO: what data-parallel ranks shard, 0 to 3 (%(default)s)"),
    "tensor-parallel": Option(1, 1, "GPUs that share each matrix (%(default)s)"),
    "pipeline": Option(1, 1, "stages that the layers are split into (%(default)s)"),
    "interleave": Option(1, 1, "model chunks on each stage (%(default)s)"),
    "context-parallel": Option(1, 1, "GPUs that share each text, by ring attention (%(default)s)"),
    "expert-parallel": Option(1, 1, "data-parallel ranks that share the experts (%(default)s)"),
    "replicate": Option(1, 1, "copies of what ZeRO shards: hybrid sharding, HSDP (%(default)s)"),
    "layers": Option(1, None, "of the model (guessed from --params, in GPT-3's proportions)"),
    "hidden": Option(1, None, "width of the model (guessed)"),
    "heads": Option(1, None, "of attention (one for 128 of the width)"),
    "kv-heads": Option(1, None, "of keys and values (as many as heads)"),
    "feed-forward": Option(1, None, "width of gated feed-forward layers (not gated: 4 times the model's)"),
    "vocab": Option(1, plans.VOCAB, "tokens that there are (%(default)s)"),
    "experts": Option(1, 1, "in place of each feed-forward layer (%(default)s)"),
    "experts-used": Option(1, 1, "for each token (%(default)s)"),
    "gpus-per-node": Option(1, 8, "that the faster links connect (%(default)s)"),
    "memory": Option(0.0, 80e9, "bytes of a GPU (H100: 80e9)"),
    "peak": Option(0.0, 989e12, "operations a second of a GPU (H100, bf16: 989e12)"),
    "mfu": Option(0.0, 0.5, "share of the peak, communication apart (%(default)s)"),
    "bandwidth-node": Option(0.0, 450e9, "bytes a second in a node, one way (NVLink 4: 450e9)"),
    "bandwidth-network": Option(0.0, 50e9, "bytes a second between nodes (400 Gb/s: 50e9)"),
    "latency": Option(0.0, 5e-6, "seconds of one message (%(default)s)"),
    "price-per-hour": Option(0.0, 3.0, "of a GPU, in dollars (%(default)s)"),
    "failure-rate": Option(
        0.0,
        419 / 54 / 16384,
        "unplanned interruptions per GPU and day (Llama 3's: 419 / 54 / 16384; 466 with the planned ones)",
    ),
    "save-seconds": Option(0.0, 60.0, "that a checkpoint holds training up (%(default)s)"),
    "restart-seconds": Option(0.0, 300.0, "from an interruption to the next step (%(default)s)"),
    "spares": Option(0, 16, "machines in reserve, for --play (%(default)s)"),
    "seconds-per-example": Option(0.0, None, "of any model, measured on one GPU: forward, backward, update"),
    "activations-per-example": Option(
        0.0, None, "bytes, measured: what a larger batch adds for each example"
    ),
    "batch-examples": Option(1, None, "with --seconds-per-example: examples in a step of all GPUs"),
    "repair-hours": Option(0.0, 24.0, "until an interrupted machine is back, for --play (%(default)s)"),
}


class Parser(argparse.ArgumentParser):
    # As workload.refuse prints it. Importing that would import PyTorch, which takes seconds.
    def error(self, message):
        print(f"error: {' '.join(message.split())}", file=sys.stderr)
        sys.exit(2)


def number(least: float, text: str) -> float:
    """Read a number such as 7.5e9. If `least` is an int, the number must be whole and at least `least`.
    If `least` is 0.0, the number must be above it.
    """
    value = float(text)
    if not math.isfinite(value) or value < least or (value == 0 and type(least) is float):
        bound = f"at least {least}" if type(least) is int else "above 0"
        raise argparse.ArgumentTypeError(f"must be {bound} and finite, not {text}")
    if type(least) is int and value != int(value):
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text}")
    return int(value) if type(least) is int else value


MEASURED = ("seconds_per_example", "activations_per_example", "batch_examples")


def check_measured(parser: argparse.ArgumentParser, job: dict, given_otherwise: bool) -> bool:
    """Whether to plan any model from measurements. A few parameters without a shape are no transformer."""
    given = [job[name] is not None for name in MEASURED]
    options = ", ".join(f"--{name.replace('_', '-')}" for name in MEASURED)
    if any(given) and (not all(given) or given_otherwise):
        parser.error(f"a measured model needs --params, --gpus, {options}, and takes no other way to plan")
    guessed = job["layers"] is None and job["hidden"] is None
    if not any(given) and guessed and job["params"] < 1e8:
        parser.error(
            f"--params {job['params']:g} is small for a transformer: give its --layers and --hidden; "
            f"for another model, give what you measured: {options}"
        )
    return all(given)


def main(words: list[str] | None = None) -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, option in OPTIONS.items():
        kind = partial(number, option.least)
        kind.__name__ = "number"  # argparse prints this name if the text is not a number
        parser.add_argument(
            f"--{name}",
            type=kind,
            default=option.default,
            required=name == "gpus",
            help=option.help,
        )
    for name, (choices, text) in CHOICES.items():
        text += " (%(default)s)"
        parser.add_argument(f"--{name}", choices=choices, default=choices[0], help=text)
    parser.add_argument("--model", choices=plans.MODELS, help="in place of --params: its exact sizes")
    parser.add_argument("--sequence-parallel", action="store_true", help="shard norms and dropout too")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--sweep", choices=["gpus"], help="a table, and OUT/planner.png")
    kind.add_argument("--search", action="store_true", help=SEARCH)
    kind.add_argument("--play", type=int, metavar="SEED", help="draw 200 runs, beside the formulas")
    parser.add_argument("--json", action="store_true", help="the same for a program")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of the picture (out)")
    job = vars(parser.parse_args(words))
    if job["search"]:  # parse again: options that were not set are searched
        from planner import search  # the planner on the site does not use it

        parser.set_defaults(**dict.fromkeys(search.SEARCHED))
        job = vars(parser.parse_args(words))
    swept = job.pop("sweep")
    searched = job.pop("search")
    seed = job.pop("play")
    as_json = job.pop("json")
    out = job.pop("out")
    model = job.pop("model")
    if (model is None) == (job["params"] is None):
        parser.error("give either --params or --model")
    if model:
        sizes = plans.named(model)
        parser.set_defaults(**dict.fromkeys(sizes))  # parse again: which of them were set?
        given = vars(parser.parse_args(words))
        for name in sizes:
            if given[name] is not None:
                option = f"--{name.replace('_', '-')}"
                parser.error(
                    f"--model {model} has its own {option}: leave that out, or give --params and all sizes"
                )
        job |= sizes
    is_measured = check_measured(parser, job, given_otherwise=model or swept or searched or seed is not None)
    try:
        if (job["stage"] or 0) > 3 or job["mfu"] > 1:
            raise ValueError("--stage is 0 to 3, and --mfu a share: at most 1")
        if is_measured:
            found = measured.plan(job)
        elif swept:
            rows, end = plans.sweep(job)
            picture = report.draw(rows, out)
        elif searched:
            rows = search.search(job)
        else:
            found = plans.plan(job)
        if seed is not None:
            from planner import failures

            if not found["fits"]:
                raise ValueError("--play draws whole runs, and this job does not fit: see why without --play")
            played = failures.runs(found, seed)
    except ValueError as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"cannot write to --out {out} ({error.strerror}): name a folder that you own")
    if is_measured:
        print(json.dumps(found) if as_json else measured.text(found))
    elif swept and as_json:
        print(json.dumps({"rows": rows, "end": end, "picture": str(picture)}))
    elif swept:
        print(report.table(rows, end, picture))
    elif searched:
        print(json.dumps(rows) if as_json else search.table(rows))
    elif seed is not None:
        print(json.dumps(played) if as_json else failures.text(found, played))
    elif as_json:
        print(json.dumps(found))
    else:
        print(report.text(found))


if __name__ == "__main__":
    main()
