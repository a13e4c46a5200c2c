"""What can go wrong on many machines, what one sees of it, and after how long: the list of lesson 06b.

`make diffs` writes it into lessons/pages/06b.md. Each row is produced by the test of test_hosts.py that it
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
LATER = 5  # a process that lost another one waits so long before it prints: see let_the_first_speak
STOPPING = 30  # a launcher gives its processes so long to end
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


TWICE = "after `read_timeout` (60 s by default) or up to twice that, and a start"
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
        "With `--max-restarts`, nothing: the launchers restart all processes. -9 is SIGKILL. If "
        "nobody sent it, "
        "the machine was probably out of memory: `dmesg` tells.",
        ON,
    ),
    "restart": Row(
        "",
        "resumed in epoch",
        "on the host of rank 0",
        "after a start",
        9,
        STARTING,
        "Nothing. Each launcher whose own process failed has used up one restart.",
        ON,
    ),
    "mended": Row(
        "A link is cut, and works again before half of `--time-limit` is over",
        "| loss ",
        "only the line of the next epoch, late",
        "after the cut, and up to as long again, because TCP doubles its pauses",
        1,
        STARTING,
        "Nothing. No line says that it happened.",
        ON,
    ),
    "agent": Row(
        "A launcher is killed. Its processes notice that and end",
        "caused by a remote worker",
        "on the other hosts",
        f"after {LATER} s, in which a process that died on the same host could report first",
        5,
        LATER + STARTING,
        "The other hosts go on from the newest snapshot. Find out what killed the launcher.",
        ON,
    ),
    "fewer": Row(
        "",
        "resumed in epoch",
        "on the host of rank 0",
        f"after these {LATER} s, `keep_alive_interval` times `keep_alive_max_attempt` (15 s by default), "
        "`last_call_timeout` (30 s), and a start",
        12,
        LATER + DEAD + CONF["last_call_timeout"] + STARTING,
        "Run the command on that host again whenever you like.",
        ON,
    ),
    "more": Row(
        "A lost host comes back",
        "resumed in epoch",
        "on the host of rank 0",
        "after two starts: that of the launcher, and that of all processes",
        15,
        2 * STARTING,
        "Nothing. All processes stop after the same step and resume from the snapshot of that step.",
        ON,
    ),
    "cut": Row(
        "A link is cut for good",
        f"Timed out waiting {TIME_LIMIT}000ms for",
        "on the other hosts",
        f"after `--time-limit` and {LATER} s",
        9,
        TIME_LIMIT + LATER + STARTING,
        "The other hosts go on without that host, as above. Repair the link and run the command there again.",
        CUT,
    ),
    "cut off": Row(
        "",
        "likely a timeout",
        "on the host that is cut off",
        "after `read_timeout`",
        5,
        READ + STARTING,
        f"Its processes end after `--time-limit` and {LATER} s. Its launcher may hang. Then you see:",
        CUT,
    ),
    "hangs on": Row(
        "",
        "The connection to the C10d store has failed",
        "on the host that is cut off",
        "when TCP gives up, which `net.ipv4.tcp_retries2` sets. Its default of 15 means a quarter of "
        "an hour; "
        "this was measured with 4",
        18,
        2 * STARTING,
        "`kill -9` the launcher, or set `sysctl -w net.ipv4.tcp_retries2=8` (about 100 s) before the run.",
        CUT,
    ),
    "store": Row(
        "The host in `--rdzv-endpoint` is lost",
        "The connection to the C10d store has failed",
        "on all other hosts",
        "at once",
        1,
        STARTING,
        "All other launchers end. Run the command on all hosts again, and the run resumes. Use your "
        "most reliable "
        "host as the endpoint.",
        CUT,
    ),
    "never": Row(
        "A host never comes, and fewer hosts are there than `--nnodes` needs",
        "RendezvousTimeoutError",
        "on the first host that gives up (the other hosts find the rendezvous closed)",
        "after `join_timeout` (600 s by default) and a start",
        13,
        JOIN_TIMEOUT + STARTING,
        "Look at the host that prints nothing.",
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
        "A firewall drops the packets to the endpoint",
        f"timed out after {READ}000ms while trying to connect to (10.0.0.99, 29400)",
        "on each host",
        TWICE,
        11,
        2 * READ + STARTING,
        "`nc -vz HOST PORT` on this host prints nothing either. Open the port.",
        AWAY,
    ),
    "port": Row(
        "`--rdzv-endpoint` has the wrong port",
        f"timed out after {READ}000ms while trying to connect to (host1, 29401)",
        "on each host that has it",
        TWICE,
        14,
        2 * READ + STARTING,
        '`nc -vz HOST PORT` prints "refused". The message names the port that was tried.',
        AWAY,
    ),
    "name": Row(
        "`--rdzv-endpoint` has a name that does not exist",
        "Name or service not known",
        "on each host that has it",
        TWICE,
        13,
        2 * READ + STARTING,
        "Check with `getent hosts HOST`. Use the address instead of the name.",
        AWAY,
    ),
    "plain": Row(
        "Started by `srun python`, without torchrun, and a process never comes",
        "waiting for clients. 1/2 clients joined",
        "on the host of rank 0, which counts the processes",
        "after `--time-limit` and a start",
        11,
        TIME_LIMIT + STARTING,
        "Look at the tasks that printed nothing.",
        AWAY,
    ),
    "plain, not the first": Row(
        "The same, and rank 0 never comes",
        f"timed out after {TIME_LIMIT}000ms while trying to connect to (10.0.0.1, 29500)",
        "on all other hosts",
        "after `--time-limit` or up to twice that, and a start",
        14,
        2 * TIME_LIMIT + STARTING,
        "Set MASTER_ADDR and MASTER_PORT to those of rank 0.",
        AWAY,
    ),
    "interface": Row(
        "A host has two network interfaces, and its name resolves to the wrong one",
        "No route to host, remote=[192.168.7.1]",
        "on a host that is not the first",
        "after `--time-limit` and a start; the first host waits five times as long",
        7,
        2 * TIME_LIMIT + STARTING,
        "The store was reached. But gloo tells the other hosts the address that the host's own name "
        "resolves to, "
        "and NCCL picks an interface by its name. Set `GLOO_SOCKET_IFNAME=eth0 "
        "NCCL_SOCKET_IFNAME=eth0` on each host, and give "
        "torchrun `--local-addr` with the host's right address. `python tools/preflight.py` names the "
        "interface.",
        BETWEEN,
    ),
    "ports": Row(
        "A firewall or a security group opens the port of the rendezvous and no other port",
        "Connect timeout",
        "on each host",
        "after five times `--time-limit` (gloo multiplies it; its default of 30 minutes becomes two "
        "and a half "
        "hours) and a start",
        24,
        5 * TIME_LIMIT + STARTING,
        "Processes connect to each other at ports that the system chooses. Open all TCP ports among "
        "the hosts "
        'of the run, or open a range and set `sysctl -w net.ipv4.ip_local_port_range="50000 50100"` '
        "on each. In a "
        "cloud, add a rule to the security group that admits all traffic from the group itself.",
        BETWEEN,
    ),
    "hang": Row(
        "A process hangs (here: SIGSTOP)",
        f"Timed out waiting {TIME_LIMIT}000ms for",
        "on the other hosts",
        f"after `--time-limit` and {LATER} s",
        9,
        TIME_LIMIT + LATER + STARTING,
        "Wait. After a hang, you then see:",
        HANGS,
    ),
    "ended": Row(
        "",
        "forcefully exiting via 9",
        "on its host",
        f"{STOPPING} s later; the launcher gives it so long to end, and there is no option for that",
        39,
        TIME_LIMIT + LATER + STOPPING + STARTING,
        f"`join_timeout` must be longer than {STOPPING} s, or the other hosts give up first. Before that, "
        "`py-spy dump --pid PID` shows where the process hangs.",
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
