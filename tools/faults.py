"""What can go wrong on many machines, what one sees of it, and after how long: the list of lesson 06.

`make diffs` writes it into lessons/pages/06.md. Each row is produced by the test of test_hosts.py that it
names, with lesson 06b, whose --time-limit ends a wait for a process that is gone. That test asks for the
row's text in the output, within the row's limit.
"""

from typing import NamedTuple

# What the tests set, and the limits below are made of.
TIME_LIMIT = 4
CONF = {
    "join_timeout": 60,
    "last_call_timeout": 1,
    "keep_alive_interval": 1,
    "keep_alive_max_attempt": 3,
    "read_timeout": 5,
}
JOIN_TIMEOUT = 6  # where a node never comes
LATER = 5  # a process that lost another one leaves the console to that one: see let_the_first_speak
STOPPING = 30  # an agent gives its processes so long to end
DEAD = CONF["keep_alive_interval"] * CONF["keep_alive_max_attempt"]
READ = CONF["read_timeout"]
STARTING = 45  # a busy machine needs so long to start a few processes, or to notice that one has ended


class Row(NamedTuple):
    fault: str  # empty: what is seen of the same fault elsewhere, or later
    text: str  # stands in the output, to the letter
    where: str  # in whose output
    after: str  # in the reader's settings
    measured: float  # seconds, here
    limit: float  # seconds: later than that, the test fails
    advice: str
    test: str


TWICE = "`read_timeout` (60 s by default), or up to twice that, and a start"
ON = "test_a_run_goes_on_without_a_process_a_cable_and_a_host"
CUT = "test_a_cable_cut_for_good_and_the_host_of_the_rendezvous_lost"
AWAY = "test_one_that_never_comes_is_not_waited_for_without_end"
BETWEEN = "test_the_wrong_interface_and_closed_ports"
HANGS = "test_a_process_that_hangs_is_noticed_and_ended"

ROWS = {
    "process": Row(
        "A process is killed",
        "failed (exitcode: -9)",
        "on its host",
        "at once",
        0.1,
        STARTING,
        "Nothing, if `--max-restarts` is given: the agents restart all processes. -9 is SIGKILL; if no one "
        "sent it, the kernel was out of memory: `dmesg`.",
        ON,
    ),
    "restart": Row(
        "",
        "resumed in epoch",
        "on the host of rank 0",
        "the time that a start takes",
        9,
        STARTING,
        "Nothing. Each agent that saw a process of its own fail has used up one restart.",
        ON,
    ),
    "mended": Row(
        "A link is cut, and mended before half of `--time-limit` is over",
        "| loss ",
        "only the next epoch's line, late",
        "up to as long again as the cut: TCP doubles its pauses",
        1,
        STARTING,
        "Nothing. No line says that it happened.",
        ON,
    ),
    "agent": Row(
        "An agent is killed. Its processes notice it, and end",
        "caused by a remote worker",
        "on the other hosts",
        f"{LATER} s, in which it leaves the console to one that died on the same host",
        5,
        LATER + STARTING,
        "The others go on without it, from the newest snapshot. Find out what killed it.",
        ON,
    ),
    "fewer": Row(
        "",
        "resumed in epoch",
        "on the host of rank 0",
        f"those {LATER} s, `keep_alive_interval` times `keep_alive_max_attempt` (15 s by default), "
        "`last_call_timeout` (30 s), and a start",
        12,
        LATER + DEAD + CONF["last_call_timeout"] + STARTING,
        "Give the command on that host again, when you like.",
        ON,
    ),
    "more": Row(
        "An agent comes back",
        "resumed in epoch",
        "on the host of rank 0",
        "two starts: its own, and that of all processes",
        15,
        2 * STARTING,
        "Nothing. All stop after the same step, and go on from the snapshot of that step.",
        ON,
    ),
    "cut": Row(
        "A link is cut for good",
        f"Timed out waiting {TIME_LIMIT}000ms for",
        "on the other hosts",
        f"`--time-limit` and {LATER} s",
        9,
        TIME_LIMIT + LATER + STARTING,
        "The others go on without that host, as above. Mend the link, and give the command there again.",
        CUT,
    ),
    "cut off": Row(
        "",
        "likely a timeout",
        "on the host that is cut off",
        "`read_timeout`",
        5,
        READ + STARTING,
        f"Its processes end after `--time-limit` and {LATER} s. Its agent may hang, and then:",
        CUT,
    ),
    "hangs on": Row(
        "",
        "The connection to the C10d store has failed",
        "on the host that is cut off",
        "when TCP gives up: the system's `net.ipv4.tcp_retries2` says when. By default it is 15, a quarter "
        "of an hour; measured with 4",
        18,
        2 * STARTING,
        "`kill -9` the agent, or set `sysctl -w net.ipv4.tcp_retries2=8` (about 100 s) before the run.",
        CUT,
    ),
    "store": Row(
        "The host in `--rdzv-endpoint` is lost",
        "The connection to the C10d store has failed",
        "on all other hosts",
        "at once",
        1,
        STARTING,
        "All others end. Give the command on all hosts again: they resume. Take the safest host for it.",
        CUT,
    ),
    "never": Row(
        "A node never comes, and fewer than MIN are there",
        "RendezvousTimeoutError",
        "the others find the rendezvous closed, or gone; the first host to give up says",
        "`join_timeout` (600 s by default), and a start",
        13,
        JOIN_TIMEOUT + STARTING,
        "The host that says nothing is the one to look at.",
        AWAY,
    ),
    "unreachable": Row(
        "`--rdzv-endpoint` is an address at which no host answers",
        "errno: 113 - No route to host",
        "on each host",
        TWICE,
        13,
        2 * READ + STARTING,
        "`ping` it. The route or the address is wrong, or the host is down.",
        AWAY,
    ),
    "swallowed": Row(
        "Something swallows the packets to it: a firewall",
        f"timed out after {READ}000ms while trying to connect to (10.0.0.99, 29400)",
        "on each host",
        TWICE,
        11,
        2 * READ + STARTING,
        "`nc -vz HOST PORT` from this host is silent too: open the port.",
        AWAY,
    ),
    "port": Row(
        "`--rdzv-endpoint` has the wrong port",
        f"timed out after {READ}000ms while trying to connect to (host1, 29401)",
        "on each host that has it",
        TWICE,
        14,
        2 * READ + STARTING,
        '`nc -vz HOST PORT` says "refused". The port in the message is the one that was tried.',
        AWAY,
    ),
    "name": Row(
        "`--rdzv-endpoint` has a name that does not exist",
        "Name or service not known",
        "on each host that has it",
        TWICE,
        13,
        2 * READ + STARTING,
        "`getent hosts HOST`; write the address instead.",
        AWAY,
    ),
    "plain": Row(
        "Started by `srun python`, without torchrun, and a process never comes",
        "waiting for clients. 1/2 clients joined",
        "rank 0 says how many came",
        "`--time-limit`, and a start",
        11,
        TIME_LIMIT + STARTING,
        "Look at the tasks that wrote nothing.",
        AWAY,
    ),
    "plain, not the first": Row(
        "The same, and rank 0 never comes",
        f"timed out after {TIME_LIMIT}000ms while trying to connect to (10.0.0.1, 29500)",
        "each other rank says",
        "`--time-limit`, or up to twice that, and a start",
        14,
        2 * TIME_LIMIT + STARTING,
        "MASTER_ADDR and MASTER_PORT must be those of rank 0.",
        AWAY,
    ),
    "interface": Row(
        "A host has two interfaces, and its name means the one that does not lead to the others",
        "No route to host, remote=[192.168.7.1]",
        "on a host that is not the first",
        "`--time-limit`, and a start; the first host waits five times as long, as below",
        7,
        2 * TIME_LIMIT + STARTING,
        "The store was reached, but gloo offers the others what the host's own name means, and NCCL takes an "
        "interface by its name. Set `GLOO_SOCKET_IFNAME=eth0 NCCL_SOCKET_IFNAME=eth0` on each host, and give "
        "torchrun `--local-addr` with the host's right address. `python tools/preflight.py` names the "
        "interface.",
        BETWEEN,
    ),
    "ports": Row(
        "The port of the rendezvous is open between the hosts, and no other: a firewall, a security group",
        "Connect timeout",
        "on each host",
        "five times `--time-limit` (gloo does that: of its 30 minutes it makes two and a half hours), and a "
        "start",
        24,
        5 * TIME_LIMIT + STARTING,
        "Processes call each other at ports that the system chooses. Open all TCP ports among the hosts of "
        'the run; or a range, and `sysctl -w net.ipv4.ip_local_port_range="50000 50100"` on each. In a '
        "cloud: a rule of the security group that admits all traffic from the group itself.",
        BETWEEN,
    ),
    "hang": Row(
        "A process hangs (here: SIGSTOP)",
        f"Timed out waiting {TIME_LIMIT}000ms for",
        "on the other hosts",
        f"`--time-limit` and {LATER} s",
        9,
        TIME_LIMIT + LATER + STARTING,
        "Wait. On a cut link nothing more is said, but after a hang:",
        HANGS,
    ),
    "ended": Row(
        "",
        "forcefully exiting via 9",
        "on its host",
        f"{STOPPING} s more, which its agent gives it to end; there is no flag for that",
        39,
        TIME_LIMIT + LATER + STOPPING + STARTING,
        f"`join_timeout` must be longer than {STOPPING} s, or the others give up meanwhile. To see where it "
        "hangs: `py-spy dump --pid PID`, before that.",
        HANGS,
    ),
}


def listed():
    """No table: of four columns with this much in them, a phone shows two."""
    lines = []
    for row in ROWS.values():
        if row.fault:
            lines += ["", f"**{row.fault}.**", ""]
        lines += [
            f"- {row.where[0].upper()}{row.where[1:]}: `{row.text.strip('| ')}`",
            f"  - When: {row.after} (here {row.measured:g} s).",
            f"  - What to do: {row.advice}",
        ]
    return "\n".join(lines[1:]) + "\n"
