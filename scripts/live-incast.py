"""What scripts/live-incast.sh reads and compares.

settings SCENARIO                      environment variables that give an endpoint the scenario's congestion control
seconds SCENARIO [SECONDS]             how long a run is; exit code 2 if nothing is left of it after the warm-up
cpus                                   the CPUs that this process may use, in ranges: the last of them; the others
compare SCENARIO VIRTUAL REAL COUNT SECONDS    a table; exit code 1 if the two differ by more than 15 %
"""
import csv, json, os, sys, tomllib
from pathlib import Path

BAR = 0.15
LEAST = 5  # Seconds that figures must count.
FRAME = 1082  # Bytes of a full packet, from the Ethernet header to the ICRC.
LOSSES = ("dropped", "overrun", "lost", "corrupted", "missed", "unroutable")
MARKING = {"kmin", "kmax", "pmax", "beyond_kmax", "mark_at"}  # The switch's.


def main(action, scenario=None, *rest):
    if action == "cpus":
        *others, last = sorted(os.sched_getaffinity(0))
        print(last, ",".join(map(str, others or [last])), sep="\n")
        return
    text = tomllib.loads(Path(scenario).read_text())
    if action == "settings":
        settings(dict(text["congestion"]), text["host"]["burst"])
    elif action == "seconds":
        print(length(text, rest[0] if rest else ""))
    else:
        sys.exit(compare(text, *rest))


def seconds(value):
    return float(value.removesuffix("s"))


def length(scenario, asked):
    """Seconds of a run."""
    whole, warmup = seconds(asked or scenario["duration"]), seconds(scenario["warmup"])
    if whole < warmup + LEAST:
        print(f"--seconds {asked}: figures count after {warmup:.0f} s, for {LEAST} s at least", file=sys.stderr)
        sys.exit(2)
    return whole


def settings(congestion, burst):
    chosen = congestion.pop("set")
    knobs = ", ".join(f"{key}={value}" for key, value in congestion.items() if key not in MARKING)
    print("FEROCE_CONGESTION=dcqcn")
    print(f"FEROCE_CONGESTION_SET={chosen}")
    print(f"FEROCE_CONGESTION_KNOBS={knobs}")
    # The scenario's packets: a sender that comes late does not make up for it with a burst that a
    # NIC would not send.
    print(f"FEROCE_CONGESTION_BURST={burst * FRAME}")


def compare(scenario, virtual, real, count, whole):
    count, warmup = int(count), seconds(scenario["warmup"])
    expected_span = float(whole) - warmup
    mine = lambda row: row["case"] == f"{count}:1"
    expected = list(filter(mine, rows(Path(virtual) / "flows.csv")))
    got = [sender(Path(real) / f"stat-{n}.json", warmup) for n in range(1, count + 1)]
    goodputs, bits = [float(row["goodput_bps"]) for row in expected], [one["bits"] for one in got]
    alphas = [float(row["mean_alpha"]) for row in expected], [one["alpha"] for one in got]
    print(f"{count}:1{'virtual':>22}{'real':>10}{'apart':>10}")
    apart = []
    # Which sender is ahead is chance: the largest is compared with the largest, and so on.
    shares = [sorted((rate / sum(rates) * count for rate in rates), reverse=True) for rates in (goodputs, bits)]
    for n, both in enumerate(zip(*shares), 1):
        apart.append(line(f"share, {n}. of {count}", *both))
    # Endpoints count frames from the Ethernet header to the ICRC.
    apart.append(line("total, Mb/s", sum(goodputs) / 1e6 * FRAME / 1024, sum(bits) / 1e6))
    apart.append(line("alpha, mean", *(sum(values) / count for values in alphas)))
    print("  not judged:")
    line("alpha, least", *map(min, alphas))
    line("alpha, most", *map(max, alphas))
    (queue,) = filter(mine, rows(Path(virtual) / "queues.csv"))
    line("queue, KB", float(queue["mean_bytes"]) / 1000, mean_queue(Path(real) / "live.csv", warmup) / 1000)
    print(f"{max(apart) * 100:.1f} % apart at most, over {got[0]['seconds']:.0f} s; {sum(one['cnps'] for one in got)} CNPs")
    faults = switch_faults(Path(real) / "live.txt", scenario["congestion"]["cnp_interval"])
    for n, one in enumerate(got, 1):
        # Samples are taken every half second, and nobody starts with the others.
        if one["seconds"] < 0.9 * expected_span:
            faults.append(f"h{n}: {one['seconds']:.0f} s were measured of {expected_span:.0f}")
        faults += [f"h{n}: {one['again']} packets were sent again"] if one["again"] else []
    faults += [f"{max(apart) * 100:.1f} % is more than {BAR * 100:.0f} %"] if max(apart) > BAR else []
    for fault in faults:
        print(f"FAILED: {fault}")
    return int(bool(faults))


def switch_faults(path, interval):
    """Why what the switch did is not what the scenario says."""
    *table, late = path.read_text().splitlines()
    late = float(late.split("99 % ")[1].split(",")[0]) / 1000
    limit = float(interval.removesuffix("ms")) / 10
    print(f"the switch was up to {late:.3f} ms late for 99 % of the time")
    faults = [f"that is more than {limit} ms, a tenth of the CNP interval"] if late > limit else []
    names, *lines = (row.split() for row in table)
    for row in (dict(zip(names, values)) for values in lines):
        lost = [f"{row[name]} {name}" for name in LOSSES if row[name] != "0"]
        faults += [f"{row['host']}: {', '.join(lost)}"] if lost else []
    return faults


def mean_queue(path, warmup):
    """Bytes that wait for the receiver, after the warm-up."""
    lines = [row for row in rows(path) if float(row["microseconds"]) > warmup * 1e6]
    queues = [int(row["queue"]) for row in lines if row["host"] == "h9"]
    return sum(queues) / len(queues)


def line(name, virtual, real):
    apart = abs(real / virtual - 1)
    print(f"  {name:15}{virtual:8.3f}{real:10.3f}{apart * 100:8.1f} %")
    return apart


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def sender(path, warmup):
    """A sender's mean rate and alpha after the warm-up, from what `feroce stat --watch` wrote."""
    figures = [json.loads(text)["figures"][0] for text in path.read_text().splitlines()]
    begin = figures[0]["nanos"] + warmup * 1e9
    figures = [figure for figure in figures if figure["nanos"] >= begin]
    rates = [next(qp["rate"] for qp in figure["queue_pairs"] if qp["rate"]) for figure in figures]
    first, last = figures[0], figures[-1]
    span = (last["nanos"] - first["nanos"]) / 1e9
    sent = sum(core["tx_bytes"] for core in last["cores"]) - sum(core["tx_bytes"] for core in first["cores"])
    return {
        "bits": sent * 8 / span,
        "alpha": sum(rate["alpha_ppm"] for rate in rates) / len(rates) / 1e6,
        "cnps": rates[-1]["cnps_handled"] - rates[0]["cnps_handled"],
        "seconds": span,
        "again": last["counters"]["retransmitted_packets"],
    }


main(*sys.argv[1:])
