# shellcheck shell=bash
# Rows of tests/programs/table.txt, for scripts/programs.sh and scripts/interop-kit.sh; after lib.sh.
#   . scripts/rows.sh
# The caller has three functions. `on END COMMAND...` becomes COMMAND at that end, by exec. `stop END PROCESS` ends what it became.
# `listeners END` prints how many servers wait for clients there. Files are in $work; $preload is librspreload's path.

readonly ROWS=tests/programs/table.txt
SECONDS_EACH=${PROGRAM_SECONDS:-120} # until a row is given up

# each_row FILTER COMMAND...: calls COMMAND for each row that FILTER picks, with the row in $group, $what, $server, $client,
# $pattern, and the client's command line without its server in $command.
each_row() {
    local filter=$1
    shift
    while IFS='|' read -r group what server client pattern <&7; do
        case $group in '#'* | '') continue ;; esac
        group=$(trim "$group") what=$(trim "$what") server=$(trim "$server") client=$(trim "$client") pattern=$(trim "$pattern")
        command=${client// SERVER/}
        [[ "$group $what $command" =~ $filter ]] || continue
        "$@"
    done 7< "$ROWS"
}

trim() { sed 's/^ *//; s/ *$//' <<< "$1"; }

# suit_other_peer: changes the row for a peer that is not Feroce. perftest asks its own device for as many READs and atomics at a time
# as the other end's device can do: rxe 128, Feroce 16.
suit_other_peer() {
    [[ $server =~ ^ib_(read|atomic) ]] || return 0
    server="${server/ / -o 16 }" client="${client/ / -o 16 }" command="${command/ / -o 16 }"
}

# suit_slow_peer: changes the row for a peer that moves some 10 MB/s, as an emulated CPU does. perftest gets an eighth of the
# iterations, and an ACK timeout of 1 s: packets that wait for the peer are not to be sent again and again.
suit_slow_peer() {
    local count fewer total
    [[ $server =~ ^ib_ ]] || return 0
    server="${server/ / -u 18 }" client="${client/ / -u 18 }" command="${command/ / -u 18 }"
    [[ $server =~ \ -n\ ([0-9]+) ]] || return 0
    count=${BASH_REMATCH[1]} fewer=$((BASH_REMATCH[1] / 8))
    [ $fewer -ge 5 ] || fewer=5 # What perftest takes.
    server=${server/ -n $count/ -n $fewer} client=${client/ -n $count/ -n $fewer} command=${client// SERVER/}
    [[ $pattern =~ ^(.*\+)([0-9]+)$ ]] || return 0
    total=$((BASH_REMATCH[2] * fewer / count)) pattern=${BASH_REMATCH[1]}$total
}

# row END_OF_SERVER END_OF_CLIENT ADDRESS: 0 if the row passed; else why it did not, in $why.
row() {
    local serves=$1 calls=$2 address=$3 status served=0 waited=0 pid='' before endless='' serve=$server
    why=''
    case $serve in '! '*) endless=yes serve=${serve#! } ;; esac
    : > "$work/server"
    if [ "$serve" != - ]; then
        before=$(listeners "$serves")
        # shellcheck disable=SC2046,SC2086 # Words.
        (on "$serves" $(filled_in "$serve")) > "$work/server" 2>&1 &
        pid=$!
        until [ "$(listeners "$serves")" -gt "$before" ] || [ $((waited++)) -gt 300 ] || ! kill -0 "$pid" 2> /dev/null; do
            sleep 0.05
        done
        case $group in cm | rsocket) sleep 0.3 ;; esac # They have their device first, and listen then.
    fi
    # shellcheck disable=SC2046,SC2086 # Words.
    (on "$calls" $(filled_in "$client")) > "$work/client" 2>&1 && status=0 || status=$?
    if [ -n "$pid" ]; then
        [ "$status" = 0 ] && [ -z "$endless" ] || stop "$serves" "$pid"
        wait "$pid" && served=0 || served=$?
        [ -z "$endless" ] || served=0
    fi
    [ "$status" = 0 ] || why="client: exit code $status"
    [ "$served" = 0 ] || why="${why:+$why, }server: exit code $served"
    [ -n "$why" ] || grep -qE "$pattern" "$work/client" || why="nothing in the output matches: $pattern"
    [ -z "$why" ]
}

# filled_in COMMAND: with the address of the server, and the library that puts TCP programs on rsockets.
filled_in() { sed "s|SERVER|$address|g; s|PRELOAD|LD_PRELOAD=${preload-}|g" <<< "$1"; }

# tell_why: what the two said. First how either begins: errors, which are not buffered, come ahead of what was printed long before.
tell_why() {
    local end
    note "    $why"
    for end in client server; do head -n 5 "$work/$end" | sed "s/^/    $end: /"; done
    for end in client server; do tail -n +6 "$work/$end" | tail -n 35 | sed "s/^/    $end: /"; done
}

# --- Results: a line `PROGRAM<tab>WHAT<tab>CASE<tab>VERDICT` each in $work/results.

record() { # CASE VERDICT
    printf '%s\t%s\t%s\t%s\n' "$(program)" "$group: $what" "$1" "$2" >> "$work/results"
}

# program: the row's, without what is ahead of it.
program() { sed -E 's/^env ([^ ]*=[^ ]* |PRELOAD )*//; s/ .*//' <<< "$command"; }

# table CASE...: a line per program, with what it was run for and, for each case, how many of its rows passed.
table() {
    awk -F'\t' -v cases="$(IFS='|' && echo "$*")" '
        BEGIN {
            count = split(cases, names, "|")
            printf "| program | runs |"; for (n = 1; n <= count; n++) printf " %s |", names[n]
            printf "\n|---|---|"; for (n = 1; n <= count; n++) printf "---|"
            printf "\n"
        }
        !($1 in seen) { seen[$1] = ++programs; order[programs] = $1 }
        !(($1, $2) in told) { told[$1, $2] = 1; runs[$1] = runs[$1] (runs[$1] == "" ? "" : "; ") $2 }
        $4 == "skipped" { skipped[$1, $3] = 1; next }
        { all[$1, $3]++ }
        $4 == "passed" { passed[$1, $3]++; next }
        { failed[$1, $3] = failed[$1, $3] (failed[$1, $3] == "" ? "" : "; ") $2 }
        END {
            for (p = 1; p <= programs; p++) {
                name = order[p]
                printf "| `%s` | %s |", name, runs[name]
                for (n = 1; n <= count; n++) {
                    key = name SUBSEP names[n]
                    if (!all[key]) { printf " - |"; continue }
                    printf " %d of %d%s |", passed[key], all[key], failed[key] == "" ? "" : " (not: " failed[key] ")"
                }
                printf "\n"
            }
        }' "$work/results"
}

# write_section FILE NAME: puts standard input between the marks `<!-- NAME -->` and `<!-- /NAME -->` of FILE.
write_section() {
    local text
    text=$(cat)
    grep -q "^<!-- $2 -->$" "$1" && grep -q "^<!-- /$2 -->$" "$1" || die "$1 has no marks for $2"
    { sed "/^<!-- $2 -->$/q" "$1" && printf '%s\n' "$text" && sed -n "/^<!-- \/$2 -->$/,\$p" "$1"; } > "$work/section"
    cat "$work/section" > "$1"
}
