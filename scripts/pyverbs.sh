#!/usr/bin/env bash
# Runs rdma-core's own Python suite on Feroce: the tests that ask for no particular RNIC, each in a process of its own,
# in a network namespace that is removed afterwards. Installs what is missing (Debian) and builds.
#   scripts/pyverbs.sh [--built] [FILTER]
# FILTER is a regular expression that picks tests by name (test_qp.QPTest.test_query_qp); --built takes the libraries as
# they are. Exit code 0 if no test failed, 1 if one did.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

readonly SUITE=/usr/share/doc/rdma-core/tests
readonly PYTHON=/usr/bin/python3                # The one that python3-pyverbs is built for.
readonly SECONDS_EACH=${FEROCE_TEST_SECONDS:-60} # until a test is given up
filter=. built=''
while [ $# -gt 0 ]; do
    case $1 in
        --built) built=yes ;;
        -*) usage >&2 && exit 2 ;;
        *) filter=$1 ;;
    esac
    shift
done

export -n FEROCE FEROCE_TEST_SECONDS # The programs' own settings begin alike.
need_root "$@"
need_packages libelf-dev zlib1g-dev clang m4 libpcap-dev make pkg-config iproute2 rdma-core python3-pyverbs gcc
find_cargo
[ -n "$built" ] || {
    say "Building"
    build --bin feroce
    scripts/build-libs.sh > /dev/null
}
feroce=$(realpath -m "${FEROCE:-$(built)/feroce}")
work=$(mktemp -d)
at_exit "rm -rf $work"
[ -d $SUITE ] || die "there is no $SUITE: dpkg was told to leave documentation out (path-exclude in /etc/dpkg/dpkg.cfg.d)"
cp -r $SUITE "$work/tests"
gunzip --force "$work"/tests/*.gz
rm -f "$work"/tests/test_{mlx5,efa,cuda}* # Of one vendor's devices each.
cat > "$work/one.py" << 'END'
"""Runs the test whose name is the argument; without one, prints the names of all."""
import sys
import unittest
sys.path[:0] = ["tests", "."]
name, sys.argv[1:] = sys.argv[1:], []
from args_parser import parser
parser.parse_args()
suite = unittest.defaultTestLoader.discover("tests", top_level_dir=".")
def names(suite):
    for test in suite:
        yield from names(test) if isinstance(test, unittest.TestSuite) else [test.id()]
if not name:
    print("\n".join(names(suite)))
    sys.exit()
suite = unittest.defaultTestLoader.loadTestsFromName(name[0])
result = unittest.TextTestRunner(verbosity=2).run(suite)
for _, reason in result.skipped:
    print("SKIPPED", " ".join(reason.split()))
sys.exit(not result.wasSuccessful())
END
# out_of_reach NAME: why the test cannot be run, if so.
out_of_reach() {
    case $1 in
        test_rdmacm.*) echo "two processes would use one interface, whose RoCE traffic is one program's" ;;
    esac
}

reserve_hugepages 128
pair=fr-pyverbs-$$
make_pair "$pair" 4500

cd "$work"
mapfile -t tests < <($PYTHON one.py | sed 's/^tests\.//' | grep -E "$filter")
[ ${#tests[@]} -gt 0 ] || die "no test has a name that matches $filter"
passed=0 skipped=0 failed=0
for name in "${tests[@]}"; do
    progress "$name"
    started=$SECONDS
    reason=$(out_of_reach "$name")
    [ -n "$reason" ] || timeout --kill-after=5 "$SECONDS_EACH" ip netns exec "$pair-a" "$feroce" run --quiet --interface v0 -- \
        $PYTHON one.py "tests.$name" > log 2>&1 && status=0 || status=$?
    progress
    reason=${reason:-$(sed -n 's/^SKIPPED //p' log)}
    if [ "$status" != 0 ]; then
        failed=$((failed + 1)) verdict=FAILED
    elif [ -n "$reason" ]; then
        skipped=$((skipped + 1)) verdict=skipped
    else
        passed=$((passed + 1)) verdict=passed
    fi
    printf '%-7s %3d s  %s%s\n' "$verdict" $((SECONDS - started)) "$name" "${reason:+: $reason}"
    [ "$verdict" != FAILED ] || { [ "$status" != 124 ] || note "    gave no result within $SECONDS_EACH s"; tail -n 12 log | sed 's/^/    /'; }
done
echo "${#tests[@]} tests: $passed passed, $skipped skipped, $failed failed"
[ "$failed" = 0 ]
