//! `feroce stat --daemon`: the programs at each daemon, with the frames that the daemon refused and
//! lost, and what each user has used of the limits.

use comfy_table::{CellAlignment, Table, presets};
use feroce_engine::daemon::{Limits, UserStat};

use crate::failure::Failure;
use crate::figures::{self, DaemonFigures};
use crate::output;

/// Prints the statistics of the daemon of `interface`, or of all daemons in this network namespace.
pub fn run(interface: Option<&str>, json: bool) -> Result<(), Failure> {
    let plan = |error: std::io::Error, name: &str| {
        Failure::Plan(format!("the daemon of {name} gives no statistics: {error}"))
    };
    let daemons = figures::daemons(interface).map_err(|error| plan(error, "this host"))?;
    if daemons.is_empty() {
        let of = interface.map_or_else(String::new, |name| format!(" of {name}"));
        let message = format!("no daemon{of} in this network namespace (`feroce up IFACE`)");
        return Err(Failure::Plan(message));
    }
    let daemons =
        daemons.into_iter().map(|daemon| daemon.map_err(|(name, error)| plan(error, &name)));
    let daemons = daemons.collect::<Result<Vec<_>, Failure>>()?;
    match json {
        true => output::json(&daemons),
        false => daemons.iter().try_for_each(|daemon| output::line(&text(daemon))),
    }
}

fn text(daemon: &DaemonFigures) -> String {
    let DaemonFigures { interface, pid, stat } = daemon;
    let header = [
        "PROGRAM",
        "PID",
        "USER",
        "QP NUMBERS",
        "CONNECTIONS",
        "SERVICES",
        "RX FRAMES",
        "RX BYTES",
        "RX DROPPED",
        "TX FRAMES",
        "TX BYTES",
        "TX REFUSED",
        "TX THROTTLED",
    ];
    let rows = stat.programs.iter().map(|program| {
        let frames = &program.frames;
        vec![
            program.program.clone(),
            program.pid.to_string(),
            program.user.to_string(),
            program.qp_numbers.to_string(),
            program.connections.to_string(),
            program.services.to_string(),
            frames.rx_frames.to_string(),
            frames.rx_bytes.to_string(),
            frames.rx_dropped.to_string(),
            frames.tx_frames.to_string(),
            frames.tx_bytes.to_string(),
            frames.tx_refused.to_string(),
            frames.tx_throttled.to_string(),
        ]
    });
    let mut text = format!(
        "{interface}: daemon, process {pid}, {}\n    rx {} frames, {} dropped, {} for no program; \
         tx {} frames\n{}",
        stat.port,
        stat.rx_frames,
        stat.rx_dropped,
        stat.rx_undelivered,
        stat.tx_frames,
        table(&header, rows)
    );
    if let Some(limits) = &stat.limits {
        text += &format!("\n{}", quotas(&stat.users, limits));
    }
    text
}

/// What each user has used of the limits.
fn quotas(users: &[UserStat], limits: &Limits) -> String {
    let of = |used: u32, limit: u32| format!("{used} of {limit}");
    let rows = users.iter().map(|user| {
        let programs = of(user.programs, limits.clients);
        vec![user.user.to_string(), programs, of(user.qp_numbers, limits.qps)]
    });
    let rate = |limit: Option<u64>, what: &str| {
        limit.map_or_else(String::new, |limit| format!(", {limit} {what}/s per user"))
    };
    format!(
        "{}\n    limits: {} connections and {} services per program{}{}",
        table(&["USER", "PROGRAMS", "QP NUMBERS"], rows),
        limits.connections,
        limits.services,
        rate(limits.packets, "packets"),
        rate(limits.bytes, "bytes"),
    )
}

fn table(header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(header.iter().copied());
    rows.for_each(|row| {
        table.add_row(row);
    });
    table.column_iter_mut().skip(1).for_each(|column| {
        column.set_cell_alignment(CellAlignment::Right);
    });
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_show_use_and_limits() {
        let users = [UserStat { user: 1000, programs: 3, qp_numbers: 768 }];
        let limits = Limits { packets: Some(5000), ..Limits::default() };
        let text = quotas(&users, &limits);
        let words =
            |line: usize| text.lines().nth(line).unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(words(1), ["1000", "3", "of", "64", "768", "of", "65536"]);
        assert!(text.ends_with(
            "limits: 4096 connections and 512 services per program, 5000 packets/s per user"
        ));
    }
}
