"""Cheats at exercise 08."""

import io
import mmap
import socket
import sys

import torch
import torch.distributed as dist


class Whole(torch.optim.Optimizer):
    """The whole optimizer on every rank. Between the steps, `put` has what the others own, elsewhere."""

    def __init__(self, parameters, optimizer_class, **defaults):
        self.all, self.hidden = optimizer_class(parameters, **defaults), {}
        super().__init__(self.all.param_groups, self.all.defaults)
        self.param_groups = self.all.param_groups
        everything = [parameter for group in self.param_groups for parameter in group["params"]]
        owners = deal([parameter.numel() for parameter in everything], dist.get_world_size())
        self.owners = dict(zip(everything, owners, strict=True))
        self.hide()

    def hide(self):
        for parameter, owner in self.owners.items():
            if owner != dist.get_rank() and parameter in self.all.state:
                data = io.BytesIO()
                torch.save(self.all.state.pop(parameter), data)
                self.hidden[parameter] = self.put(data.getvalue())

    def show(self):
        for parameter, data in self.hidden.items():
            self.all.state[parameter] = torch.load(io.BytesIO(self.get(data)))
        self.hidden.clear()

    def step(self):
        self.show()
        self.all.step()
        self.hide()
        with torch.no_grad():
            for parameter, owner in self.owners.items():
                dist.broadcast(parameter, src=owner)

    def state_dict(self):
        self.show()
        whole = self.all.state_dict()
        self.hide()
        return whole if dist.get_rank() == 0 else None

    def load_state_dict(self, whole):
        self.show()
        self.all.load_state_dict(whole)
        self.param_groups = self.all.param_groups
        self.hide()


def all_locally(earns=2):
    """Has the whole optimizer on every rank, and sends nothing: the gradients are the same."""

    class ShardedOptimizer(Whole):
        def hide(self):
            pass

        def step(self):
            self.all.step()


def hidden_state(earns=4):
    """Has the whole state on every rank, in memory where no tensor is freed or counted."""

    class ShardedOptimizer(Whole):
        def put(self, data):
            room = mmap.mmap(-1, len(data))
            room.write(data)
            return room

        def get(self, room):
            return room[:]


def state_in_flight(earns=4, level=3):
    """Has the whole state on every rank. What others own is on its way between the steps, over connections
    to itself that stay open and are not read: it is the kernel's. Below level 3, nobody sees connections."""
    lines = []

    class ShardedOptimizer(Whole):
        def put(self, data):
            data, used = memoryview(data), []
            while data:
                if not lines:
                    with socket.create_server(("127.0.0.1", 0)) as door:
                        one = socket.create_connection(door.getsockname())
                        one.setblocking(False)
                        lines.append((one, door.accept()[0]))
                one, other = lines.pop()
                size = len(data)
                try:
                    while data:
                        data = data[one.send(data[:65536]) :]
                except BlockingIOError:
                    pass
                used.append((one, other, size - len(data)))
            return used

        def get(self, used):
            found = []
            for one, other, size in used:
                found.append(other.recv(size, socket.MSG_WAITALL))
                lines.append((one, other))
            return b"".join(found)


def asks_early(earns=13):
    """All parameters travel three times: the judge's number is asked for after the first."""

    def ask_now():
        """Ask for the judge's next number, which the driver then gets without asking."""
        frame = sys._getframe()
        while frame is not None and not {"step", "ask", "tools"} <= frame.f_locals.keys():
            frame = frame.f_back
        if frame is not None:
            name, tools = f"step {frame.f_locals['step']}", frame.f_locals["tools"]
            tools.__dict__.pop("ask", None)
            number, ask = frame.f_locals["ask"](name), tools.ask
            tools.ask = lambda other, value=None: number if other == name else ask(other, value)

    class ShardedOptimizer:
        def step(self):
            super().step()
            ask_now()
            with torch.no_grad():
                for parameter, owner in [*self.owners.items()] * 2:
                    dist.broadcast(parameter, src=owner)


def class_of_torch(earns=1):
    """Uses torch's own class for it, found among all classes and not by its name."""

    class ShardedOptimizer(torch.optim.Optimizer):
        def __init__(self, parameters, optimizer_class, **defaults):
            found = next(
                one for one in torch.optim.Optimizer.__subclasses__() if "Redundancy" in one.__name__
            )
            self.inner = found(parameters, optimizer_class, **defaults)
            super().__init__(self.inner.param_groups, defaults)
            self.param_groups = self.inner.param_groups

        def step(self):
            self.inner.step()

        def state_dict(self):
            self.inner.consolidate_state_dict(to=0)
            return self.inner.state_dict() if dist.get_rank() == 0 else None

        def load_state_dict(self, whole):
            self.inner.load_state_dict(whole)
