"""Reads the scenario of scripts/live-incast.sh and compares its results.

settings SCENARIO
    prints environment variables that give an endpoint the scenario's congestion control
seconds SCENARIO [SECONDS]
    prints the duration of a run; exit code 2 if less than 5 s of it follow the warm-up
cpus
    prints the last CPU that this process may use, then the others
compare SCENARIO VIRTUAL REAL COUNT SECONDS
    prints a table of both results; exit code 1 if they differ by more than 15 %, or if the run with
    real packets was disturbed
"""
import csv, json, os, sys, tomllib
from pathlib import Path

BAR = 0.15
LEAST = 5  # Least duration of the measurement after the warm-up, in seconds.
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
        print(f"--seconds {asked}: at least {warmup + LEAST:.0f} s are needed, "
              f"{warmup:.0f} s of them for the warm-up", file=sys.stderr)
        sys.exit(2)
    return whole


def settings(congestion, burst):
    chosen = congestion.pop("set")
    knobs = ", ".join(f"{key}={value}" for key, value in congestion.items() if key not in MARKING)
    print("FEROCE_CONGESTION=dcqcn")
    print(f"FEROCE_CONGESTION_SET={chosen}")
    print(f"FEROCE_CONGESTION_PARAMETERS={knobs}")
    # The scenario's burst, in packets: a sender that was delayed may not catch up with a burst that
    # a NIC would not send.
    print(f"FEROCE_CONGESTION_BURST={burst * FRAME}")


def compare(scenario, virtual, real, count, whole):
    count, warmup = int(count), seconds(scenario["warmup"])
    expected_span = float(whole) - warmup
    mine = lambda row: row["case"] == f"{count}:1"
    expected = list(filter(mine, rows(Path(virtual) / "flows.csv")))
    got = [sender(Path(real) / f"stat-{n}.json", warmup) for n in range(1, count + 1)]
    goodputs = [float(row["goodput_bps"]) for row in expected]
    bits = [one["bits"] for one in got]
    alphas = [float(row["mean_alpha"]) for row in expected], [one["alpha"] for one in got]
    print(f"{count}:1{'virtual':>22}{'real':>10}{'apart':>10}")
    apart = []
    # Which sender gets the largest share is random: the shares are compared in descending order.
    shares = [sorted((rate / sum(rates) * count for rate in rates), reverse=True)
              for rates in (goodputs, bits)]
    for n, both in enumerate(zip(*shares), 1):
        apart.append(line(f"share, {n}. of {count}", *both))
    # Endpoints count frames from the Ethernet header to the ICRC.
    apart.append(line("total, Mb/s", sum(goodputs) / 1e6 * FRAME / 1024, sum(bits) / 1e6))
    apart.append(line("alpha, mean", *(sum(values) / count for values in alphas)))
    print("  not judged:")
    line("alpha, least", *map(min, alphas))
    line("alpha, most", *map(max, alphas))
    (queue,) = filter(mine, rows(Path(virtual) / "queues.csv"))
    real_queue = mean_queue(Path(real) / "live.csv", warmup)
    line("queue, KB", float(queue["mean_bytes"]) / 1000, real_queue / 1000)
    print(f"{max(apart) * 100:.1f} % apart at most, over {got[0]['seconds']:.0f} s; "
          f"{sum(one['cnps'] for one in got)} CNPs")
    faults = switch_faults(Path(real) / "live.txt", scenario["congestion"]["cnp_interval"])
    for n, one in enumerate(got, 1):
        # Samples are 0.5 s apart, and the senders do not start at the same time.
        if one["seconds"] < 0.9 * expected_span:
            faults.append(f"h{n}: {one['seconds']:.0f} s of {expected_span:.0f} s were measured")
        if one["again"]:
            faults.append(f"h{n}: {one['again']} packets were retransmitted")
    if max(apart) > BAR:
        faults.append(f"{max(apart) * 100:.1f} % is more than {BAR * 100:.0f} %")
    for fault in faults:
        print(f"FAILED: {fault}")
    return int(bool(faults))


def switch_faults(path, interval):
    """Where the switch departed from the scenario: late forwarding, lost frames."""
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
    """Mean length of the queue to the receiver after the warm-up, in bytes."""
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
    """A sender's mean rate and alpha after the warm-up, from the lines of `feroce stat --watch`."""
    figures = [json.loads(text)["figures"][0] for text in path.read_text().splitlines()]
    begin = figures[0]["nanos"] + warmup * 1e9
    figures = [figure for figure in figures if figure["nanos"] >= begin]
    rates = [next(qp["rate"] for qp in figure["queue_pairs"] if qp["rate"]) for figure in figures]
    first, last = figures[0], figures[-1]
    span = (last["nanos"] - first["nanos"]) / 1e9
    before, after = (sum(core["tx_bytes"] for core in figure["cores"]) for figure in (first, last))
    sent = after - before
    return {
        "bits": sent * 8 / span,
        "alpha": sum(rate["alpha_ppm"] for rate in rates) / len(rates) / 1e6,
        "cnps": rates[-1]["cnps_handled"] - rates[0]["cnps_handled"],
        "seconds": span,
        "again": last["counters"]["retransmitted_packets"],
    }


main(*sys.argv[1:])
