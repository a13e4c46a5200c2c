"""What can go wrong on many machines, which message you see, and after how long: the list of lesson 06b.

`make diffs` writes it into lessons/pages/06b.md. Each row names the test in test_hosts.py that produces its
fault with lesson 06b. The test asks for the row's text in the output, within the row's limit.
"""

from typing import NamedTuple

# What the tests set; the limits below follow from it.
TIME_LIMIT = 4
CONF = {
    "join_timeout": 60,
    "last_call_timeout": 1,
    "keep_alive_interval": 1,
    "keep_alive_max_attempt": 3,
    "read_timeout": 5,
}
JOIN_TIMEOUT = 6  # for the host that never comes
LATER = 5  # seconds that a process waits before it prints that another one is gone: let_the_first_speak
STOPPING = 30  # seconds that a launcher gives its processes to end
DEAD = CONF["keep_alive_interval"] * CONF["keep_alive_max_attempt"]
READ = CONF["read_timeout"]
STARTING = 45  # seconds in which a busy machine starts a few processes, or notices that one has ended


class Row(NamedTuple):
    fault: str  # empty: another line that the same fault prints, elsewhere or later
    text: str  # stands in the output, to the letter
    where: str  # who prints it, or why
    after: str  # in the reader's settings; empty if the fault's name says it
    measured: float  # seconds, with the settings above on two shared cores
    limit: float  # seconds: later than that, the test fails
    advice: str
    test: str


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
        "If nobody sent SIGKILL (9), the machine probably ran out of memory: `dmesg` shows it.",
        ON,
    ),
    "restart": Row(
        "",
        "resumed in epoch",
        "on the host of rank 0",
        "after a start",
        9,
        STARTING,
        "The launchers restart all processes. Each launcher whose own process failed uses up one restart.",
        ON,
    ),
    "mended": Row(
        "A link is cut, and works again within half of `--time-limit`",
        "| loss ",
        "only the next epoch's line, late",
        "within twice the length of the cut",
        1,
        STARTING,
        "Do nothing.",
        ON,
    ),
    "agent": Row(
        "A launcher is killed, and its processes end",
        "caused by a remote worker",
        "on the other hosts",
        f"after {LATER} s",
        5,
        LATER + STARTING,
        "They wait, and then continue from the newest snapshot, as the next line shows.",
        ON,
    ),
    "fewer": Row(
        "",
        "resumed in epoch",
        "on the host of rank 0",
        f"after {LATER} s + `keep_alive_interval` times `keep_alive_max_attempt` (15 s) "
        "+ `last_call_timeout` (30 s) + a start",
        12,
        LATER + DEAD + CONF["last_call_timeout"] + STARTING,
        "Run the command on the lost host again.",
        ON,
    ),
    "more": Row(
        "A lost host comes back",
        "resumed in epoch",
        "on the host of rank 0",
        "after two starts",
        15,
        2 * STARTING,
        "All processes stop after the same step, save and resume.",
        ON,
    ),
    "cut": Row(
        "A link is cut for good",
        f"Timed out waiting {TIME_LIMIT}000ms for",
        "on the other hosts",
        f"after `--time-limit` + {LATER} s",
        9,
        TIME_LIMIT + LATER + STARTING,
        "Repair the link, and run the command on the host that was cut off.",
        CUT,
    ),
    "cut off": Row(
        "",
        "likely a timeout",
        "on the host that is cut off",
        "after `read_timeout`",
        5,
        READ + STARTING,
        f"Its processes end after `--time-limit` + {LATER} s. Its launcher may hang:",
        CUT,
    ),
    "hangs on": Row(
        "",
        "The connection to the C10d store has failed",
        "on the same host",
        "when TCP gives up, by default after a quarter of an hour",
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
        "All other launchers end. Run the command on all hosts again to resume.",
        CUT,
    ),
    "never": Row(
        "Fewer hosts come than `--nnodes` needs",
        "RendezvousTimeoutError",
        "on the first host that gives up",
        "after `join_timeout` (600 s) + a start",
        13,
        JOIN_TIMEOUT + STARTING,
        "Look at the host that prints nothing.",
        AWAY,
    ),
    "unreachable": Row(
        "A launcher cannot reach `--rdzv-endpoint` (seen after one to two times `read_timeout`, 60 s)",
        "errno: 113 - No route to host",
        "no host answers at this address",
        "",
        13,
        2 * READ + STARTING,
        "`ping` it, and check the route.",
        AWAY,
    ),
    "swallowed": Row(
        "",
        f"timed out after {READ}000ms while trying to connect to (10.0.0.99, 29400)",
        "a firewall drops the packets",
        "",
        11,
        2 * READ + STARTING,
        "`nc -vz HOST PORT` prints nothing. Open the port.",
        AWAY,
    ),
    "port": Row(
        "",
        f"timed out after {READ}000ms while trying to connect to (host1, 29401)",
        "the port is wrong",
        "",
        14,
        2 * READ + STARTING,
        '`nc -vz HOST PORT` prints "refused".',
        AWAY,
    ),
    "name": Row(
        "",
        "Name or service not known",
        "the name does not exist",
        "",
        13,
        2 * READ + STARTING,
        "Check it with `getent hosts HOST`, or use the address.",
        AWAY,
    ),
    "plain": Row(
        "You use `srun python` without torchrun, and a process never comes",
        "waiting for clients. 1/2 clients joined",
        "on the host of rank 0",
        "after `--time-limit` + a start",
        11,
        TIME_LIMIT + STARTING,
        "Look at the tasks that printed nothing.",
        AWAY,
    ),
    "plain, not the first": Row(
        "",
        f"timed out after {TIME_LIMIT}000ms while trying to connect to (10.0.0.1, 29500)",
        "on all other hosts, if rank 0 never comes",
        "after one to two times `--time-limit` + a start",
        14,
        2 * TIME_LIMIT + STARTING,
        "Set MASTER_ADDR and MASTER_PORT to the address and port of rank 0.",
        AWAY,
    ),
    "interface": Row(
        "A host's name resolves to the wrong network interface",
        "No route to host, remote=[192.168.7.1]",
        "on a host that is not the first",
        "after `--time-limit` + a start",
        7,
        2 * TIME_LIMIT + STARTING,
        "The first host waits five times as long. On each host, set `GLOO_SOCKET_IFNAME=eth0 "
        "NCCL_SOCKET_IFNAME=eth0`, and pass its right address to `torchrun --local-addr`. "
        "`python tools/preflight.py` names the interface.",
        BETWEEN,
    ),
    "ports": Row(
        "A firewall opens only the port of the rendezvous",
        "Connect timeout",
        "on each host",
        "after five times `--time-limit` (two and a half hours, if you leave gloo its own limit)",
        24,
        5 * TIME_LIMIT + STARTING,
        "Open all TCP ports between the hosts, or open a range and set "
        '`sysctl -w net.ipv4.ip_local_port_range="50000 50100"` on each host. In a cloud, let the security '
        "group admit all traffic from itself.",
        BETWEEN,
    ),
    "hang": Row(
        "A process hangs (here: SIGSTOP)",
        f"Timed out waiting {TIME_LIMIT}000ms for",
        "on the other hosts",
        f"after `--time-limit` + {LATER} s",
        9,
        TIME_LIMIT + LATER + STARTING,
        "Before that, `py-spy dump --pid PID` shows where the process hangs.",
        HANGS,
    ),
    "ended": Row(
        "",
        "forcefully exiting via 9",
        "on its host",
        f"{STOPPING} s later, which no option changes",
        39,
        TIME_LIMIT + LATER + STOPPING + STARTING,
        "`join_timeout` must be longer, or the other hosts give up first.",
        HANGS,
    ),
}


def listed():
    """No table: a phone shows only two of four columns with this much text."""
    lines = []
    for row in ROWS.values():
        if row.fault:
            lines += ["", f"**{row.fault}.**", ""]
        place = ", ".join(filter(None, (row.where, row.after)))
        lines.append(f"- {place[0].upper()}{place[1:]}: `{row.text.strip('| ')}`. {row.advice}")
    return "\n".join(lines[1:]) + "\n"
