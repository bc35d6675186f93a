//! Snapshots and rates as text.

use comfy_table::{Cell, CellAlignment, Table, presets};
use feroce_engine::device::stat::{QueuePairFigures, RateFigures, Snapshot};

use super::rates::Rates;

/// A snapshot as text.
pub fn whole(snapshot: &Snapshot) -> String {
    let mut text = head(snapshot);
    text += &cores(snapshot);
    let counted = snapshot.counters.iter().filter(|(_, value)| **value > 0);
    let lines = counted.map(|(name, value)| format!("    {:<32}{value}\n", format!("{name}:")));
    text += &lines.collect::<String>();
    if let Some(qps) = &snapshot.queue_pairs {
        text += &queue_pairs(qps);
    }
    text
}

/// The screen of `--watch`, redrawn for each interval.
pub fn screen(devices: &[(&Snapshot, Rates)]) -> String {
    let mut text = String::new();
    for (snapshot, rates) in devices {
        text += &head(snapshot);
        text += &format!("{}\n{}\n", heading(), line(rates));
        for (name, rate) in &rates.counters_per_second {
            text += &format!("    {:<32}{rate:.0}/s\n", format!("{name}:"));
        }
        if let Some(qps) = &snapshot.queue_pairs {
            text += &queue_pairs(qps);
        }
    }
    text
}

/// The header line for [`line()`].
pub fn heading() -> String {
    format!(
        "{:<16}{:>10}{:>12}{:>10}{:>12}{:>10}{:>10}  {}",
        "interface",
        "rx Gb/s",
        "rx pkt/s",
        "tx Gb/s",
        "tx pkt/s",
        "rx drop/s",
        "tx drop/s",
        "errors per second"
    )
}

/// Counters of errors and retransmissions that a line shows if they changed.
const ERRORS: [&str; 10] = [
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "implied_nak_seq_err",
    "out_of_buffer",
    "rx_icrc_encapsulated",
    "rx_discards",
    "retransmitted_packets",
    "req_cqe_error",
];

/// The rates of an interval in one line.
pub fn line(rates: &Rates) -> String {
    let errors = ERRORS.iter().filter_map(|name| {
        rates.counters_per_second.get(*name).map(|rate| format!("{name} {rate:.0}"))
    });
    let errors = errors.collect::<Vec<_>>().join(", ");
    let line = format!(
        "{:<16}{:>10.3}{:>12.0}{:>10.3}{:>12.0}{:>10.0}{:>10.0}  {errors}",
        rates.interface,
        rates.rx_bits_per_second / 1e9,
        rates.rx_packets_per_second,
        rates.tx_bits_per_second / 1e9,
        rates.tx_packets_per_second,
        rates.rx_dropped_per_second,
        rates.tx_dropped_per_second,
    );
    line.trim_end().to_owned()
}

fn head(snapshot: &Snapshot) -> String {
    let rate = snapshot
        .link_rate
        .map_or("unknown".to_owned(), |rate| format!("{} Mb/s", rate / 1_000_000));
    let active_mtu = snapshot.active_mtu.map_or("none".to_owned(), |mtu| mtu.to_string());
    let mib = |bytes: usize| bytes >> 20;
    let rows = [
        (
            "program",
            format!("{} (pid {}, Feroce {})", snapshot.program, snapshot.pid, snapshot.feroce),
        ),
        ("port", format!("{}, link rate {rate}", snapshot.port)),
        ("path MTU", format!("{active_mtu} (interface MTU {})", snapshot.mtu)),
        ("open for", format!("{} s", snapshot.nanos / 1_000_000_000)),
        ("queue pairs", snapshot.qps.to_string()),
        ("CM listeners", snapshot.listeners.to_string()),
        (
            "arena",
            format!(
                "{} MiB used of {} MiB mapped ({} MiB in hugepages), limit {} MiB",
                mib(snapshot.arena_used),
                mib(snapshot.arena_mapped),
                mib(snapshot.arena_huge),
                mib(snapshot.arena_limit)
            ),
        ),
        ("events lost", snapshot.events_lost.to_string()),
        ("congestion", snapshot.congestion.clone()),
    ];
    let rows = rows.map(|(name, value)| format!("    {:<16}{value}\n", format!("{name}:")));
    format!("interface: {}\n{}", snapshot.interface, rows.concat())
}

fn cores(snapshot: &Snapshot) -> String {
    let header = [
        "    core",
        "queues",
        "rx frames",
        "rx bytes",
        "rx dropped",
        "tx frames",
        "tx bytes",
        "tx dropped",
    ];
    let rows = snapshot.cores.iter().enumerate().map(|(core, figures)| {
        let values = [
            u64::from(figures.queues),
            figures.rx_frames,
            figures.rx_bytes,
            figures.rx_dropped,
            figures.tx_frames,
            figures.tx_bytes,
            figures.tx_dropped,
        ];
        std::iter::once(core.to_string()).chain(values.map(|value| value.to_string())).collect()
    });
    table(&header, rows)
}

/// A table with one line per QP.
pub fn queue_pairs(qps: &[QueuePairFigures]) -> String {
    let header = [
        "    QP", "core", "state", "peer", "peer QP", "MTU", "una", "next", "expected", "packets",
        "sends", "receives", "reads", "retries", "rnr", "ssn", "msn", "max Mb/s", "target",
        "alpha", "CNPs in", "CNPs out", "CE in",
    ];
    let hex = |number: u32| format!("{number:#x}");
    let rows = qps.iter().map(|qp| {
        let rnr =
            if qp.waits_for_receive { "waits".to_owned() } else { qp.rnr_retries.to_string() };
        vec![
            hex(qp.qpn),
            qp.core.to_string(),
            qp.state.clone(),
            qp.peer.clone().unwrap_or_else(|| "-".to_owned()),
            qp.peer_qpn.map_or_else(|| "-".to_owned(), hex),
            qp.path_mtu.to_string(),
            hex(qp.unacknowledged_psn),
            hex(qp.next_psn),
            hex(qp.expected_psn),
            qp.packets_outstanding.to_string(),
            qp.sends_posted.to_string(),
            qp.receives_posted.to_string(),
            qp.reads_in_flight.to_string(),
            qp.retries.to_string(),
            rnr,
            qp.ssn.to_string(),
            qp.msn.to_string(),
        ]
        .into_iter()
        .chain(rate(qp.rate.as_ref()))
        .collect()
    });
    table(&header, rows)
}

/// The rate columns of a QP; empty without congestion control.
fn rate(rate: Option<&RateFigures>) -> [String; 6] {
    let Some(rate) = rate else { return [const { String::new() }; 6] };
    let none = || "-".to_owned();
    let megabits = |bits: u64| format!("{}.{:01}", bits / 1_000_000, bits / 100_000 % 10);
    let parts = |ppm: u32| format!("{}.{:04}", ppm / 1_000_000, ppm / 100 % 10_000);
    [
        megabits(rate.rate),
        rate.target.map_or_else(none, megabits),
        rate.alpha_ppm.map_or_else(none, parts),
        rate.cnps_handled.to_string(),
        rate.cnps_sent.to_string(),
        rate.marked.to_string(),
    ]
}

fn table(header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_content_arrangement(comfy_table::ContentArrangement::Disabled);
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    table.set_header(header.iter().map(|name| right((*name).to_owned())));
    for row in rows {
        table.add_row(row.into_iter().map(right));
    }
    table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::figures::samples::snapshot;

    #[test]
    fn a_line_has_rates_and_errors() {
        let rates = Rates::between(&snapshot(0, 0, 0), &snapshot(1_000_000_000, 1_000_000, 5));
        let line = line(&rates);
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(words[..3], ["eth0", "16.000", "2000000"]);
        assert!(line.ends_with("packet_seq_err 5"), "{line}");
    }

    #[test]
    fn only_nonzero_counters_are_shown() {
        let shown = whole(&snapshot(5_000_000_000, 1, 0));
        assert!(shown.contains("tx_acks:") && !shown.contains("packet_seq_err"), "{shown}");
        assert!(shown.contains("open for:       5 s"), "{shown}");
    }

    #[test]
    fn error_names_are_counters() {
        let names = feroce_engine::counters::Counter::ALL.iter().map(|counter| counter.name());
        let names: Vec<_> = names.collect();
        assert!(ERRORS.iter().all(|name| names.contains(name)));
    }
}
