"""Lesson 18's options, model, optimizer, batches, validation and sample."""

import itertools
import math
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import workload
from parts import gpt

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# The manufacturers' numbers, in TFLOP/s, for dense matrices in bf16 (T4: in fp16).
PEAKS = {"H200": 989, "H100": 989, "A100": 312, "L40S": 362, "L4": 121, "RTX 4090": 165, "T4": 65}


def options(parser):
    title = "of this lesson, or with a different default"
    group = parser.add_argument_group(title, conflict_handler="resolve")
    option = group.add_argument
    option("--text", type=Path, metavar="FOLDER", help="train on these files (PyTorch's Python source)")
    option("--steps", type=int, default=1000, help="(1000)")
    option("--epochs", type=int, help="passes over the text, instead of --steps")
    option("--batch-size", type=int, default=8, help="windows per step, all ranks together (8)")
    option("--accumulate", type=int, default=2, help="micro-batches per step (2)")
    option("--lr", type=float, default=0.003, help="highest learning rate (0.003)")
    option("--warm-up", type=int, default=50, help="steps with a rising learning rate (50)")
    option("--tokens", type=int, default=4096, help="size of the vocabulary (4096)")
    option("--length", type=int, default=128, help="tokens of a window (128)")
    option("--layers", type=int, default=4, help="(4)")
    option("--width", type=int, default=128, help="width of the model (128)")
    option("--heads", type=int, default=4, help="(4)")
    option("--clip-norm", type=float, default=1.0, help="clip gradients to this norm (1; or inf)")
    option("--skip-above", type=float, default=4.0, help="skip a step with so many usual norms (4; or inf)")
    option("--precision", choices=DTYPES, help="(bf16 or fp16 on GPUs, fp32 on CPUs)")
    option("--compile", action="store_true", help="compile the model (a minute; needs gcc)")
    option("--train-size", type=int, help="windows to train on (all)")
    option("--test-size", type=int, default=128, help="windows of a validation (128)")
    option("--validate-every", type=int, default=100, help="steps between validations (100)")
    option("--snapshot-every", type=int, default=100, help="steps between snapshots (100)")
    option("--crash-at", type=int, help="step after which a process is killed")
    option("--peak-tflops", type=float, help="peak of one process; shows MFU")


def check(arguments):
    """Refuse a run that cannot work."""
    if arguments.data != "digits":
        workload.refuse(f"this lesson reads text, not {arguments.data}: use --text FOLDER")
    workload.check(arguments)
    if arguments.text and not arguments.text.is_dir():
        workload.refuse(f"--text {arguments.text} is not a folder")
    for name in ("steps", "warm-up", "length", "layers", "heads", "validate-every"):
        value = getattr(arguments, name.replace("-", "_"))
        if value < 1:
            workload.refuse(f"--{name} must be at least 1, not {value}")
    if not 257 <= arguments.tokens <= 100_000:
        workload.refuse(f"--tokens must be from 257 to 100000, not {arguments.tokens}")
    if arguments.width % (2 * arguments.heads):
        workload.refuse(f"--width {arguments.width} is not a multiple of twice the {arguments.heads} heads")
    if not arguments.clip_norm > 0:
        workload.refuse(f"--clip-norm must be above 0 (inf to clip nothing), not {arguments.clip_norm}")
    if not arguments.skip_above > 1:
        workload.refuse(f"--skip-above must be above 1 (inf to skip only nan), not {arguments.skip_above}")
    size, parts = arguments.batch_size // arguments.world_size, arguments.accumulate
    if not 1 <= parts <= size:
        workload.refuse(f"--accumulate must be from 1 to the {size} windows of a process, not {parts}")


def settings(arguments, text):
    """What a snapshot must share with the run that resumes from it.

    The settings of all lessons come on top of these.
    """
    names = ("steps", "warm_up", "length", "heads", "clip_norm", "skip_above", "precision")
    values = {name: getattr(arguments, name) for name in names}
    return values | {"data": f"text {text.fingerprint} in {arguments.tokens} tokens"}


def pick_precision(wanted, device):
    """bf16 on GPUs that have it, and fp16 on others. Most CPUs are fastest in fp32."""
    if wanted is not None:
        return wanted
    if device.type == "cpu":
        return "fp32"
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return "fp16"
    return "bf16"


def find_peak():
    """The peak of this GPU in TFLOP/s, or None if it is not in the table."""
    if not torch.cuda.is_available():
        return None
    name = torch.cuda.get_device_name()
    return next((peak for part, peak in PEAKS.items() if part in name), None)


def build_model(arguments, device):
    model = gpt.GPT(arguments.tokens, arguments.width, arguments.heads, arguments.layers)
    # With autocast, weights and gradients stay in fp32.
    model = model.to(device, torch.float64 if arguments.precision == "fp64" else torch.float32)
    if arguments.compile:
        model.compile()
    return model


def make_optimizer(model, arguments):
    """AdamW. Weight decay pulls weights towards 0.

    So the norms' scales, which start at 1, have none.
    """
    matrices, vectors = [], []
    for weight in model.parameters():
        (matrices if weight.dim() > 1 else vectors).append(weight)
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=arguments.lr, betas=(0.9, 0.95), fused=True)


def make_scheduler(optimizer, arguments, steps_per_epoch):
    if arguments.epochs:
        arguments.steps = arguments.epochs * steps_per_epoch
    share = warm_up_and_cosine(arguments.warm_up, arguments.steps)
    return torch.optim.lr_scheduler.LambdaLR(optimizer, share)


def warm_up_and_cosine(warm_up, steps, lowest=0.1):
    """For LambdaLR: a linear warm-up, then half a cosine down to a tenth of the peak."""

    def share(step):
        if step < warm_up:
            return (step + 1) / warm_up
        progress = min(1, (step - warm_up) / max(1, steps - warm_up))
        return lowest + (1 - lowest) * (1 + math.cos(math.pi * progress)) / 2

    return share


def validations(done, arguments):
    """The steps after which the run validates.

    A run that was killed in a validation repeats it.
    """
    every, steps = arguments.validate_every, arguments.steps
    for last in (*range(every, steps, every), steps):
        if last >= done:
            yield last


def interval(last, arguments):
    """The number of steps from the previous validation to that after step `last`."""
    return (last - 1) % arguments.validate_every + 1


def batches(train_loader, done, last):
    """The batches of steps done + 1 to `last`.

    An epoch's order depends only on the seed and the epoch.
    """
    while done < last:
        epoch, skip = divmod(done, len(train_loader))
        train_loader.sampler.set_epoch(epoch)
        for batch in itertools.islice(train_loader, skip, skip + last - done):
            yield batch
            done += 1


@torch.no_grad()
def validate(model, test_set, count, rank, world_size):
    """The mean loss of `count` windows, and the share of correct tokens.

    The windows are spread over the held-out files.
    """
    chosen = range(0, len(test_set), len(test_set) // count)[:count]
    loader = DataLoader(test_set, 16, sampler=chosen[rank::world_size], collate_fn=workload.collate)
    sums = torch.zeros(2, dtype=torch.float64, device=test_set.labels.device)
    for tokens, following in loader:
        scores, following = model(tokens).flatten(0, 1), following.flatten()
        sums[0] += cross_entropy(scores, following, reduction="sum")
        sums[1] += (scores.argmax(dim=1) == following).sum()
    dist.all_reduce(sums)
    loss, accuracy = (sums / count / test_set.labels.shape[1]).tolist()
    return {"loss": loss, "accuracy": accuracy}


def bits(nats_per_token, bytes_per_token):
    """Bits per byte can be compared between vocabularies and with compressors.

    Losses per token cannot.
    """
    return nats_per_token / math.log(2) / bytes_per_token


@torch.no_grad()
def write(model, encoder, arguments, device, count=60, temperature=0.7):
    """Print what the model writes.

    The prompt does not end in a space, which belongs to the next token.
    """
    generator = torch.Generator().manual_seed(arguments.seed)
    tokens = torch.tensor([encoder.encode(b"\n\ndef")])
    for _ in range(count):
        scores = model(tokens[:, -arguments.length :].to(device))[0, -1]
        chances = (scores.double().cpu() / temperature).softmax(dim=0)
        following = chances.multinomial(1, generator=generator)
        tokens = torch.cat([tokens, following[None]], dim=1)
    written = encoder.decode(tokens[0].tolist()).decode(errors="replace")
    for line in written.strip("\n").splitlines():
        print(f"    {line}")
    print(flush=True)
