"""Which system calls the kernel refuses behind bubblewrap: a filter that it reads as a program (BPF).

It closes what namespaces and Landlock leave open: keyrings and System V memory, which outlive a process; new
namespaces, in which a process would be root; looks into other processes; memory that counts for no process
(memfd, buffers of socket pairs and of large pipes); ways between processes whose bytes nobody counts
(datagrams, UNIX sockets); and parts of the kernel that no exercise needs, io_uring for one.
"""

import platform
import struct

# Each call by its numbers, from the kernel's asm/unistd_64.h (x86_64) and asm-generic/unistd.h (aarch64).
REFUSED = {
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "unshare": (272, 97),
    "setns": (308, 268),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "userfaultfd": (323, 282),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "socketpair": (53, 199),
}
CLONE, CLONE3, SOCKET, FCNTL = (56, 220), (435, 435), (41, 198), (72, 25)
SET_PIPE_SIZE = 1031
# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET.
NEW_NAMESPACES = 0x7E020000
INET, INET6, NETLINK = 2, 10, 16
STREAM, TYPE, ANY, TCP = 1, 0xF, 0, 6  # what can be counted from outside
ROUTE = 0  # of NETLINK: by this, gloo finds addresses
MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

LOAD, EQUAL, AT_LEAST, ANY_BIT, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT, SECOND_ARGUMENT, THIRD_ARGUMENT = 0, 4, 16, 24, 32
ALLOW, EPERM, ENOSYS, EAFNOSUPPORT = 0x7FFF0000, 0x50000 + 1, 0x50000 + 38, 0x50000 + 97


def one_of(first: int, second: int) -> list[tuple[int, int, int, int]]:
    """Allow what is one of two numbers, and no other."""
    allow, refuse = (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, EAFNOSUPPORT)
    return [(EQUAL, 1, 0, first), (EQUAL, 0, 1, second), allow, refuse]


def program(machine: str = "") -> bytes:
    """The filter for this machine; KeyError on one whose numbers are not here."""
    which, architecture = MACHINES[machine or platform.machine()]
    lines = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, architecture), (RETURN, 0, 0, ENOSYS)]
    # The x32 calls of x86_64 are the same ones with other numbers.
    lines += [(LOAD, 0, 0, NUMBER), (AT_LEAST, 0, 1, 0x40000000), (RETURN, 0, 0, ENOSYS)]
    for numbers in REFUSED.values():
        lines += [(EQUAL, 0, 1, numbers[which]), (RETURN, 0, 0, EPERM)]
    # The flags of clone3 lie where no filter can read them. The C library then takes clone.
    lines += [(EQUAL, 0, 1, CLONE3[which]), (RETURN, 0, 0, ENOSYS)]
    lines += [(EQUAL, 0, 4, CLONE[which]), (LOAD, 0, 0, FIRST_ARGUMENT), (ANY_BIT, 0, 1, NEW_NAMESPACES)]
    lines += [(RETURN, 0, 0, EPERM), (RETURN, 0, 0, ALLOW)]
    lines += [(EQUAL, 0, 4, FCNTL[which]), (LOAD, 0, 0, SECOND_ARGUMENT), (EQUAL, 0, 1, SET_PIPE_SIZE)]
    lines += [(RETURN, 0, 0, EPERM), (RETURN, 0, 0, ALLOW)]
    lines += [(EQUAL, 1, 0, SOCKET[which]), (RETURN, 0, 0, ALLOW), (LOAD, 0, 0, FIRST_ARGUMENT)]
    lines += [(EQUAL, 0, 4, NETLINK), (LOAD, 0, 0, THIRD_ARGUMENT), (EQUAL, 0, 1, ROUTE)]
    lines += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, EAFNOSUPPORT)]
    lines += [(EQUAL, 2, 0, INET), (EQUAL, 1, 0, INET6), (RETURN, 0, 0, EAFNOSUPPORT)]
    lines += [(LOAD, 0, 0, SECOND_ARGUMENT), (AND, 0, 0, TYPE), (EQUAL, 1, 0, STREAM)]
    lines += [(RETURN, 0, 0, EAFNOSUPPORT), (LOAD, 0, 0, THIRD_ARGUMENT), *one_of(ANY, TCP)]
    return b"".join(struct.pack("<HBBI", *line) for line in lines)
