"""Notebook 06 watches two agents from outside: what they say, when, and what lies in their folders."""

import re
import socket
import time

WORTH_A_LINE = re.compile(r"(epoch|resumed|told to stop|\w*Error: )")


class Watch:
    """Prints what agents say, where it is worth a line, with the seconds since it began."""

    def __init__(self):
        self.began = time.monotonic()
        self.agents, self.events = {}, []  # of each event: seconds, node, what it said

    def now(self):
        return time.monotonic() - self.began

    def say(self, text):
        print(f"{self.now():5.1f} s  {text}", flush=True)
        return self.now()

    def until(self, enough, limit=100):
        """Watch until `enough()` is true. It is an error if for so many seconds no line comes."""
        last, done = self.now(), False
        try:
            while not done:
                assert self.now() < last + limit, "nothing more happens"
                time.sleep(0.02)
                done = enough()
                for node, agent in self.agents.items():
                    while not agent.news.empty():
                        self.note(node, agent.news.get() or "")
                        last = self.now()
        except BaseException:  # the notebook was interrupted, or failed: nothing is to go on unseen
            self.end()
            raise

    def note(self, node, line):
        if WORTH_A_LINE.match(line):
            line = re.sub(r"\[.*\] ", "", line.strip()).split(". ")[0]
            self.events.append((self.now(), node, line))
            self.say(f"node {node} | {line}")

    def first(self, words, after=0):
        """The seconds at which somebody first said this, after so many seconds."""
        return next(s for s, _, line in self.events if line.startswith(words) and s > after)

    def end(self):
        """SIGKILL to all."""
        for agent in self.agents.values():
            agent.end()
        return self.now()


def newest(disk):
    """Epoch and step of the newest snapshot in a folder."""
    names = [path.name for path in disk.glob("*.snapshot")]
    found = [re.search(r"epoch(\d+)-step(\d+)", name) for name in names]
    return max([(int(place[1]), int(place[2])) for place in found], default=(0, 0))


def free_address():
    """Where agents can meet on this machine."""
    with socket.socket() as asking:
        asking.bind(("localhost", 0))
        return f"localhost:{asking.getsockname()[1]}"
