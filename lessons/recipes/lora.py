r"""LoRA under FSDP2: train adapters, and write one file with Hugging Face's names.

    torchrun --standalone --nproc-per-node 2 lessons/recipes/lora.py

The base model is frozen and sharded, and the optimizer gets only the adapters. In the end,
out/lora holds a file with the merged weights, and the adapters as PEFT stores them. The
script needs safetensors: pip install -r lessons/parts/fine_tuning.txt
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

try:
    from safetensors.torch import load_file, save_file
except ModuleNotFoundError as error:
    sys.exit(f"error: {error}: pip install -r lessons/parts/fine_tuning.txt")
sys.path.append(str(Path(__file__).resolve().parent.parent))
import workload

WIDTH, LAYERS, RANK, ALPHA = 32, 2, 4, 8
TARGETS = ["q_proj", "v_proj"]


class LoRA(nn.Module):
    """A frozen linear layer, and two small matrices whose product is added to its weight."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Linear(base.in_features, RANK, bias=False)
        self.lora_B = nn.Linear(RANK, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)  # zeros make training start from the base model

    def forward(self, values):
        return self.base(values) + self.lora_B(self.lora_A(values)) * (ALPHA / RANK)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            self.add_module(name, nn.Linear(WIDTH, WIDTH, bias=False))

    def forward(self, rows):
        queries, keys, values = self.q_proj(rows), self.k_proj(rows), self.v_proj(rows)
        return self.o_proj(scaled_dot_product_attention(queries, keys, values))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_layernorm, self.self_attn = nn.LayerNorm(WIDTH), Attention()
        self.post_attention_layernorm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, rows):
        rows = rows + self.self_attn(self.input_layernorm(rows))
        return rows + self.mlp(self.post_attention_layernorm(rows))


class Reader(nn.Module):
    """A transformer that reads an image as 28 rows."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(28, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(28 * WIDTH, 10)

    def forward(self, images):
        rows = self.embed(images.float().squeeze(1) / 128 - 0.5)
        for layer in self.layers:
            rows = layer(rows)
        return self.head(rows.flatten(1))


def make_base_file(path):
    """Train a base model on upright digits, and save it under Hugging Face's parameter names."""
    model, digits = Reader(), workload.draw_digits(3000, seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    for batch in torch.randperm(len(digits)).split(50):
        images, labels = digits[batch]
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        optimizer.step()
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({f"model.{name}": value for name, value in model.state_dict().items()}, path)


def read_base(path):
    model, theirs = Reader(), load_file(path)
    model.load_state_dict({name.removeprefix("model."): value for name, value in theirs.items()})
    return model


def add_adapters(model):
    model.requires_grad_(False)
    for layer in model.layers:
        for name in TARGETS:
            layer.self_attn.set_submodule(name, LoRA(layer.self_attn.get_submodule(name)))


def write(model, folder, rank):
    """Gather one tensor at a time. Every process takes part, and rank 0 keeps the result."""
    merged, adapters = {}, {}
    for name, value in model.state_dict().items():
        value = value.full_tensor().cpu()
        if "lora_" in name:
            adapters[f"base_model.model.model.{name}"] = value
        else:
            merged[f"model.{name.replace('.base.', '.')}"] = value
        if rank > 0:
            merged, adapters = {}, {}
    for name in adapters:
        if name.endswith("lora_B.weight"):
            target = name.removeprefix("base_model.model.").replace("lora_B.", "")
            update = adapters[name] @ adapters[name.replace("lora_B", "lora_A")]
            merged[target] = merged[target] + update * (ALPHA / RANK)
    if rank == 0:
        save_file(merged, folder / "model.safetensors")
        save_file(adapters, folder / "adapter_model.safetensors")
        config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": TARGETS}
        (folder / "adapter_config.json").write_text(json.dumps(config))


def train(rank, world_size, device, arguments):
    folder = arguments.out / "lora"
    workload.set_seed(arguments.seed)
    if rank == 0:
        make_base_file(folder / "base.safetensors")
    dist.barrier()
    workload.set_seed(arguments.seed)  # the adapters of all processes begin with the same numbers
    model = read_base(folder / "base.safetensors")
    add_adapters(model)
    model = model.to(device)
    mesh = dist.init_device_mesh(device.type, (world_size,))
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # The optimizer is made after fully_shard, which replaces the parameters by shards.
    optimizer = torch.optim.AdamW(trained, lr=arguments.lr)

    # The new task is to read digits that are upside down.
    digits = workload.draw_digits(arguments.train_size or 960, seed=3).to(device)
    images, labels = digits.images.flip(2), digits.labels
    test = workload.draw_digits(arguments.test_size or 600, seed=4).to(device)
    for epoch in range(1, arguments.epochs + 1):
        start = time.perf_counter()
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch)).to(device)
        loss_sum, steps = torch.zeros((), device=device), len(labels) // arguments.batch_size
        for batch in order.split(arguments.batch_size)[:steps]:
            mine = batch[rank::world_size]
            loss = cross_entropy(model(images[mine]), labels[mine])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            loss_sum += loss.detach()
        speed = steps * arguments.batch_size / (time.perf_counter() - start)
        dist.all_reduce(loss_sum)
        with torch.no_grad():  # forward gathers weights, so all processes must run it
            right = (model(test.images.flip(2)).argmax(dim=1) == test.labels).float().mean().item()
        if rank == 0:
            workload.report(arguments, epoch, loss_sum.item() / steps / world_size, right, speed)
    write(model, folder, rank)
    count = sum(parameter.numel() for parameter in model.parameters())
    if rank == 0:
        adapters = sum(parameter.numel() for parameter in trained)
        print(f"trained {adapters:,} of {count:,} parameters", flush=True)
        whole = read_base(folder / "model.safetensors").to(device)  # this model has no adapters
        with torch.no_grad():
            right = (whole(test.images.flip(2)).argmax(dim=1) == test.labels).float().mean().item()
        print(f"the merged file, read by one process: accuracy {right:.1%}", flush=True)


if __name__ == "__main__":
    parser = workload.parser(__file__, __doc__)
    parser.set_defaults(lr=0.01, batch_size=48)
    arguments = parser.parse_args()
    workload.require_torchrun(__file__)
    workload.check(arguments)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # RANK counts the processes of all machines, LOCAL_RANK those of this machine.
    device = workload.pick_device(int(os.environ["LOCAL_RANK"]))
    backend = dist.get_default_backend_for_device(device)  # GPUs use NCCL, CPUs use gloo
    device_id = None if device.type == "cpu" else device  # given a device_id, NCCL starts immediately
    dist.init_process_group(backend, device_id=device_id)
    train(rank, world_size, device, arguments)
    dist.destroy_process_group()
