#!/bin/sh
# Run README's commands, to the letter, in a bare Debian that debootstrap builds: `make debian`, before a release.
#   sh tools/readme_on_debian.sh sid       # the newest Python; trixie has 3.13
# It needs root, debootstrap, and 6 GB in FOLDER if pip finds no CPU build of torch; delete it when you are done.
# Nothing outlives it: all runs in namespaces of its own. COMMANDS="make run" repeats one step. On a busy machine,
# OMP_NUM_THREADS=1 keeps lesson 01's two threads from waiting for each other.
set -eu
cd "$(dirname "$0")/.."
suite=${1:-sid}
folder=${FOLDER:-/var/tmp/rungs-debian}
root=$folder/$suite
out=${OUT:-out}/debian
mkdir -p "$folder/pip" "$out"

if [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null; then
    echo "error: tools/readme_on_debian.sh needs root and debootstrap: apt install debootstrap" >&2
    exit 1
fi
if [ ! -e "$root/ready" ]; then
    # What README needs, and no more: git and make, and a Python that can make an environment.
    debootstrap --variant=minbase --include=ca-certificates,git,make,python3,python3-venv \
        "$suite" "$root" http://deb.debian.org/debian >"$out/$suite.debootstrap.log"
    touch "$root/ready"
fi
# What is committed here. The environment of an earlier run stays.
if [ ! -e "$root/root/rungs" ]; then
    git clone --quiet . "$root/root/rungs"
fi
git -C "$root/root/rungs" fetch --quiet "$PWD" HEAD
git -C "$root/root/rungs" checkout --quiet --force FETCH_HEAD
# This machine's way to the package index. Its name is not in /etc/hosts, as in many containers.
cp /etc/resolv.conf "$root/etc/resolv.conf"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
printf '127.0.0.1 localhost\n' >"$root/etc/hosts"

# README's commands up to `make run`, as a reader pastes them: one that fails does not end it. pip keeps what it
# has fetched for the next Debian.
cat >"$root/root/readme.sh" <<'END'
cd /root/rungs
export HOME=/root PIP_CACHE_DIR=/root/pip
timed() {
    echo "\$ $*"
    began=$(date +%s)
    status=0
    eval "$*" || status=$?
    echo "= $*: status $status after $(($(date +%s) - began)) s"
}
END
if [ "${COMMANDS:-}" ]; then
    printf 'source .venv/bin/activate\ntimed "%s"\n' "$COMMANDS" >>"$root/root/readme.sh"
else
    sed -n '/^```sh$/,/^```$/p' README.md | sed -n '/^```/d; /^python3 -m venv/,/^make run/p' \
        | sed -e ':more' -e '/\\$/{N; s/\\\n *//; b more' -e '}' -e 's/.*/timed "&"/' >>"$root/root/readme.sh"
    echo 'timed "make test"' >>"$root/root/readme.sh"  # README's second command, in another block
fi
cat >"$folder/$suite.sh" <<END
set -e
mount --make-rprivate /
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/dev/shm"
mkdir -p "$root/root/pip"
mount --bind "$folder/pip" "$root/root/pip"
exec chroot "$root" /usr/bin/env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin LANG=C.UTF-8 \
    ${OMP_NUM_THREADS:+OMP_NUM_THREADS=$OMP_NUM_THREADS} bash /root/readme.sh
END
unshare --mount --uts --ipc --pid --fork --kill-child sh "$folder/$suite.sh" >"$out/$suite.log" 2>&1 || true
chroot "$root" python3 -VV
grep '^= ' "$out/$suite.log"
! grep '^= ' "$out/$suite.log" | grep -v -e 'status 0 ' -e 'whl/cpu' >/dev/null
