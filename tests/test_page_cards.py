"""A page's card says how to run its lesson, what is new in it, and which lines to copy into a script."""

import html
import re
import shlex
import sys

import pytest

from tools import diffs, launcher, lessons
from tools.site import deck
from tools.site.deck import read

HEAD = "<!-- card -->"
PAGES = {lesson.stem: lesson.page.read_text() for lesson in lessons.LESSONS}
BASE = launcher.ROOT / "tests/probes/card_base.py"
GROUP = "dist.init_process_group(backend)\n"
DDP = GROUP + "ddp_model = DistributedDataParallel(model)\n"
TEXTS = """
texts = torch.randint(8, (4, 9), generator=torch.Generator().manual_seed(1))
texts, following = texts[:, :-1], texts[:, 1:]
model = Transformer()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.no_grad():
    expected = model(texts)
"""
PLAN = re.search(
    r"(?s)plan = \{.*?\n\}\n", "\n".join(read(lessons.get("11_tensor_parallel").page.read_text())[2])
)[0]
# For each lesson: the processes (0: python starts one), what comes before the card's lines, and what must
# hold after them.
PASTED = {
    "01": (0, "", "assert loss_now() < 0.8 * whole_loss"),
    "02": (0, "", "assert torch.load('weights.pt').keys() == model.module.state_dict().keys()"),
    "03": (
        0,
        """
def train_one_epoch(ddp_model, loader, device):
    loss_sum = torch.zeros(())
    for images, labels in loader:
        loss = cross_entropy(ddp_model(images), labels)
        loss.backward()
        loss_sum += loss.detach()
    return loss_sum
""",
        "",
    ),
    "04": (
        2,
        """
def train(rank, world_size, device):
    assert dist.get_rank() == rank and device.type == 'cpu'
    dist.barrier()  # as an exchange of gradients: gloo cannot connect to a process that has ended
""",
        "assert not dist.is_initialized()",
    ),
    "05": (
        2,
        GROUP
        + """
done = []
def train_one_epoch(epoch):
    done.append(epoch)
    dist.barrier()  # as an exchange of gradients: otherwise rank 1 may read what rank 0 saves now
    optimizer.step()
    scheduler.step()
    if epoch == 3 and len(done) == 3:
        raise SystemExit(1)
""",
        "",
    ),
    "06": (2, GROUP + "folder = '.'\ndef train():\n    print('trains')\n", "main(); folder = f'/{rank}'"),
    "06a": (
        2,
        DDP
        + """
sampler = DistributedSampler(train_set, seed=seed)
train_loader = DataLoader(train_set, 4, sampler=sampler)
snapshot, temporary, every, first, done = Path("run.snapshot"), Path("run.temporary"), 3, 2, 4
steps = []
def train_step(images, labels):
    steps.append((epoch, step, torch.rand(1).item()))
    cross_entropy(ddp_model(images), labels).backward()
    optimizer.step()
""",
        """
assert [step[:2] for step in steps[:3]] == [(2, 5), (2, 6), (3, 1)] and len(steps) == 2 + 3 * 6
torch.manual_seed(2 * 10**9 + 4 * 10**3 + rank)  # after the four steps that were skipped
assert torch.rand(1).item() == steps[0][2]
dist.barrier()
assert torch.load(snapshot)["epoch"] == 5
""",
    ),
    "06b": (
        2,
        """
epoch, step, every, snapshot, temporary = 1, 3, 5, "run.snapshot", "run.temporary"
make_state = lambda epoch, step: {"epoch": epoch}
""",
        "raise AssertionError('it should have ended with status 75')",
    ),
    "07": (
        2,
        DDP + "parts = 3\nbefore = [p.clone() for p in model.parameters()]",
        "assert loss_now() < whole_loss",
    ),
    "08": (
        2,
        GROUP
        + """
validation_loader = DataLoader(train_set, 5, sampler=range(rank, len(train_set), world_size))
patience, trained = 1, []
train_one_epoch = trained.append
""",
        """
assert trained == [1, 2, 3] and best == (model(inputs).argmax(dim=1) == train_set.tensors[1]).sum()
dist.barrier()
assert torch.load("best.pt").keys() == model.state_dict().keys()
""",
    ),
    "09": (
        2,
        GROUP,
        """
assert isinstance(model[0].weight, DTensor)
dist.barrier()
whole = make_model(); whole.load_state_dict(torch.load("weights.pt"))
torch.testing.assert_close(model(inputs), whole(inputs))
""",
    ),
    "10": (
        2,
        GROUP
        + """
microbatches = 4
alone = make_model(); alone.load_state_dict(model.state_dict())
cross_entropy(alone(images), labels).backward()
torch.optim.SGD(alone.parameters(), lr=0.1).step()
""",
        """
assert len(losses) == (4 if rank == 1 else 0)
mine = list(alone.parameters())[: len(list(own.parameters()))] if rank == 0 else list(alone.parameters())[2:]
for one, other in zip(own.parameters(), mine, strict=True):
    torch.testing.assert_close(one, other)
""",
    ),
    "11": (2, GROUP + TEXTS, "torch.testing.assert_close(model(texts), expected)"),
    "12": (
        4,
        GROUP + TEXTS + PLAN,
        """
torch.testing.assert_close(model(texts), expected)
assert len(sampler) == 24 and data_size == 2
""",
    ),
    "13": (
        2,
        GROUP
        + TEXTS
        + PLAN
        + """
mesh = init_device_mesh(device.type, (1, world_size), mesh_dim_names=("data", "tensor"))
for block in model.blocks:
    parallelize_module(block, mesh["tensor"], plan)
""",
        """
assert scores.to_local().shape[2] == 4
torch.testing.assert_close(loss.full_tensor(), cross_entropy(expected.flatten(0, 1), following.flatten()))
""",
    ),
    "14": (
        0,
        """
import optuna
optuna.logging.set_verbosity(optuna.logging.ERROR)
train_one_epoch = lambda lr: 1 - lr
""",
        "assert len(study.trials) == 20 and study.best_params['lr'] < 0.5",
    ),
    "15": (
        2,
        GROUP
        + """
length = 8
texts = following = torch.zeros(4, 8, dtype=torch.long)
heads = [torch.randn(4, 2, 8, 4, requires_grad=True) for _ in range(3)]
expected = scaled_dot_product_attention(*heads, is_causal=True)
expected.pow(2).sum().backward()
""",
        """
mine = [part.detach()[:, :, positions].requires_grad_() for part in heads]
output = attend(*mine)
torch.testing.assert_close(output, expected[:, :, positions])
output.pow(2).sum().backward()
for one, other in zip(mine, heads):
    torch.testing.assert_close(one.grad, other.grad[:, :, positions])
""",
    ),
    "16": (
        2,
        GROUP
        + """
experts = 2
model = nn.ModuleDict({"router": nn.Linear(3, experts), "experts": nn.Linear(3, 3)})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
shard = inputs[rank::world_size]
router_scores = model["router"](shard)
loss = model["experts"](shard).square().mean() + router_scores.square().mean()
""",
        """
grads = [None, None]
dist.all_gather_object(grads, [p.grad.sum().item() for p in model.parameters()])
assert grads[0][:2] == grads[1][:2] and grads[0][2:] != grads[1][2:]
""",
    ),
    "17": (
        8,
        GROUP
        + """
loss_sum = torch.tensor(1.0)
for p in model.parameters():
    p.grad = torch.full_like(p, float(rank))
""",
        """
assert loss_sum == 4
pair = rank & ~2
assert all((p.grad == (pair + (pair | 2)) / 2).all() for p in model.parameters())
""",
    ),
    "18": (
        2,
        DDP
        + """
norms, skipped, step = [0.1] * 10, [], 1
before = [p.clone() for p in model.parameters()]
loss = cross_entropy(ddp_model(inputs[rank::world_size]), labels[rank::world_size])
(loss * (float("nan") if rank == 1 else 1)).backward()
""",
        """
assert skipped == [1] and len(norms) == 10 and scheduler.last_epoch == 1
assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before))
""",
    ),
}


@pytest.mark.parametrize("stem", PAGES)
def test_a_card_comes_first_on_its_page(stem):
    """The command is the lesson's, few ideas are new, and nothing in the lines to copy is ours."""
    command, ideas, copied = read(PAGES[stem])
    assert 5 <= len(copied) <= 20
    assert not re.search(
        r"\b(workload|arguments|tuning|parts\.)\b", "\n".join(copied).replace("parts.items", "")
    )
    typed, documented = (
        text.replace("\\\n", " ") for text in (command, diffs.command(lessons.get(stem).path))
    )
    assert shlex.split(typed) == shlex.split(documented)
    assert 1 <= len(ideas) <= (8 if stem == "03_ddp_spawn" else 3)  # the step from one process to several
    page = re.sub(r"(?s)<!-- way: .*?<!-- end of way -->\n*", "", PAGES[stem])  # it may come before
    assert re.match(rf"# .+\n\n{HEAD}\n> \*\*Run it:\*\*", page)


@pytest.fixture
def paste(forked, tmp_path):
    """Run a script that has what a reader's script has, and then a card's lines."""

    def paste(number, processes, before, after, status=0):
        (stem,) = (lesson.stem for lesson in lessons.LESSONS if lesson.number == number)
        lines = "\n".join(read(PAGES[stem])[2])
        if number == "06b":  # a scheduler's signal arrives during the step
            lines = lines.replace(
                "# after each step", "if rank == 1:\n    os.kill(os.getpid(), 15)\n# after each step"
            )
        text = [BASE.read_text(), before, lines, after, "print('end of the script', rank)"]
        script = tmp_path / f"card_{number}.py"
        script.write_text("\n".join(text))
        words = [sys.executable, script]
        if processes:
            words = launcher.command("04_ddp_torchrun", processes, script=script)[0]
        result = forked(words)
        assert result.code == status, result.stdout + result.stderr
        return result

    return paste


@pytest.mark.parametrize("number", [lesson.number for lesson in lessons.LESSONS])
def test_the_lines_of_a_card_do_in_another_script_what_they_should(paste, number):
    """They run where the card says, in a script that has nothing of ours."""
    if number == "14":
        pytest.importorskip("optuna", reason="needs lessons/parts/tuning.txt: make tools installs it")
    assert number in PASTED, "PASTED needs a row for the card of this lesson"
    processes, before, after = PASTED[number]
    if number == "05":  # killed in its third epoch, and then started again
        paste(number, processes, before, after, status=1)
        after = "assert done == [3, 4, 5] and scheduler.last_epoch == 5"
        before = before.replace("len(done) == 3", "False")
    result = paste(number, processes, before, after, status=1 if number == "06b" else 0)
    if number == "06b":
        assert "exitcode  : 75" in result.stderr, result.stderr
    else:
        assert "end of the script" in result.stdout


def test_the_slides_have_every_card(tmp_path):
    page = deck.deck(tmp_path)
    assert page.count("<section>") == 1 + len(PAGES)
    for stem in PAGES:
        command, _, copied = read(PAGES[stem])
        for text in (command.strip(), "\n".join(copied).strip()):
            assert f"<code>{html.escape(text, quote=False)}</code>" in page, stem
    loaded = r'<(script|img) |<link (?!rel="icon" href="_static/)|href="http'
    assert not re.search(loaded, page), "it needs nothing from elsewhere"
