#!/bin/sh
# Start a command in the surroundings of a Mac: sh tools/testbed/mac/enter.sh PYTHON COMMAND...
# In namespaces of its own, which end with it: /proc is empty; the host's name does not resolve; the loopback
# interface is lo0; TMPDIR is as deep as macOS makes it; PATH has no program that only Linux has, and refuses GNU's
# options; each Python of this environment runs lacks.py first.
set -eu
PYTHON=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
if [ -z "${RUNGS_MAC:-}" ]; then
    place=$(mktemp -d "/tmp/mac-XXXXXX")
    trap 'rm -rf "$place"' EXIT
    user=
    [ "$(id -u)" = 0 ] || user="--user --map-root-user"
    trap : INT  # the command hears it, and ends as it would
    status=0
    RUNGS_MAC=$place unshare $user --mount --uts --net --ipc --pid --fork --kill-child \
        sh "$here/enter.sh" "$PYTHON" "$@" || status=$?
    exit $status
fi

place=$RUNGS_MAC
mount -t tmpfs tmpfs "$place"
hostname Students-MacBook-Pro.local
mkdir "$place/proc" "$place/empty" "$place/bin" "$place/upper" "$place/work"
mount -t proc proc "$place/proc"
ip link set lo down && ip link set lo name lo0 && ip link set lo0 up
printf '127.0.0.1 localhost\n::1 localhost\n' >"$place/hosts"
printf 'passwd: files\ngroup: files\nhosts: files\n' >"$place/nsswitch.conf"
mount --bind "$place/hosts" /etc/hosts
mount --bind "$place/nsswitch.conf" /etc/nsswitch.conf

packages=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
mount -t overlay overlay -o "lowerdir=$packages,upperdir=$place/upper,workdir=$place/work" "$packages"
# With what it needs written into it, since some processes get an environment of their own.
printf 'import pathlib; exec(compile(pathlib.Path("%s").read_text(), "%s", "exec"), {"__name__": "lacks", "PLACE": "%s", "RUNGS": "%s/"})\n' \
    "$here/lacks.py" "$here/lacks.py" "$place" "$root" >"$packages/aaa_lacks_of_a_mac.pth"

# The programs of macOS are BSD's: what Linux alone has is not there.
linux="bwrap capsh chrt docker dpkg apt apt-get fallocate flock free getent gdb ip ionice ldd losetup lscpu lsns nproc"
linux="$linux nsenter numactl nvidia-smi pidof podman prlimit runuser setpriv setsid sha512sum shuf slurmctld slurmd srun ss"
linux="$linux strace systemctl tac taskset timeout unshare valgrind g++ chromium setarch"
(
    IFS=:
    for folder in $PATH; do
        ln -s "$folder"/* "$place/bin" 2>/dev/null || true  # the first folder's program is the one that is found
    done
)
for name in $linux; do
    rm -f "$place/bin/$name"
done
for name in sed grep date stat xargs find; do
    rm -f "$place/bin/$name"
    cp "$here/bsd.sh" "$place/bin/$name"
done
# 57 characters, as /private/var/folders/xx/.../T has, and four more, since a socket's path may have four more here.
TMPDIR=$place/folders/zz/zyxvpxvq6csfxvn_n0000000000000/T/4
mkdir -p "$TMPDIR"
export TMPDIR PATH="$place/bin"
# Two things remain: what torch's library for the processor reads, and what Linux's /dev/fd leads to.
cp /proc/cpuinfo "$place/empty"
mkdir "$place/empty/self"
ln -s "$place/proc/self/fd" "$place/empty/self/fd"
mount --bind "$place/empty" /proc
cd "${RUNGS_MAC_FOLDER:-$PWD}"
trap : INT
status=0
"$@" || status=$?  # not as the first process of the namespace, which signals do not end
exit $status
