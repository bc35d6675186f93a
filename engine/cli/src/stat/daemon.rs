//! `feroce stat --daemon`: the programs at each daemon, with the frames that the daemon refused and
//! lost.

use comfy_table::{CellAlignment, Table, presets};
use feroce_engine::daemon::{self, DaemonStat};
use serde::Serialize;

use crate::failure::Failure;
use crate::output;

#[derive(Debug, Serialize)]
struct Row {
    interface: String,
    pid: i32,
    #[serde(flatten)]
    stat: DaemonStat,
}

/// Prints the statistics of the daemon of `interface`, or of all daemons in this network namespace.
pub fn run(interface: Option<&str>, json: bool) -> Result<(), Failure> {
    let plan = |error: std::io::Error, name: &str| {
        Failure::Plan(format!("the daemon of {name} gives no statistics: {error}"))
    };
    let mut running = daemon::running(None).map_err(|error| plan(error, "this host"))?;
    running.retain(|daemon| interface.is_none_or(|name| daemon.interface == name));
    if running.is_empty() {
        let of = interface.map_or_else(String::new, |name| format!(" of {name}"));
        let message = format!("no daemon{of} in this network namespace (`feroce up IFACE`)");
        return Err(Failure::Plan(message));
    }
    let rows = running.into_iter().map(|daemon| {
        let stat = daemon.stat().map_err(|error| plan(error, &daemon.interface))?;
        Ok(Row { interface: daemon.interface, pid: daemon.pid, stat })
    });
    let rows = rows.collect::<Result<Vec<_>, Failure>>()?;
    match json {
        true => output::json(&rows),
        false => rows.iter().try_for_each(|row| output::line(&text(row))),
    }
}

fn text(row: &Row) -> String {
    let Row { interface, pid, stat } = row;
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header([
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
    ]);
    for program in &stat.programs {
        let frames = &program.frames;
        table.add_row([
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
        ]);
    }
    table.column_iter_mut().skip(1).for_each(|column| {
        column.set_cell_alignment(CellAlignment::Right);
    });
    format!(
        "{interface}: daemon, process {pid}, {}\n    rx {} frames, {} dropped, {} for no program; \
         tx {} frames\n{}",
        stat.port,
        stat.rx_frames,
        stat.rx_dropped,
        stat.rx_undelivered,
        stat.tx_frames,
        table.trim_fmt()
    )
}
