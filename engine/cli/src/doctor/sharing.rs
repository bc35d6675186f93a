//! Who else wants the interface's RoCE traffic: other programs, other XDP programs, the kernel's rxe.

use feroce_engine::device::owner_of;
use feroce_engine::net::Interface;
use feroce_engine::port::af_xdp::AttachedProgram;

use super::interface::Place;
use super::{Check, Verdict};

/// RoCEv2's UDP port, as `/proc/net/udp` writes it.
const ROCE_PORT: &str = "12B7";

/// The checks.
pub const CHECKS: &[Check<Place>] = &[
    Check { id: "owner", what: "a Feroce program that has it open", run: owner },
    Check { id: "xdp-program", what: "XDP programs of others", run: xdp_program },
    Check { id: "rxe", what: "the kernel's own RoCE (rxe)", run: rxe },
    Check { id: "udp-4791", what: "sockets on RoCE's UDP port", run: udp_4791 },
];

fn owner(place: &Place) -> Option<Verdict> {
    place.found()?;
    match owner_of(&place.name) {
        None => Verdict::ok("none"),
        Some(owner) => Verdict::warning(
            format!("{owner}: a second one will be refused"),
            format!(
                "`feroce stat -i {}` shows what it does; `kill {}` ends it; several programs on a host: docs/programs.md",
                place.name, owner.pid
            ),
        ),
    }
}

fn xdp_program(place: &Place) -> Option<Verdict> {
    let index = place.found()?.index;
    if !place.host.could_open("af_xdp") {
        return None;
    }
    match AttachedProgram::of(index) {
        None => Verdict::ok("none"),
        Some(AttachedProgram { owner: Some(_), .. }) => Verdict::ok("only Feroce's"),
        // Who may not look at programs sees that there is one, and here whose it must be.
        Some(AttachedProgram { name: None, .. }) if owner_of(&place.name).is_some() => {
            Verdict::ok("only Feroce's")
        }
        Some(AttachedProgram { name, .. }) => {
            let name = name.unwrap_or_else(|| "one without a name that we may see".to_owned());
            place.no_af_xdp(
                format!("{name}, and an interface has one at a time"),
                format!(
                    "`bpftool net` shows it; stop its owner, or `ip link set dev {} xdp off`",
                    place.name
                ),
            )
        }
    }
}

fn rxe(place: &Place) -> Option<Verdict> {
    place.found()?;
    let devices = std::fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
    let on_interface = |device: &std::fs::DirEntry| {
        let name = std::fs::read_to_string(device.path().join("ports/1/gid_attrs/ndevs/0"));
        name.is_ok_and(|name| name.trim() == place.name)
    };
    match devices.into_iter().find(on_interface) {
        None => Verdict::ok("not here"),
        Some(device) => {
            let device = device.file_name().to_string_lossy().into_owned();
            Verdict::warning(
                format!("{device} is on this interface: the two take each other's packets"),
                format!("`rdma link delete {device}` (a hardware RNIC needs no Feroce)"),
            )
        }
    }
}

/// With AF_XDP, such a socket gets nothing; the packet port cannot be opened beside it.
fn udp_4791(place: &Place) -> Option<Verdict> {
    place.found()?;
    let Some(who) = &place.roce_socket else { return Verdict::ok("none") };
    let remedy = "stop it, or use another interface in a network namespace of its own";
    match place.host.could_open("af_xdp") {
        true => Verdict::warning(
            format!(
                "{who}: with AF_XDP it gets nothing, and the packet port does not open beside it"
            ),
            remedy,
        ),
        false => Verdict::error(format!("{who}: the packet port does not open beside it"), remedy),
    }
}

/// Who has a socket on RoCE's UDP port in this network namespace, besides the Feroce programs on `interfaces`: these share it.
pub fn roce_socket(interfaces: &[Interface]) -> Option<String> {
    let read =
        |file| std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
    let tables = read("udp") + &read("udp6");
    let mut holders = tables.lines().filter_map(inode_on_roce_port).map(holder_of).peekable();
    holders.peek()?;
    let owners = interfaces.iter().filter_map(|one| owner_of(&one.name)).map(|owner| owner.pid);
    let owners: Vec<_> = owners.collect();
    let stranger = |holder: &Option<i32>| holder.is_none_or(|pid| !owners.contains(&pid));
    let holder = holders.find(stranger)?;
    Some(holder.map_or_else(
        || "the kernel (rxe?) or a process that we may not look into".to_owned(),
        |pid| format!("process {pid} ({})", program(pid)),
    ))
}

/// The inode of the socket in a line of `/proc/net/udp`, if it is bound to RoCE's port.
fn inode_on_roce_port(line: &str) -> Option<u64> {
    let columns: Vec<_> = line.split_whitespace().collect();
    let (_, port) = columns.get(1)?.rsplit_once(':')?;
    (port == ROCE_PORT).then(|| columns.get(9)?.parse().ok())?
}

/// The process that has the socket with this inode open, if it can be found.
fn holder_of(inode: u64) -> Option<i32> {
    let link = format!("socket:[{inode}]");
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(|pid: &i32| {
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let targets = open.filter_map(|fd| std::fs::read_link(fd.path()).ok());
        targets.into_iter().any(|target| target.as_os_str() == link.as_str())
    })
}

fn program(pid: i32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    name.map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_found_by_port() {
        let line = "  1: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  0  0 4321 2 0 0";
        assert_eq!(inode_on_roce_port(line), Some(4321));
        let other = line.replace("12B7", "12B8");
        assert_eq!(inode_on_roce_port(&other), None);
        assert_eq!(inode_on_roce_port("  sl  local_address rem_address   st tx_queue"), None);
    }
}
