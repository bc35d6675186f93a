//! Prints a plan as text, as JSON, and as configuration.

use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Map, Value, json};

use super::formulas::{Formula, mlxsw_delay};
use super::{Column, Options, Output, Plan, Thresholds, Xon, sonic};

pub(super) fn write(out: &mut impl Write, options: &Options, plan: &Plan) -> io::Result<()> {
    match options.output {
        Output::Text => text(out, options, plan),
        Output::Json => document(out, &as_json(options, plan)),
        Output::Dcb => dcb(out, options, plan),
        Output::Sonic => document(out, &sonic::tables(options, plan)),
    }
}

fn document(out: &mut impl Write, value: &Value) -> io::Result<()> {
    writeln!(out, "{value:#}")
}

/// A row of the table: its name, and its value in a column.
type Row = (&'static str, fn(&Thresholds) -> String);

const ROWS: [Row; 7] = [
    ("headroom, all classes and ports", |t| t.headroom.to_string()),
    ("rest of the buffer", |t| t.shared.to_string()),
    ("max. lossless classes", |t| t.classes_max.to_string()),
    ("max. static XOFF", |t| t.xoff_static.to_string()),
    ("static: ECN below", |t| t.ecn_static.to_string()),
    ("dynamic XOFF, empty switch", |t| t.xoff_dynamic.to_string()),
    ("dynamic: ECN below", |t| t.ecn_dynamic.to_string()),
];

type XonRow = (&'static str, fn(&Xon) -> u64);

const XON_ROWS: [XonRow; 2] = [
    ("static XON, a frame below XOFF", |xon| xon.fixed),
    ("dynamic XON, empty switch", |xon| xon.dynamic),
];

fn text(out: &mut impl Write, options: &Options, plan: &Plan) -> io::Result<()> {
    let switch = options.switch();
    writeln!(
        out,
        "{} Mb/s, {} m of cable, lossless frames up to {} B, others up to {} B; {} lossless \
         classes on {} ports, {} B of buffer. All values in bytes.",
        options.rate.bits_per_second() / 1_000_000,
        options.cable,
        options.mtu,
        options.port_mtu,
        switch.classes,
        switch.ports,
        switch.buffer
    )?;
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let names = plan.columns.iter().map(|column| column.name);
    table.set_header([""].into_iter().chain(names));
    let row = |name: &str, value: &dyn Fn(&Column) -> Option<String>| {
        let cells = plan.columns.iter().map(|column| value(column).unwrap_or_else(|| "-".into()));
        [name.to_owned()].into_iter().chain(cells).collect::<Vec<_>>()
    };
    table.add_row(row("headroom per class and port", &|column| {
        column.headroom.as_ref().ok().map(|headroom| headroom.bytes.to_string())
    }));
    for (name, value) in ROWS {
        table.add_row(row(name, &|column| column.thresholds.as_ref().map(value)));
    }
    for (name, of) in XON_ROWS {
        table.add_row(row(name, &|column| column.xon.as_ref().map(|xon| of(xon).to_string())));
    }
    for column in 1..=plan.columns.len() {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    writeln!(out, "{table}\n")?;
    for column in &plan.columns {
        match &column.headroom {
            Ok(headroom) => {
                let parts: Vec<_> =
                    headroom.parts.iter().map(|(name, bytes)| format!("{name} {bytes}")).collect();
                writeln!(out, "{}: {}", column.name, parts.join(", "))?;
            }
            Err(why) => writeln!(out, "{}: {why}", column.name)?,
        }
    }
    let by = format!("{} ({})", plan.columns[plan.chosen].name, plan.reason);
    writeln!(out)?;
    match plan.objections.is_empty() {
        true => writeln!(
            out,
            "By {by}: the buffer suffices, and ECN marks (from {} B) before PFC pauses.",
            options.kmin
        ),
        false => plan.objections.iter().try_for_each(|text| writeln!(out, "By {by}: {text}.")),
    }
}

fn as_json(options: &Options, plan: &Plan) -> Value {
    let formulas: Map<String, Value> = plan
        .columns
        .iter()
        .map(|column| {
            let value = match &column.headroom {
                Ok(headroom) => {
                    let parts: Map<_, _> = headroom
                        .parts
                        .iter()
                        .map(|&(name, bytes)| (name.to_owned(), bytes.into()))
                        .collect();
                    json!({
                        "headroom": headroom.bytes,
                        "parts": parts,
                        "thresholds": column.thresholds,
                        "xon": column.xon,
                    })
                }
                Err(why) => json!({ "unknown": why }),
            };
            (column.name.to_owned(), value)
        })
        .collect();
    json!({
        "rate": options.rate.bits_per_second(),
        "cable_m": options.cable,
        "mtu": options.mtu,
        "port_mtu": options.port_mtu,
        "buffer": options.buffer,
        "ports": options.ports,
        "priorities": options.priorities(),
        "kmin": options.kmin,
        "kmax": options.kmax,
        "thresholds": if options.is_static { "static" } else { "dynamic" },
        "by": plan.columns[plan.chosen].name,
        "reason": plan.reason,
        "formulas": formulas,
        "objections": plan.objections,
    })
}

/// A separate buffer for each lossless priority: its headroom and two frames.
fn dcb(out: &mut impl Write, options: &Options, plan: &Plan) -> io::Result<()> {
    let (name, priorities) = (options.interface(), options.priorities());
    let list = |of: &dyn Fn(usize, u8) -> String| {
        priorities.iter().enumerate().map(|(at, &p)| of(at, p)).collect::<Vec<_>>().join(" ")
    };
    writeln!(out, "# PFC for the lossless priorities only; PAUSE must be off.")?;
    writeln!(out, "ethtool -A {name} rx off tx off")?;
    writeln!(out, "dcb pfc set dev {name} prio-pfc all:off {}", list(&|_, p| format!("{p}:on")))?;
    let is_mlxsw = plan.columns[plan.chosen].name == Formula::Mlxsw.name();
    if let Some(delay) = is_mlxsw.then(|| mlxsw_delay(&options.link()).ok()).flatten() {
        // The delay has 16 bits in DCB.
        let (bits, max) = (8 * delay, u64::from(u16::MAX));
        writeln!(out, "# The delay is {bits} bits; DCB accepts at most {max}.")?;
        writeln!(out, "dcb pfc set dev {name} delay {}", bits.min(max))?;
    }
    writeln!(
        out,
        "# One buffer for each: two frames, and {} B of headroom ({}).",
        plan.headroom(),
        plan.columns[plan.chosen].name
    )?;
    writeln!(
        out,
        "dcb buffer set dev {name} prio-buffer all:0 {}",
        list(&|at, p| format!("{p}:{}", at + 1))
    )?;
    let size = plan.headroom() + 2 * options.mtu;
    let lossy = 2 * options.port_mtu;
    writeln!(
        out,
        "dcb buffer set dev {name} buffer-size all:0 0:{lossy} {}",
        list(&|at, _| format!("{}:{size}", at + 1))
    )
}
