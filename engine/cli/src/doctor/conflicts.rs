//! Checks for other users of the interface's RoCE traffic: programs, XDP programs, the kernel's
//! rxe.

use feroce_engine::daemon;
use feroce_engine::device::owner_of;
use feroce_engine::port::af_xdp::AttachedProgram;

use super::check::{Check, Verdict};
use super::state::InterfaceState;

/// The checks.
pub const CHECKS: &[Check<InterfaceState>] = &[
    Check { id: "owner", what: "Feroce program on the interface", run: owner },
    Check { id: "xdp-program", what: "other XDP programs", run: xdp_program },
    Check { id: "rxe", what: "the kernel's own RoCE (rxe)", run: rxe },
    Check { id: "udp-4791", what: "sockets on RoCE's UDP port", run: udp_4791 },
];

fn owner(state: &InterfaceState) -> Option<Verdict> {
    state.found()?;
    if let Some(daemon) = daemon::of(&state.name) {
        return Verdict::ok(format!("a daemon, process {}: any number of programs", daemon.pid));
    }
    match owner_of(&state.name) {
        None => Verdict::ok("none"),
        Some(owner) => {
            let end = match owner.pid {
                0 => String::new(), // `kill 0` would end the caller's own processes.
                pid => format!("`kill {pid}` ends it; "),
            };
            Verdict::warning(
                format!("{owner}: a second program cannot open the interface"),
                format!(
                    "`feroce stat -i {0}` shows its statistics; {end}for several programs on one \
                     interface: `feroce up {0}` (docs/daemon.md)",
                    state.name
                ),
            )
        }
    }
}

fn xdp_program(state: &InterfaceState) -> Option<Verdict> {
    let index = state.found()?.index;
    if !state.host.could_open("af_xdp") {
        return None;
    }
    match AttachedProgram::of(index) {
        None => Verdict::ok("none"),
        Some(AttachedProgram { owner: Some(_), .. }) => Verdict::ok("only Feroce's"),
        // Without permission to read the program's name: if a Feroce program has the interface
        // open, the XDP program is its own.
        Some(AttachedProgram { name: None, .. }) if owner_of(&state.name).is_some() => {
            Verdict::ok("only Feroce's")
        }
        Some(AttachedProgram { name, .. }) => {
            let name =
                name.unwrap_or_else(|| "a program whose name this user may not read".to_owned());
            state.no_af_xdp(
                format!("{name}; an interface has one XDP program at a time"),
                format!(
                    "`bpftool net` shows the program; stop its owner, or `ip link set dev {} xdp \
                     off`",
                    state.name
                ),
            )
        }
    }
}

fn rxe(state: &InterfaceState) -> Option<Verdict> {
    state.found()?;
    let devices = std::fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
    let on_interface = |device: &std::fs::DirEntry| {
        let name = std::fs::read_to_string(device.path().join("ports/1/gid_attrs/ndevs/0"));
        name.is_ok_and(|name| name.trim() == state.name)
    };
    match devices.into_iter().find(on_interface) {
        None => Verdict::ok("not here"),
        Some(device) => {
            let device = device.file_name().to_string_lossy().into_owned();
            Verdict::warning(
                format!("{device} is on this interface: rxe and Feroce take each other's packets"),
                format!("`rdma link delete {device}` (a hardware RNIC needs no Feroce)"),
            )
        }
    }
}

/// With AF_XDP such a socket receives nothing. The packet port cannot be opened while the socket
/// exists.
fn udp_4791(state: &InterfaceState) -> Option<Verdict> {
    state.found()?;
    let Some(owner) = &state.roce_socket else { return Verdict::ok("none") };
    if daemon::of(&state.name).is_some() {
        return Verdict::ok("the daemon's");
    }
    let remedy = "stop the process, or use another interface in a network namespace of its own";
    match state.host.could_open("af_xdp") {
        true => Verdict::warning(
            format!(
                "{owner}: with AF_XDP the socket receives nothing; the ports packet and udp cannot \
                 open beside it"
            ),
            remedy,
        ),
        false => Verdict::error(
            format!("{owner}: the ports packet and udp cannot open beside it"),
            remedy,
        ),
    }
}
