//! The processes that hold a port of UDP or TCP in this network namespace, from /proc.

/// State of a listening TCP socket in `/proc/net/tcp`.
const LISTEN: &str = "0A";

/// The processes with sockets on a UDP port; `None` for one that this user may not inspect.
pub fn of_udp(port: u16) -> Vec<Option<i32>> {
    let tables = read("udp") + &read("udp6");
    tables.lines().filter_map(|line| inode(line, port, None)).map(holder_of).collect()
}

/// The process that listens on a TCP port, in words; empty if /proc does not show it.
pub fn of_tcp_listener(port: u16) -> String {
    let tables = read("tcp") + &read("tcp6");
    let mut holders = tables.lines().filter_map(|line| inode(line, port, Some(LISTEN)));
    holders.find_map(holder_of).map(name).unwrap_or_default()
}

/// Number and program of a process.
pub fn name(pid: i32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    let name = name.map_or_else(|_| "unknown".to_owned(), |name| name.trim().to_owned());
    format!("process {pid} ({name})")
}

fn read(table: &str) -> String {
    std::fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default()
}

/// The inode of the socket in a line of `/proc/net/udp` or `tcp`, if it is bound to `port`, in
/// `state`.
fn inode(line: &str, port: u16, state: Option<&str>) -> Option<u64> {
    let columns: Vec<_> = line.split_whitespace().collect();
    let (_, bound) = columns.get(1)?.rsplit_once(':')?;
    let is_it = u16::from_str_radix(bound, 16) == Ok(port)
        && state.is_none_or(|state| columns.get(3) == Some(&state));
    is_it.then(|| columns.get(9)?.parse().ok())?
}

/// The process that has the socket with this inode open, if /proc shows it.
fn holder_of(inode: u64) -> Option<i32> {
    let link = format!("socket:[{inode}]");
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(|pid: &i32| {
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let targets = open.filter_map(|fd| std::fs::read_link(fd.path()).ok());
        targets.into_iter().any(|target| target.as_os_str() == link.as_str())
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn sockets_are_found_by_port() {
        let line = "  1: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  \
                    0  0 4321 2 0 0";
        assert_eq!(inode(line, 4791, None), Some(4321));
        assert_eq!((inode(line, 4792, None), inode(line, 4791, Some(LISTEN))), (None, None));
        assert_eq!(inode("  sl  local_address rem_address   st tx_queue", 4791, None), None);
    }

    #[test]
    fn the_listener_of_a_port_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let expected = format!("process {} (", std::process::id());
        assert!(of_tcp_listener(port).starts_with(&expected), "{}", of_tcp_listener(port));
        drop(listener);
        assert_eq!(of_tcp_listener(port), "");
    }
}
