"""What Python lacks on a Mac, taken away on Linux: each Python in the surroundings runs it first (enter.sh).

sys.platform is "darwin" for the files of Rungs, which may ask for it; for Python and torch it stays "linux".
"""

import importlib.machinery
import importlib.util
import os
import sys
import types

PLACE = globals()["PLACE"]  # the folder of the surroundings: enter.sh gives both
RUNGS = globals()["RUNGS"]  # where the files of Rungs are
LONGEST_SOCKET = 103  # characters of a path; Linux takes 107


class System(types.ModuleType):
    @property
    def platform(self):
        if self is not sys:  # importlib makes all modules of the class of sys
            return vars(self)["platform"]
        asking = os.path.abspath(sys._getframe(1).f_globals.get("__file__") or "/")
        is_ours = asking.startswith(RUNGS) and "/site-packages/" not in asking
        return vars(self).get("platform of a test") or ("darwin" if is_ours else vars(self)["platform"])

    @platform.setter
    def platform(self, name):
        """A test pretends another system, and gives back what it has found."""
        vars(self)["platform of a test"] = None if name == "darwin" else name


def take(module, *names):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)


def change_os():
    take(os, *[name for name in dir(os) if name.startswith("sched_") and name != "sched_yield"])
    take(os, "memfd_create", "pidfd_open", "eventfd", "unshare", "setns", "splice", "copy_file_range")
    take(os, "pipe2", "fdatasync", "posix_fallocate", "posix_fadvise")
    take(os, "setresuid", "getresuid", "setresgid", "getresgid")


def change_socket(socket):
    real, pair = socket.socket, socket.socketpair
    take(socket, "SOCK_CLOEXEC", "SOCK_NONBLOCK", "TCP_INFO", "SO_PEERCRED", "SO_PASSCRED")

    def socketpair(family=None, type=socket.SOCK_STREAM, proto=0):
        if type == socket.SOCK_SEQPACKET:
            raise OSError(43, "Protocol not supported")
        return pair(family or socket.AF_UNIX, type, proto)

    def bind(self, address):
        if self.family == socket.AF_UNIX and len(os.fsencode(address)) > LONGEST_SOCKET:
            raise OSError("AF_UNIX path too long")
        return super(real, self).bind(address)

    socket.socketpair = socketpair
    real.bind = bind


def change_signal(signal):
    take(
        signal,
        "SIGRTMIN",
        "SIGRTMAX",
        "SIGPWR",
        "SIGSTKFLT",
        "SIGPOLL",
        "SIGCLD",
        "sigtimedwait",
        "sigwaitinfo",
    )
    take(signal, "pidfd_send_signal")


def change_select(select):
    take(select, "epoll", *[name for name in dir(select) if name.startswith("EPOLL")])


def change_fcntl(fcntl):
    take(fcntl, "F_SETPIPE_SZ", "F_GETPIPE_SZ", "F_ADD_SEALS", "F_GET_SEALS")
    ioctl, numbers = fcntl.ioctl, {0xC0206921: 0x8915}  # SIOCGIFADDR of macOS, and of Linux

    def renumbered(descriptor, request, *arguments):
        if request in numbers.values():
            raise OSError(25, "Inappropriate ioctl for device")
        return ioctl(descriptor, numbers.get(request, request), *arguments)

    fcntl.ioctl = renumbered


def change_resource(resource):
    take(
        resource,
        "prlimit",
        "RUSAGE_THREAD",
        "RLIMIT_NICE",
        "RLIMIT_RTPRIO",
        "RLIMIT_RTTIME",
        "RLIMIT_MSGQUEUE",
    )
    getrusage = resource.getrusage

    def in_bytes(who):
        """Linux counts ru_maxrss in KiB."""
        values = list(getrusage(who))
        values[2] *= 1024
        return resource.struct_rusage(values)

    resource.getrusage = in_bytes


def change_context(context):
    """multiprocessing starts processes anew."""
    context._default_context._default_context = context._concrete_contexts["spawn"]


def change_torch_multiprocessing(multiprocessing):
    """Tensors are shared by files, for which a process of torch listens at a socket in TMPDIR."""
    multiprocessing.set_sharing_strategy("file_system")
    multiprocessing.get_all_sharing_strategies = lambda: {"file_system"}
    # That process finds its library beside itself, which Linux asks /proc for.
    torch_folder = os.path.dirname(os.path.dirname(multiprocessing.__file__))
    os.environ["LD_LIBRARY_PATH"] = os.path.join(torch_folder, "lib")


def change_psutil(psutil):
    """It asks the kernel, as on a Mac: the real /proc is mounted where only psutil looks."""
    psutil.PROCFS_PATH = f"{PLACE}/proc"
    take(psutil.Process, "cpu_affinity", "ionice", "rlimit", "io_counters", "memory_maps", "cpu_num")


CHANGES = {
    "socket": change_socket,
    "signal": change_signal,
    "select": change_select,
    "fcntl": change_fcntl,
    "resource": change_resource,
    "multiprocessing.context": change_context,
    "torch.multiprocessing": change_torch_multiprocessing,
    "psutil": change_psutil,
}


class Changing:
    """Imports a module as it is, and changes it then."""

    def find_spec(self, name, path=None, target=None):
        if name not in CHANGES:
            return None
        change = CHANGES.pop(name)
        spec = importlib.util.find_spec(name)
        real = spec.loader.exec_module

        def exec_module(module):
            real(module)
            change(module)

        spec.loader = types.SimpleNamespace(create_module=spec.loader.create_module, exec_module=exec_module)
        return spec


if type(sys) is types.ModuleType:  # the first time
    sys.__class__ = System
    change_os()
    for name in [name for name in CHANGES if name in sys.modules]:
        CHANGES.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, Changing())
