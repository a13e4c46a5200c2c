"""Runs the student's file of exercise 03a in a rank: hands over tensors, and what became of them."""

import time

import torch


def cut(student, inputs, tools):
    """chunks_of for several tensors; then a number is written into each chunk."""
    results = []
    for flat, world_size in inputs["cases"]:
        flat = torch.from_numpy(flat)
        chunks = student.chunks_of(flat, world_size)
        if not isinstance(chunks, list | tuple):
            return type(chunks).__name__
        came = [chunk.clone() if isinstance(chunk, torch.Tensor) else None for chunk in chunks]
        for number, chunk in enumerate(chunks):
            if came[number] is not None:
                chunk.fill_(number)
        results.append({"chunks": came, "written": flat})
    return results


def pass_on(student, inputs, tools):
    """pass_on, on some ranks later than on others; on wish, what was sent is overwritten at once."""
    outgoing, incoming = torch.from_numpy(inputs["outgoing"]), torch.from_numpy(inputs["incoming"])
    time.sleep(inputs["late"])
    student.pass_on(outgoing, incoming)
    came = outgoing.clone()
    if inputs["overwrite"]:
        outgoing.fill_(0)
    return {"incoming": incoming, "outgoing": came}


def first_half(student, inputs, tools):
    """sum_chunks on chunks that are parts of one tensor: on every second rank a tuple of them."""
    flat = torch.from_numpy(inputs["flat"])
    chunks = flat.split(inputs["sizes"])
    student.sum_chunks(tuple(chunks) if tools.rank % 2 else list(chunks))
    return {"flat": flat}


def whole(student, inputs, tools):
    """ring_all_reduce on tensors that are the middle of larger ones."""
    larger = []
    for given, shape in inputs["cases"]:
        larger.append(torch.from_numpy(given))
        count = torch.Size(shape).numel()
        start = (len(given) - count) // 2
        tensor = larger[-1][start : start + count].view(shape)
        student.ring_all_reduce(tensor)
    return {"larger": larger}
