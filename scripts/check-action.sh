#!/usr/bin/env bash
# Runs the example workflow of docs/containers.md, with action.yml and scripts/action.sh behind it,
# as an ordinary user in a bare environment: no capability, no sudo, no user namespace, nothing in
# the environment but HOME, PATH and USER, an empty home folder, and one interface.
#   scripts/check-action.sh [PREFIX]
# PREFIX is a folder that scripts/install.sh has installed to; by default this builds Feroce. Needs
# root to make that environment, and leaves nothing behind. Exit code 0 if all steps pass.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh
[[ $# -le 1 && ${1-} != -* ]] || { usage >&2 && exit 2; }

need_root "$@"
need_packages iproute2 python3-yaml ibverbs-utils ibverbs-providers perftest

# installed PREFIX TO: copies what PREFIX has, or else what a build has made, to the prefix TO.
installed() {
    local libraries
    if [ -n "$1" ]; then
        cp -r "$1/bin" "$1/lib" "$2"
        return
    fi
    need_packages libelf-dev zlib1g-dev clang m4 libpcap-dev make pkg-config
    find_cargo
    build --lib --bin feroce
    libraries=$(as_caller scripts/build-libs.sh | tail -n 1)
    mkdir -p "$2/bin" "$2/lib"
    cp "$(built)/feroce" "$2/bin"
    cp -r "$libraries" "$2/lib/feroce"
}

readonly USER_ID=65534 # nobody
work=$(mktemp -d)
at_exit "rm -rf $work"
namespace=fr-action-$$
at_exit "rmdir /tmp/feroce-$USER_ID 2> /dev/null"
at_exit "ip netns delete $namespace"
ip netns add "$namespace"
at_exit "ip netns pids $namespace | xargs -r kill 2> /dev/null; sleep 0.2"
ip -n "$namespace" link set lo up # Both ends are on this host.
ip -n "$namespace" link add v0 type veth peer name v1
ip -n "$namespace" address add 10.77.0.1/24 dev v0
ip -n "$namespace" link set v0 up
ip -n "$namespace" link set v1 up
ip -n "$namespace" route add default via 10.77.0.2

# The user's clone of the action, and what a cache would have kept of the first run.
mkdir -p "$work/action/scripts" "$work/home/.local/feroce"
cp action.yml "$work/action"
cp scripts/{action.sh,lib.sh,workflow.py} "$work/action/scripts"
cp containers/github-workflow.yml "$work"
installed "${1-}" "$work/home/.local/feroce"
chmod 755 "$work"
chown -R $USER_ID:$USER_ID "$work/home"

# as_user COMMAND...: runs COMMAND as the user, in a user namespace that can contain no other. In
# it, the user has the number 1000, as no capability in the namespace or outside.
as_user() {
    # shellcheck disable=SC2016 # The inner shell expands it.
    ip netns exec "$namespace" setpriv --reuid $USER_ID --regid $USER_ID --clear-groups \
        unshare --user --map-user=1000 --map-group=1000 --keep-caps sh -ec '
            echo 0 > /proc/sys/user/max_user_namespaces
            exec setpriv --ambient-caps=-all --inh-caps=-all --bounding-set=-all \
                --no-new-privs env -i HOME="$0" USER=user PATH=/usr/bin:/bin "$@"' \
        "$work/home" "$@"
}

as_user unshare --user true 2> /dev/null && die "the user can make a user namespace"
as_user grep -q '^CapBnd:[^1-9a-f]*$' /proc/self/status || die "the user has capabilities"
cd "$work/home"
as_user "$work/action/scripts/workflow.py" "$work/github-workflow.yml" "$work/action" \
    > "$work/messages" 2>&1 || { cat "$work/messages" && die "the workflow fails"; }
cat "$work/messages"
# One line per iteration count: both ends of ibv_rc_pingpong, and the tables of ib_write_bw.
[ "$(grep -c 'iters in .* seconds' "$work/messages")" = 2 ] || die "ibv_rc_pingpong did not run"
[ "$(grep -cE '^ *65536 +200 ' "$work/messages")" = 2 ] || die "ib_write_bw did not run"

# The two lines of docs/ci.md, in a clone.
cat > "$work/action/lines" << 'END'
eval "$(scripts/action.sh --packages 'ibverbs-utils ibverbs-providers perftest')"
feroce run -- ./your-test
feroce down
END
printf '#!/bin/sh\nibv_devices | grep feroce0\n' > "$work/action/your-test"
chmod 755 "$work/action/your-test"
cd "$work/action"
as_user bash -e lines > "$work/messages" 2>&1 || { cat "$work/messages" && die "two lines fail"; }
grep -q feroce0 "$work/messages" || die "the test has found no device: $(cat "$work/messages")"
echo "the workflow, and two lines in its place, run as an ordinary user"
