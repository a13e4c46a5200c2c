"""Lesson 18's snapshots and report: how a run resumes, and what it prints and saves."""

import contextlib
import json

import torch
import torch.distributed as dist

import workload
from parts import gpt, language_model
from parts.guard import require_finite
from parts.snapshot import Snapshots


class Journal:
    """Saves the run's state with lesson 06b's snapshots, and reports how far the run is."""

    def __init__(self, arguments, text, model, optimizer, scheduler, scaler, guard):
        self.arguments, self.text, self.model, self.guard = arguments, text, model, guard
        self.parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        self.parts |= {"scaler": scaler, "guard": guard}
        settings = workload.settings(arguments, model) | language_model.settings(arguments, text)
        self.snapshots = Snapshots(arguments.out, arguments.lesson, settings, 300, workload.told_to_stop)
        self.peak = arguments.peak_tflops or language_model.find_peak()

    def resume(self, device):
        """Return how many steps are done, and the sum of the losses since the last report."""
        done, loss_sum = 0, torch.zeros((), dtype=torch.float64, device=device)
        state = self.snapshots.find_newest()
        if state is not None:
            for name, part in self.parts.items():
                part.load_state_dict(state[name])
            done = state["step"]
            require_finite(self.model, f"remove the snapshot of step {done}, and resume from the one before")
            loss_sum += sum(state["loss_sums"]) / len(state["loss_sums"])
        if dist.get_rank() == 0:
            self.report_begin(done)
        return done, loss_sum

    def save_or_stop(self, step, loss_sum):
        """Save a snapshot if one is due: every few steps, after the last, and before a stop.

        Return whether the run was told to stop.
        """
        stop = self.snapshots.agree_to_stop()
        is_due = step % self.arguments.snapshot_every == 0 or step == self.arguments.steps
        if stop or is_due:
            require_finite(self.model, f"step {step} is not saved, resume from the last snapshot")
            state = {name: part.state_dict() for name, part in self.parts.items()}
            state |= {"epoch": 0, "step": step, "loss_sums": self.snapshots.gather(loss_sum.item())}
            self.snapshots.save(state)
        if stop:
            self.close()
        return stop

    def close(self):
        self.snapshots.close()

    def report_begin(self, done):
        arguments = self.arguments
        parameters = sum(weight.numel() for weight in self.model.parameters())
        tokens = arguments.batch_size * arguments.length
        plan = f"{arguments.steps:,} steps of {tokens:,} tokens"
        print(f"model of {parameters:,} parameters, {plan}", flush=True)
        if done:
            print(f"resumed after step {done}", flush=True)
        if done == arguments.steps:
            workload.say_nothing_left(arguments.out, arguments.lesson)

    def report(self, step, mean_loss, held_out, speed):
        """Print a line, and write its exact numbers to OUT/<lesson>.jsonl."""
        arguments = self.arguments
        loss = language_model.bits(mean_loss, self.text.bytes_per_token)
        held_out_loss = language_model.bits(held_out["loss"], self.text.held_out_bytes_per_token)
        norm = self.guard.newest
        line = f"step {step:5} | bits per byte {loss:.3f}, held out {held_out_loss:.3f} | norm {norm:.2f}"
        line += f" | {speed:,.0f} tokens/s"
        if self.peak:
            flops = speed * gpt.flops_per_token(self.model, arguments.length)
            line += f" | MFU {flops / arguments.world_size / self.peak / 1e12:.1%}"
        print(line, flush=True)
        line_number = len(range(0, step, arguments.validate_every))
        values = {
            "epoch": line_number,
            "step": step,
            "loss": loss,
            "held_out": held_out_loss,
            "accuracy": held_out["accuracy"],
            "norm": norm,
            "images_per_second": speed,
            "world_size": arguments.world_size,
        }
        path = arguments.out / f"{arguments.lesson}.jsonl"
        earlier = path.read_text().splitlines() if path.exists() else []
        # A run that repeats steps, or starts again, replaces its earlier lines.
        kept = [text for text in earlier if json.loads(text)["step"] < step]
        with contextlib.suppress(OSError):  # a full disk must not end a long run
            path.write_text("".join(f"{text}\n" for text in [*kept, json.dumps(values)]))

    def report_end(self, held_out):
        loss = language_model.bits(held_out["loss"], self.text.held_out_bytes_per_token)
        print(f"all held-out files: {loss:.3f} bits per byte; skipped steps: {self.guard.skipped or 'none'}")
