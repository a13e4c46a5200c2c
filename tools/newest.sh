#!/bin/sh
# Run everything once on another version of PyTorch: `make newest`. It is done before a release.
#   sh tools/newest.sh                                                  # the newest that pip finds
#   TORCH=2.14.1 TORCHVISION=0.29.1 sh tools/newest.sh .venv-2.14.1     # another one, in a folder of its own
# The virtual environment takes about 6 GB; delete it when you are done. ONLY="errors recipes" repeats some steps.
set -u
cd "$(dirname "$0")/.." || exit 1
venv=${1:-.venv-newest}
python=$venv/bin/python
out=${OUT:-out}/newest/$(basename "$venv")
mkdir -p "$out"

if [ ! -e "$venv/ready" ]; then
    sed "s/^torch==.*/torch${TORCH:+==$TORCH}/; s/^torchvision==.*/torchvision${TORCHVISION:+==$TORCHVISION}/" \
        requirements.txt >"$out/requirements.txt"
    python3 -m venv "$venv" && "$python" -m pip install --quiet -r "$out/requirements.txt" || exit 1
    sh tools/install_for_tests.sh "$python" "$out/requirements.txt"
    touch "$venv/ready"
fi

failed=0
: >"$out/table"
run() {
    name=$1
    shift
    case " ${ONLY:-$name} " in *" $name "*) ;; *) return ;; esac
    echo "$name: see $out/$name.log"
    result=passed
    "$@" >"$out/$name.log" 2>&1 || { result=failed; failed=1; }
    printf '%-10s %s  %s\n' "$name" "$result" "$(grep -v '^$' "$out/$name.log" | tail -n 1)" >>"$out/table"
}
tests() { "$python" -m pytest -q -n "${PROCESSES:-2}" --dist worksteal "$@"; }

run lessons "$python" -m tools.run_lessons --lessons all --epochs 2 --train-size 192 --test-size 24 --out "$out/lessons"
run errors tests tests/lessons/test_errors.py
run recipes tests tests/lessons/test_recipes.py
run frameworks tests tests/lessons/test_frameworks.py tests/lessons/test_older.py
run solutions make --silent check PYTHON="$python" SUBMISSION=solutions OUT="$out/solutions"
run notebooks tests tests/notebooks/test_notebooks.py
run quick tests -m quick

echo
"$python" -c 'import sys, torch, torchvision
print("Python", sys.version.split()[0], "| torch", torch.__version__, "| torchvision", torchvision.__version__)'
cat "$out/table"
exit $failed
