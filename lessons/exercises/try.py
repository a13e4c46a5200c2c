"""Try your answers by hand: python lessons/exercises/try.py 03

This command starts your file on as many processes as the exercise needs (--ranks 3 starts three), and calls
your functions with small inputs. Every printed line, including the lines that your file prints, begins with
the rank. The program stops at the first function that you have not written yet. If processes wait for each
other forever, gloo gives up after ten seconds, and the traceback shows the line in your file; Ctrl-C stops it
sooner.

Below is a function for each exercise, for example try_03 for exercise 03. Read and change these functions
as you like. The grader does not look at this file. The bug hunt has its own program, 04a_bug_hunt/start.py.
"""

import argparse
import builtins
import datetime
import functools
import importlib.util
import io
import os
import sys
import tempfile
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils.data import TensorDataset

HERE = Path(__file__).resolve().parent


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("exercise", help="03, 03a, ...")
    parser.add_argument("--ranks", type=int, help="how many processes")
    parser.add_argument("--submission", type=Path, default=HERE, help="folder with your files (here)")
    arguments = parser.parse_args()
    name = arguments.exercise.removesuffix(".py")
    if "bug" in name or name == "04a":
        sys.exit("error: start the bug hunt with lessons/exercises/04a_bug_hunt/start.py bug_03")
    found = [
        path for path in sorted(arguments.submission.resolve().glob("[0-9]*.py")) if name in short_names(path)
    ]
    if not found:
        there = ", ".join(sorted(TRIALS))
        sys.exit(f"error: there is no exercise {name} in {arguments.submission}: choose one of {there}")
    number = found[0].stem.partition("_")[0]
    if number not in TRIALS:
        sys.exit(f"error: there is no try_{number} yet: write it, and add it to TRIALS")
    function, usual = TRIALS[number]
    world_size = arguments.ranks or usual
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            mp.spawn(one_rank, (world_size, function, str(found[0])), nprocs=world_size)
        except mp.ProcessExitedException:
            sys.exit(1)  # the process that failed has printed the reason
        except KeyboardInterrupt:
            sys.exit("stopped")


def short_names(path):
    """Return the names of an exercise: 03_average_gradients, 03 and 3."""
    number = path.stem.partition("_")[0]
    return {path.stem, number, number.removeprefix("0")}


def print_with_rank(rank, plain_print, *words, file=None, **named):
    """Print all lines at once, because the lines of several processes could get mixed up otherwise."""
    text = io.StringIO()
    plain_print(*words, file=text, **named)
    lines = "".join(f"rank {rank} | {line}\n" for line in text.getvalue().splitlines())
    plain_print(lines, end="", file=file, flush=True)


def show(*words):
    """Print the words, with numbers rounded to four digits."""
    print(*map(rounded, words))


def rounded(value):
    if isinstance(value, torch.Tensor):
        return rounded(value.tolist())
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(rounded, value))
    return float(f"{value:.4g}") if isinstance(value, float) else value


def one_rank(rank, world_size, function, path):
    """What each process runs."""
    builtins.print = functools.partial(print_with_rank, rank, print)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    torch.manual_seed(rank)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{os.getcwd()}/meeting",
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=10),
    )
    dist.barrier()  # a rank that ends early would close connections that others are still making
    try:
        spec = importlib.util.spec_from_file_location("answers", path)
        answers = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(answers)
        function(answers, rank, world_size)
    except NotImplementedError as error:
        print("not written yet:", error)
    except Exception:
        print(traceback.format_exc())
        sys.exit(1)
    dist.destroy_process_group()


# ---- the trials -------------------------------------------------------------------------------


def try_01(answers, rank, world_size):
    model, images, labels = nn.Linear(3, 2), torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1])
    answers.add_gradients(model, list(zip(images.split(2), labels.split(2), strict=True)))
    show("gradient from parts of 2, 2 and 1 images:", model.weight.grad)
    model.zero_grad()
    cross_entropy(model(images), labels).backward()
    show("gradient from all 5 images at once:", model.weight.grad)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    show("loss of one step:", answers.large_step(model, optimizer, images, labels, part_size=2))
    batches = zip(images.split(1), labels.split(1), strict=True)
    show("losses of an epoch with 3 steps:", answers.train_epoch(model, optimizer, batches, parts_per_step=2))


def try_02(answers, rank, world_size):
    model, images, labels = nn.Linear(3, 2), torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 1])
    parts = answers.scatter(images, 2)
    show("images in each part:", [len(part) for part in parts])
    copies = answers.replicate(model, 2)
    show("weights of the copies:", [copy.weight for copy in copies])
    outputs = answers.compute_and_gather(copies, parts)
    show("outputs of the copies:", outputs)
    show("outputs of the model itself:", model(images))
    cross_entropy(outputs, labels).backward()
    show("gradients of the copies:", [copy.weight.grad for copy in copies])
    answers.reduce(model, copies)
    show("gradient of the model after reduce:", model.weight.grad)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    show("loss of one step:", answers.train_step(model, optimizer, images, labels, 2))


def try_03(answers, rank, world_size):
    model = nn.Linear(3, 1)
    show("weight at the start:", model.weight)
    answers.broadcast_model(model)
    show("weight after broadcast_model:", model.weight)
    model(torch.full((1, 3), float(rank + 1))).sum().backward()
    show("gradient of this rank:", model.weight.grad)
    answers.average_gradients(model)
    show("gradient after average_gradients:", model.weight.grad)


def try_03a(answers, rank, world_size):
    show("sizes of the chunks of 8 numbers:", [len(one) for one in answers.chunks_of(torch.arange(8), 3)])
    incoming = torch.zeros(1)
    if world_size > 1:
        answers.pass_on(torch.tensor([float(rank)]), incoming)
    show("received from the left:", incoming)
    chunks = list(torch.full((world_size,), 10.0**rank).split(1))
    answers.sum_chunks(chunks)
    show("chunks after sum_chunks:", [chunk.item() for chunk in chunks])
    tensor = torch.full((2, 3), 10.0**rank)
    answers.ring_all_reduce(tensor)
    show("tensor after ring_all_reduce:", tensor)


def try_03b(answers, rank, world_size):
    model = answers.Overlapped(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)), bucket_bytes=24)
    for number, bucket in enumerate(model.buckets):
        show(f"shapes in bucket {number}:", [list(parameter.shape) for parameter in bucket])
    model(torch.full((1, 3), float(rank + 1))).sum().backward()
    show("gradients before finish:", [one.grad.flatten() for one in model.parameters()])
    model.finish()
    show("gradients after finish:", [one.grad.flatten() for one in model.parameters()])


def try_04(answers, rank, world_size):
    sampler = answers.ShareSampler(10, rank, world_size)
    show("epoch 0, with 10 images:", list(sampler))
    sampler.set_epoch(1)
    show("epoch 1, with 10 images:", list(sampler))
    show("evaluation, with 9 images:", list(answers.evaluation_shard(9, rank, world_size)))
    right = torch.arange(3 + rank) > 0
    show("correct answers:", right, "accuracy over all ranks:", answers.exact_accuracy(right))


def try_05(answers, rank, world_size):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    snapshot = Path("run.snapshot")
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    scheduler.step()
    answers.save(snapshot, parts, 3, rank)
    dist.barrier()
    show("files after save:", sorted(path.name for path in Path().glob("*.*")))
    show("weight of this rank:", model.weight)
    show("first epoch without a snapshot:", answers.load(Path("none.snapshot"), parts))
    show("first epoch after epoch 3 was saved:", answers.load(snapshot, parts))
    show("weight, which should now be rank 0's:", model.weight)


def try_06(answers, rank, world_size):
    images = torch.stack([torch.arange(11) / 10, torch.arange(11) % 2], dim=1)  # image 7 begins with 0.7
    data = TensorDataset(images, torch.arange(11) % 2)
    show("uses device number", answers.pick_device())
    show("data:", answers.prepare("data", lambda path: Path(path).write_bytes(b"1234")))
    loader = answers.make_loader(data, 4, seed=0)
    for epoch in (0, 1):
        first = [batch[:, 0] for batch, _ in loader]
        show("images in its batches, epoch", epoch, "of the loader:", first)
    model, losses = answers.train(nn.Linear(2, 2), loader, epochs=3, lr=0.1)
    show("losses:", losses)
    answers.save(model, 2, "snapshot.pt")
    dist.barrier()
    show("names in the snapshot:", torch.load("snapshot.pt"))
    show("epoch that load returns:", answers.load(nn.Linear(2, 2), "snapshot.pt"))
    show("accuracy:", answers.accuracy(model, data))


def try_06b(answers, rank, world_size):
    job = {"epochs": 2, "batch_size": 2, "seed": 0, "every": 2}
    for step in (1, 2, 3):
        answers.save(".", step, job, {"weights": torch.full((2,), float(step))})
        show("after step", step, "there are:", sorted(path.name for path in Path().glob("*.snapshot*")))
    show("load returns", answers.load(".", job))
    newest = max(Path().glob("*.snapshot"))
    newest.write_bytes(newest.read_bytes()[:-10])
    show("with the newest snapshot cut short, load returns", answers.load(".", job))
    show("the folder contains:", sorted(path.name for path in Path().glob("*.snapshot*")))
    show("batches after step 2:", list(answers.batches_from(2, 5, job)))
    answers.save_together(".", 9, job, {"rank": rank})
    show("load_together returns", answers.load_together(".", job))


def try_08(answers, rank, world_size):
    show("owners of parameters with 6, 3, 3 and 2 numbers:", answers.deal([6, 3, 3, 2], world_size))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    optimizer = answers.ShardedOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
    show("parameters in the groups:", [len(group["params"]) for group in optimizer.param_groups])
    model(torch.ones(1, 3)).sum().backward()
    show("weights before the step:", [one.flatten() for one in model.parameters()])
    optimizer.step()
    show("weights after the step:", [one.flatten() for one in model.parameters()])
    whole = optimizer.state_dict()
    show("state_dict:", whole)
    box = [whole]
    dist.broadcast_object_list(box, src=0)
    optimizer.load_state_dict(box[0])


def try_09(answers, rank, world_size):
    tensors = [torch.arange(1.0, 4.0), torch.tensor([[4.0, 5.0]])]
    show("flat:", answers.flatten(tensors, world_size))
    show("this rank's shard:", answers.split(tensors, rank, world_size))
    torch.manual_seed(0)
    module = nn.Linear(2, 1)
    unit = answers.Unit(module)
    show("shard:", unit.shard)
    show("gathered:", unit.gather(torch.float32))
    unit(torch.ones(1, 2) * (rank + 1)).sum().backward()
    show("gradient of the shard:", unit.shard.grad)
    show("full_state:", unit.full_state())


def try_10(answers, rank, world_size):
    stages = range(world_size)
    first = [answers.gpipe(stage, world_size, 3) for stage in stages]
    show("gpipe:", " ".join(f"{kind[0].upper()}{number}" for kind, number in first[rank]))
    schedules = [answers.one_forward_one_backward(stage, world_size, 3) for stage in stages]
    show("1f1b:", " ".join(f"{kind[0].upper()}{number}" for kind, number in schedules[rank]))
    lines = answers.timeline(schedules, [1.0] * world_size, [2.0] * world_size)
    show("begin and end of each action:", lines[rank])
    show("idle share:", answers.idle_share(lines), "held:", answers.activations_held(schedules[rank]))
    stage = nn.Linear(2, 2)
    inputs = [torch.ones(1, 2) * number for number in range(3)] if rank == 0 else None
    targets = [torch.zeros(1, 2)] * 3 if rank == world_size - 1 else None
    show("loss:", answers.run(schedules[rank], stage, inputs, targets, mse_loss, (1, 2)))
    show("gradient of the stage:", stage.weight.grad)


def try_11(answers, rank, world_size):
    weight, bias = torch.arange(12.0).view(4, 3), torch.arange(4.0)
    show("weight and bias, cut by columns:", answers.cut_columns(weight, bias, rank, world_size))
    show("weight and bias, cut by rows:", answers.cut_rows(weight, bias, rank, world_size))
    torch.manual_seed(0)
    up, down, x = nn.Linear(3, 4), nn.Linear(4, 3), torch.ones(1, 3)
    show("output of one process:", down(nn.functional.gelu(up(x))))
    block = answers.FeedForward(up.weight, up.bias, down.weight, down.bias)
    output = block(x)
    show("output of the block:", output)
    output.sum().backward()
    show("shapes of the gradients:", {name: list(one.grad.shape) for name, one in block.named_parameters()})
    show("norm of the gradients:", answers.clip_gradients(block, 1.0))


def try_15(answers, rank, world_size):
    length = 4 * world_size
    mine, last = answers.positions(length, rank, world_size), world_size - 1
    show("positions of this rank:", mine)
    show("halves that meet halves of the last rank:", answers.meetings(rank, last))
    torch.manual_seed(0)
    query, key, value, gradient = torch.randn(4, 1, 1, length, 2).unbind()
    every = torch.arange(length)
    output, log_sum_exp = answers.attend(query, key, value, every, every)
    show("output of one process over all keys:", output[0, 0, mine])
    half = every.chunk(2)
    parts = [answers.attend(query, key[..., some, :], value[..., some, :], every, some) for some in half]
    show("output from two halves of the keys, merged:", answers.merge(*parts[0], *parts[1])[0][0, 0, mine])
    own = [one[..., mine, :] for one in (query, key, value, gradient)]
    output, log_sum_exp = answers.ring_forward(*own[:3])
    show("output of ring_forward:", output[0, 0])
    gradients = answers.ring_backward(*own[:3], output, log_sum_exp, own[3])
    show("gradient of the key:", gradients[1][0, 0])


def try_16(answers, rank, world_size):
    logits = torch.tensor([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]])
    show("tokens, experts, weights:", answers.route(logits, 1, None))
    show("with capacity 1:", answers.route(logits, 1, 1))
    show("part of the balancing loss:", answers.balancing_loss(logits, torch.tensor([0, 1, 0])))
    x = torch.tensor([[10.0 * rank], [10.0 * rank + 1], [10.0 * rank + 2]], requires_grad=True)
    arrived, plan = answers.dispatch(x, torch.tensor([0, 2, 1]), torch.tensor([0, 0, 1]), 2)
    show(f"arrived for expert {rank}:", arrived)
    output = answers.combine([rows * (rank + 1) for rows in arrived], plan, torch.ones(3))
    show("answers, times 1 from expert 0 and times 2 from expert 1:", output)
    output.sum().backward()
    show("gradient of x:", x.grad)
    torch.manual_seed(0)
    layer = answers.Mixture(nn.Linear(1, 2), [nn.Linear(1, 1)], 1, None)
    output, balance = layer(x.detach())
    (output.sum() + balance).backward()
    answers.add_up_gradients(layer)
    show("gradients:", {name: one.grad.flatten() for name, one in layer.named_parameters()})


def try_18(answers, rank, world_size):
    guard = answers.Guard(times=4, count=5, fewest=3)
    norms = [1.0, 1.2, 0.9, 1.1, 9.0, float("nan"), 1.0]
    show("norms 1, 1.2, 0.9, 1.1, 9, nan, 1:", [guard.accepts(norm) for norm in norms])
    show("accepted:", guard.norms)
    show("norm over all ranks:", answers.total_norm([torch.full((2,), 3.0 * rank)]))
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    guard = answers.Guard(times=4, count=5, fewest=1)
    for inputs in (1.0, float("nan") if rank == 1 else 1.0, 1.0):
        micro_batch = torch.full((1, 2), inputs), torch.tensor([rank % 2])
        taken = answers.train_step(model, optimizer, scheduler, guard, [micro_batch], 1.0)
        show("taken:", taken, "learning rate:", scheduler.get_last_lr()[0], "bias:", model.bias)


TRIALS = {  # each exercise's function and its usual number of processes
    "01": (try_01, 1),
    "02": (try_02, 1),
    "03": (try_03, 2),
    "03a": (try_03a, 3),
    "03b": (try_03b, 2),
    "04": (try_04, 3),
    "05": (try_05, 2),
    "06": (try_06, 2),
    "06b": (try_06b, 1),
    "08": (try_08, 2),
    "09": (try_09, 2),
    "10": (try_10, 2),
    "11": (try_11, 2),
    "15": (try_15, 2),
    "16": (try_16, 2),
    "18": (try_18, 2),
}


if __name__ == "__main__":
    main()
