"""The best epoch of lesson 08."""


class Best:
    """The best epoch so far, and its weights.

    All processes get the same number of correctly classified validation images, so they
    agree on the best epoch. Snapshots contain the best weights too, so a crash cannot lose them.
    """

    def __init__(self):
        self.epoch, self.correct, self.weights = 0, -1, {}

    def see(self, epoch, correct, model):
        if correct <= self.correct:
            return
        self.epoch, self.correct = epoch, correct
        # Store copies, because the next step changes the model's own weights.
        weights = model.state_dict().items()
        self.weights = {name: value.to("cpu", copy=True) for name, value in weights}

    def state_dict(self):
        return {"epoch": self.epoch, "correct": self.correct, "weights": self.weights}

    def load_state_dict(self, state):
        self.epoch, self.correct, self.weights = state["epoch"], state["correct"], state["weights"]
