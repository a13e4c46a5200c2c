"""The progress bar and the line of each epoch, and the curve that a run writes."""

import contextlib
import json

import torch.distributed as dist
from tqdm import tqdm

from workload.endings import say


def progress(batches, epoch):
    """A progress bar around an epoch's batches, only on rank 0 and only in a terminal."""
    quiet = dist.is_initialized() and dist.get_rank() > 0
    return tqdm(batches, f"epoch {epoch:2}", disable=quiet or None, leave=False, unit="step")


def report(arguments, epoch, loss, accuracy, images_per_second):
    """Print the epoch's line, and write its exact numbers to OUT/<lesson>.jsonl."""
    speed = f"{images_per_second:,.0f} {arguments.items}/s"
    print(f"epoch {epoch:2} | loss {loss:.4f} | accuracy {accuracy:5.1%} | {speed}", flush=True)
    values = {
        "epoch": epoch,
        "loss": loss,
        "accuracy": accuracy,
        "images_per_second": images_per_second,
        "world_size": arguments.world_size,
    }
    path = arguments.out / f"{arguments.lesson}.jsonl"
    earlier = path.read_text().splitlines() if path.exists() else []
    # A run that repeats an epoch, or starts again, replaces its earlier lines.
    kept = [text for text in earlier if json.loads(text)["epoch"] < epoch]
    temporary = path.with_suffix(".jsonl.temporary")
    try:
        temporary.write_text("".join(f"{text}\n" for text in [*kept, json.dumps(values)]))
        temporary.replace(path)
    except OSError as error:  # a full disk must not end a long run
        say(f"{path} lacks epoch {epoch} ({error.strerror}); going on without it")
        with contextlib.suppress(OSError):
            temporary.unlink()
