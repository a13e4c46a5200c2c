"""The models that the memory page and the planner page offer. Both ask the planner about the same job.

A model without a shape gets the one that the planner's command guesses for so many parameters.
"""

from planner import __main__ as command
from planner import plans
from tools.makers.site import gpus

NAMED = {"Llama 3 8B": "llama3-8b", "Llama 3 70B": "llama3-70b", "Llama 3 405B": "llama3-405b"}
MODELS = {
    "GPT-2, 124 million": {"params": 1.24e8, "layers": 12, "hidden": 768, "heads": 12},
    "GPT-2 XL, 1.6 billion": {"params": 1.558e9, "layers": 48, "hidden": 1600, "heads": 25},
    "a GPT of 7.5 billion": {"params": 7.5e9},
    "Llama 3 8B": plans.named("llama3-8b"),
    "a GPT of 30 billion": {"params": 3e10},
    "Llama 3 70B": plans.named("llama3-70b"),
    "GPT-3, 175 billion": {"params": 1.75e11},
    "Llama 3 405B": plans.named("llama3-405b"),
    "a GPT of 1 trillion": {"params": 1e12},
}
STANDARD = {name: option.default for name, option in command.OPTIONS.items()}
STANDARD |= {name: choices[0] for name, (choices, _) in command.CHOICES.items()}


def shape_of(inputs):
    """The model that a reader chose, or so many parameters, for which the planner guesses the layers."""
    return {"params": inputs["params"]} if inputs.get("params") else MODELS[inputs["model"]]


def job_of(inputs, shape=None, **others):
    """The options of the planner's command, as its parser would hand them on, for a model of these."""
    job = {name.replace("-", "_"): value for name, value in STANDARD.items()}
    job["sequence_parallel"] = False
    job |= others
    job |= shape or shape_of(inputs)
    for name, value in gpus.with_gpu(inputs).items():
        if name != "model" and value is not None:
            job[name] = value
    return job


def short(value) -> str:
    """A number as one would type it: 7.5e9."""
    if isinstance(value, str):
        return value
    return f"{value:g}".replace("e+0", "e").replace("e+", "e") if value > 2**27 else str(value)


def words_of(inputs, shape=None) -> str:
    """What to write behind python lessons/planner for the same plan: what differs from the defaults."""
    model = inputs["model"]
    if shape is None:
        is_named = model in NAMED and not inputs.get("params")
        shape = {"model": NAMED[model]} if is_named else shape_of(inputs)
    options = {}
    for name, value in shape.items():
        options[name.replace("_", "-")] = value
    for name, value in gpus.with_gpu(inputs).items():
        name = name.replace("_", "-")
        if name not in ("model", "params") and value != STANDARD[name]:
            options[name] = value
    return " ".join(f"--{name} {short(value)}" for name, value in options.items())
