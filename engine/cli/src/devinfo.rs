//! `feroce devinfo`: each interface as an RNIC.

use std::path::Path;

use clap::Args;
use comfy_table::{Cell, CellAlignment, Table, presets};
use feroce_engine::device::settings::Settings;
use feroce_engine::device::{
    Device, DeviceAttributes, DeviceConfig, MAX_CQE, MAX_DEVICE_MEMORY, MAX_INLINE, MAX_WR, Owner,
    owner_of,
};
use feroce_engine::net::{GidEntry, GidTable, Interface};
use feroce_engine::qp::RD_ATOMIC;
use feroce_engine::verbs::{MAX_MESSAGE, MAX_SGE};
use feroce_wire::PathMtu;
use serde::Serialize;

use crate::failure::Failure;
use crate::output;

/// Options of `feroce devinfo`.
#[derive(Debug, Args)]
pub struct Options {
    /// Show only this interface [default: every Ethernet interface of the network namespace]
    #[arg(short, long, value_name = "IFACE")]
    interface: Option<String>,
    /// Open the device with the host's settings and show the result: port mode, link rate. Requires
    /// privileges and an unused interface
    #[arg(short, long)]
    verbose: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// An interface as an RNIC.
#[derive(Debug, Serialize)]
struct Info {
    interface: String,
    node_guid: String,
    state: &'static str,
    /// The process that has the interface open.
    in_use_by: Option<Holder>,
    /// Kind and mode of the port, if opened.
    port: Option<String>,
    /// Why the port has this kind.
    port_reason: Option<String>,
    link_rate_bits_per_second: Option<u64>,
    interface_mtu: u32,
    max_mtu: u32,
    active_mtu: Option<u32>,
    max_qp: u32,
    max_qp_wr: u32,
    max_sge: u32,
    max_inline_data: u32,
    max_cqe: u32,
    max_mr: u32,
    max_cq: u32,
    max_pd: u32,
    max_qp_rd_atom: u8,
    max_msg_sz: u64,
    gids: Vec<GidRow>,
}

#[derive(Debug, Serialize)]
struct Holder {
    pid: i32,
    program: String,
}

#[derive(Debug, Serialize)]
struct GidRow {
    index: u32,
    gid: String,
    r#type: &'static str,
    address: String,
    vlan: Option<u16>,
    interface: String,
}

/// Prints the interfaces.
pub fn run(options: &Options) -> Result<(), Failure> {
    let config = Settings::load()?.device_config();
    let interfaces = match &options.interface {
        Some(name) => vec![not_loopback(Interface::read(name)?)?],
        None => Interface::list()?.into_iter().filter(is_device).collect(),
    };
    let infos = interfaces.iter().map(|interface| match options.verbose {
        true => opened(interface, config.clone()),
        false => unopened(interface, &config),
    });
    let infos = infos.collect::<Result<Vec<_>, _>>()?;
    if options.json {
        return output::json(&infos);
    }
    if infos.is_empty() {
        return output::line("this network namespace has no Ethernet interface");
    }
    infos.iter().try_for_each(|info| output::line(&text(info)))
}

fn not_loopback(interface: Interface) -> Result<Interface, Failure> {
    match interface.loopback {
        true => Err(Failure::Plan(format!(
            "{} is the loopback interface, which has no Ethernet: for tests, use two network \
             namespaces and a veth pair",
            interface.name
        ))),
        false => Ok(interface),
    }
}

/// A VLAN sub-interface is served by the interface that carries its frames.
fn is_device(interface: &Interface) -> bool {
    !interface.loopback && interface.vlan.is_none()
}

/// The kernel's tables, and the limits of a device with these settings.
fn unopened(interface: &Interface, config: &DeviceConfig) -> Result<Info, Failure> {
    let table = GidTable::read(&interface.name)?;
    let index = |index: usize| u32::try_from(index).expect("a GID table is short");
    let gids = table.iter().map(|(at, entry)| (index(at), entry.clone())).collect();
    let attributes = DeviceAttributes {
        node_guid: node_guid(interface),
        max_qp: config.max_qp,
        max_qp_wr: MAX_WR,
        max_sge: u32::try_from(MAX_SGE).expect("small"),
        max_inline: MAX_INLINE,
        max_cqe: MAX_CQE,
        max_mr: config.max_mr,
        max_cq: config.max_cq,
        max_pd: config.max_pd,
        max_srq: config.max_srq,
        max_ah: config.max_ah,
        max_srq_wr: MAX_WR,
        max_device_memory: MAX_DEVICE_MEMORY,
        max_qp_rd_atom: RD_ATOMIC,
        max_message: MAX_MESSAGE,
        active_mtu: PathMtu::largest_for(interface.mtu),
        mtu: interface.mtu,
        link_rate: rate_in_sysfs(interface),
        port: String::new(),
        port_reason: String::new(),
        cores: config.cores,
        super_frames: None,
    };
    Ok(info(interface, &attributes, gids, owner_of(&interface.name)))
}

fn opened(interface: &Interface, config: DeviceConfig) -> Result<Info, Failure> {
    let device = Device::open(&interface.name, config)?;
    Ok(info(interface, &device.attributes(), device.gids(), None))
}

fn info(
    interface: &Interface,
    attributes: &DeviceAttributes,
    gids: Vec<(u32, GidEntry)>,
    owner: Option<Owner>,
) -> Info {
    Info {
        interface: interface.name.clone(),
        node_guid: guid(attributes.node_guid),
        state: if interface.is_usable() { "PORT_ACTIVE" } else { "PORT_DOWN" },
        in_use_by: owner.map(|Owner { pid, program, .. }| Holder { pid, program }),
        port: Some(attributes.port.clone()).filter(|port| !port.is_empty()),
        port_reason: Some(attributes.port_reason.clone()).filter(|reason| !reason.is_empty()),
        link_rate_bits_per_second: attributes.link_rate,
        interface_mtu: attributes.mtu,
        max_mtu: PathMtu::Mtu4096.bytes(),
        active_mtu: attributes.active_mtu.map(PathMtu::bytes),
        max_qp: attributes.max_qp,
        max_qp_wr: attributes.max_qp_wr,
        max_sge: attributes.max_sge,
        max_inline_data: attributes.max_inline,
        max_cqe: attributes.max_cqe,
        max_mr: attributes.max_mr,
        max_cq: attributes.max_cq,
        max_pd: attributes.max_pd,
        max_qp_rd_atom: attributes.max_qp_rd_atom,
        max_msg_sz: attributes.max_message,
        gids: gids.into_iter().map(gid_row).collect(),
    }
}

/// The node GUID of a device on `interface`.
pub fn node_guid(interface: &Interface) -> u64 {
    u64::from_be_bytes(interface.mac.eui64())
}

/// A node GUID as text.
pub fn guid(guid: u64) -> String {
    let bytes = guid.to_be_bytes().map(|byte| format!("{byte:02x}"));
    bytes.chunks(2).map(<[String]>::concat).collect::<Vec<_>>().join(":")
}

fn gid_row((index, entry): (u32, GidEntry)) -> GidRow {
    GidRow {
        index,
        gid: entry.gid.to_string(),
        r#type: "RoCE v2",
        address: entry.gid.ip().to_string(),
        vlan: entry.vlan,
        interface: entry.interface_name,
    }
}

/// The link rate in bit/s from sysfs. Sysfs may show another network namespace than the thread's,
/// so index and address of the interface must match.
pub fn rate_in_sysfs(interface: &Interface) -> Option<u64> {
    let place = Path::new("/sys/class/net").join(&interface.name);
    let read = |file| std::fs::read_to_string(place.join(file)).ok();
    let same = read("ifindex")?.trim() == interface.index.to_string()
        && read("address")?.trim() == interface.mac.to_string();
    let megabits: u64 = read("speed").filter(|_| same)?.trim().parse().ok()?;
    (megabits > 0).then_some(megabits * 1_000_000)
}

fn text(info: &Info) -> String {
    let unknown = || "unknown".to_owned();
    let rate = info.link_rate_bits_per_second;
    let mtu = info.active_mtu.map_or_else(
        || format!("none (interface MTU {} is too small for RoCE)", info.interface_mtu),
        |mtu| format!("{mtu} (interface MTU {})", info.interface_mtu),
    );
    let in_use = info.in_use_by.as_ref();
    let in_use = in_use
        .map_or("no".to_owned(), |Holder { pid, program }| format!("by pid {pid} ({program})"));
    let port_mode = match (&info.port, &info.port_reason) {
        (Some(port), Some(reason)) => format!("{port}; {reason}"),
        (Some(port), None) => port.clone(),
        (None, _) => "not opened (-v opens it)".to_owned(),
    };
    let rows = [
        ("transport", "RoCE v2 (Ethernet)".to_owned()),
        ("node_guid", info.node_guid.clone()),
        ("in use", in_use),
        ("port mode", port_mode),
        ("state", info.state.to_owned()),
        ("link rate", rate.map_or_else(unknown, |rate| format!("{} Gb/s", as_giga(rate)))),
        ("max_mtu", info.max_mtu.to_string()),
        ("active_mtu", mtu),
        ("max_qp", info.max_qp.to_string()),
        ("max_qp_wr", info.max_qp_wr.to_string()),
        ("max_sge", info.max_sge.to_string()),
        ("max_inline_data", info.max_inline_data.to_string()),
        ("max_cqe", info.max_cqe.to_string()),
        ("max_mr", info.max_mr.to_string()),
        ("max_cq", info.max_cq.to_string()),
        ("max_pd", info.max_pd.to_string()),
        ("max_qp_rd_atom", info.max_qp_rd_atom.to_string()),
        ("max_msg_sz", format!("{:#x}", info.max_msg_sz)),
    ];
    let mut text = format!("interface: {}\n", info.interface);
    for (name, value) in rows {
        text += &format!("    {:<18}{value}\n", format!("{name}:"));
    }
    text + &gid_table(&info.gids)
}

#[allow(clippy::cast_precision_loss)] // Rates of links are far below 2^53.
fn as_giga(rate: u64) -> f64 {
    rate as f64 / 1e9
}

fn gid_table(gids: &[GidRow]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["    GID", "", "type", "address", "VLAN", "interface"]);
    for gid in gids {
        let vlan = gid.vlan.map_or("-".to_owned(), |vlan| vlan.to_string());
        let index = Cell::new(gid.index).set_alignment(CellAlignment::Right);
        let cells = [&gid.gid, gid.r#type, &gid.address, &vlan, &gid.interface].map(Cell::new);
        table.add_row(std::iter::once(index).chain(cells));
    }
    let lines = table.lines().map(|line| line.trim_end().to_owned() + "\n");
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use feroce_wire::MacAddr;

    #[test]
    fn the_guid_is_the_modified_eui_64() {
        let interface = Interface {
            index: 1,
            name: "eth0".to_owned(),
            mac: MacAddr([0x02, 0x42, 0xac, 0x11, 0x00, 0x02]),
            mtu: 1500,
            up: true,
            carrier: true,
            carrier_changes: None,
            loopback: false,
            vlan: None,
        };
        assert_eq!(guid(node_guid(&interface)), "0042:acff:fe11:0002");
    }
}
