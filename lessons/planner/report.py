"""The planner's tables, reports and pictures."""

from pathlib import Path

from planner.plans import Plan


def duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:,.1f} ms"
    if seconds < 120:
        return f"{seconds:,.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:,.1f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:,.1f} hours"
    return f"{seconds / 86_400:,.1f} days"


def count(number: float) -> str:
    """A number in words: 7.5 billion."""
    for size, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if number >= size:
            return f"{number / size:,.4g} {name}"
    return f"{number:,.0f}"


def line(name, *values):
    return f"    {name:40}" + "".join(f"{value:>16}" for value in values)


def text(found: Plan) -> str:
    """The report of one plan."""
    job, memory, step = found["job"], found["memory_bytes"], found["step_seconds"]
    needs, whole = sum(memory.values()), sum(step.values())
    data, tensor, pipeline = found["data_parallel"], job["tensor_parallel"], job["pipeline"]
    ways = f"{data:,} data x {tensor} tensor x {pipeline} pipeline"
    if job["context_parallel"] > 1:
        ways += f" x {job['context_parallel']} context"
    if job["expert_parallel"] > 1:
        ways += f", {job['expert_parallel']} expert"
    shape = f"{job['layers']} layers of {job['hidden']:,} with {job['heads']} heads"
    verdict = f"(needs {needs / 1e9:,.1f} GB of {job['memory'] / 1e9:,.0f} GB a GPU)"
    gpus = "GPU" if job["gpus"] == 1 else "GPUs"
    fits = "yes" if found["fits"] else "no"
    if not found["fits"]:
        verdict += (
            "; cut it by --stage 3, --recompute full, --tensor-parallel, --pipeline "
            "or a smaller --micro-batch"
        )
    every = duration(found["checkpoint_interval_seconds"])
    useful = found["model_flops_utilization"]
    hidden_or_not = duration(found["data_parallel_seconds"])
    whole_job = [
        f"\n{count(job['tokens'])} tokens: {duration(found['days'] * 86400)}",
        line("cost", f"{found['dollars']:,.0f} dollars"),
        line("unplanned interruptions to expect", f"{found['interruptions']:,.1f}"),
        line("best time between checkpoints", every),
        line("effective training time", f"{found['effective_time_ratio']:.1%}"),
    ]
    if not found["fits"]:
        whole_job = [f"\n{count(job['tokens'])} tokens: no time and no cost, because the job does not fit"]
    return "\n".join(
        [
            f"a transformer of {count(job['params'])} parameters, {shape}",
            f"{job['gpus']:,} {gpus}: {ways}\n",
            f"fits: {fits} {verdict}",
            *(line(name, f"{size / 1e9:,.2f} GB") for name, size in memory.items()),
            f"\na step: {duration(whole)}, {job['texts']:,} texts of {job['seq']:,} tokens",
            *(line(name, duration(part), f"{part / whole:.1%}") for name, part in step.items()),
            line("data-parallel communication, hidden or not", hidden_or_not),
            line("idle share of a pipeline stage", f"{found['pipeline_idle_share']:.1%}"),
            line("model FLOPs utilization (MFU)", f"{useful:.1%}"),
            *whole_job,
        ]
    )


def shares(found: Plan) -> dict[str, float]:
    """Where the time goes, as shares of all of it: the parts of a step, checkpoints and
    failures.
    """
    step, moving = found["step_seconds"], found["effective_time_ratio"]
    parts = {name: seconds / sum(step.values()) * moving for name, seconds in step.items()}
    return parts | {"checkpoints and failures": 1 - moving}


def efficiency(found: Plan, first: Plan) -> float:
    """Throughput per GPU, divided by that of the first row."""
    speed = found["tokens_per_second"] / found["job"]["gpus"]
    speed_at_first = first["tokens_per_second"] / first["job"]["gpus"]
    return speed / speed_at_first


HEAD = ("GPUs", "GB each", "fits", "tokens/s", "of linear", "time", "dollars", "interruptions")


def cells(found: Plan, first: Plan) -> list[str]:
    """A row of the sweep's table. A job that does not fit has no time, no cost and no interruptions."""
    whole_job = [
        duration(found["days"] * 86400),
        f"{found['dollars']:,.0f}",
        f"{found['interruptions']:,.1f}",
    ]
    if not found["fits"]:
        whole_job = ["", "", ""]
    return [
        f"{found['job']['gpus']:,}",
        f"{sum(found['memory_bytes'].values()) / 1e9:,.1f}",
        "yes" if found["fits"] else "no",
        f"{found['tokens_per_second']:,.0f}",
        f"{efficiency(found, first):.1%}",
        *whole_job,
    ]


def table(rows: list[Plan], end: str, picture: Path) -> str:
    form = "{:>7}{:>10}{:>6}{:>14}{:>11}{:>14}{:>14}{:>15}"
    lines = [form.format(*HEAD)]
    lines += [form.format(*cells(found, rows[0])).rstrip() for found in rows]
    if end:
        lines.append(f"\nNo further: {end}")
    lines.append(f"\nThe curve: {picture}")
    return "\n".join(lines)


def draw(rows: list[Plan], folder: Path) -> Path:
    """Draw FOLDER/planner.png: the speed, compared with GPUs that do not communicate, and where
    the time goes.
    """
    # Imported here: the site runs this file in the browser, which has neither matplotlib nor lessons/parts.
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from parts.colours import BLUE, GREEN, LIGHT_GREY, ORANGE, PINK, RED

    folder.mkdir(parents=True, exist_ok=True)
    gpus = [found["job"]["gpus"] for found in rows]
    speeds = [found["tokens_per_second"] for found in rows]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    ideal = [speeds[0] * number / gpus[0] for number in gpus]
    left.plot(gpus, ideal, color=LIGHT_GREY, linestyle="--", label="as many times the first as GPUs")
    left.plot(gpus, speeds, color=BLUE, label="planned")
    faces = {"fits": BLUE, "does not fit in memory": "white"}
    for label, face in faces.items():
        there = [found for found in rows if found["fits"] == (label == "fits")]
        if there:
            left.plot(
                [found["job"]["gpus"] for found in there],
                [found["tokens_per_second"] for found in there],
                linestyle="",
                marker="o",
                color=BLUE,
                markerfacecolor=face,
                label=label,
            )
    shares_by_part = {}
    for found in rows:
        for name, share in shares(found).items():
            shares_by_part.setdefault(name, []).append(share)
    right.stackplot(
        gpus,
        list(shares_by_part.values()),
        labels=list(shares_by_part),
        colors=(BLUE, LIGHT_GREY, ORANGE, RED, "black", GREEN, PINK),
        linewidth=0,
    )
    left.set(title="Speed", ylabel="tokens a second", yscale="log")
    right.set(title="Where the time goes", ylabel="share of the time", ylim=(0, 1))
    right.yaxis.set_major_formatter("{x:.0%}")
    for axes in (left, right):
        axes.set(xlabel="GPUs", xscale="log")
        axes.set_xscale("log", base=2)
        shown = gpus[:: 1 + len(gpus) // 9]  # more labels would overlap
        axes.set_xticks(shown, [f"{number:,}" for number in shown])
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False)
    job = rows[0]["job"]
    ways = f"{job['tensor_parallel']} tensor x {job['pipeline']} pipeline, ZeRO stage {job['stage']}"
    figure.suptitle(f"{count(job['params'])} parameters, {ways}, {job['batch_tokens']:,} tokens a step")
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower right", ncols=3, frameon=False)
    figure.savefig(folder / "planner.png", dpi=120)
    plt.close(figure)
    return folder / "planner.png"
