//! Selects the sockets that become rsockets, and their sizes: the file `preload_config`, and the
//! environment.
//!
//! A line of the file is `PROGRAM DOMAIN TYPE PROTOCOL`; each field may be `*`. PROGRAM is a prefix
//! of the program's name. Without lines, all sockets are selected.

use std::ffi::c_int;
use std::sync::OnceLock;

const FILE: &str = "/etc/rdma/rsocket/preload_config";

/// A line of the file; `None` stands for `*`.
#[derive(Debug)]
struct Rule {
    program: Option<String>,
    domain: Option<c_int>,
    kind: Option<c_int>,
    protocol: Option<c_int>,
}

/// Parses a field of a line: `*`, or a name in one of its spellings. Returns `None` if it is
/// neither.
fn parse_field(text: &str, prefixes: &[&str], names: &[(&str, c_int)]) -> Option<Option<c_int>> {
    if text == "*" {
        return Some(None);
    }
    let upper = text.to_ascii_uppercase();
    let bare = prefixes.iter().find_map(|prefix| upper.strip_prefix(prefix)).unwrap_or(&upper);
    let (_, value) = names.iter().find(|(name, _)| *name == bare)?;
    Some(Some(*value))
}

impl Rule {
    fn parse(line: &str) -> Option<Self> {
        if line.starts_with('#') {
            return None;
        }
        let mut words = line.split_whitespace();
        let program = words.next()?;
        let domains = [("INET", libc::AF_INET), ("INET6", libc::AF_INET6), ("IB", libc::AF_IB)];
        let kinds = [("STREAM", libc::SOCK_STREAM), ("DGRAM", libc::SOCK_DGRAM)];
        let protocols = [("TCP", libc::IPPROTO_TCP), ("UDP", libc::IPPROTO_UDP)];
        Some(Self {
            program: (program != "*").then(|| program.to_owned()),
            domain: parse_field(words.next()?, &["AF_", "PF_"], &domains)?,
            kind: parse_field(words.next()?, &["SOCK_"], &kinds)?,
            protocol: parse_field(words.next()?, &["IPPROTO_"], &protocols)?,
        })
    }

    fn matches(&self, program: &str, domain: c_int, kind: c_int, protocol: c_int) -> bool {
        let is_program = self.program.as_ref().is_none_or(|name| {
            let begin = program.get(..name.len());
            begin.is_some_and(|begin| begin.eq_ignore_ascii_case(name))
        });
        is_program
            && self.domain.is_none_or(|wanted| wanted == domain)
            && self.kind.is_none_or(|wanted| wanted == kind)
            && self.protocol.is_none_or(|wanted| wanted == protocol)
    }
}

/// Returns true if a socket should be an rsocket.
pub fn is_selected(domain: c_int, kind: c_int, protocol: c_int) -> bool {
    static RULES: OnceLock<Vec<Rule>> = OnceLock::new();
    let rules = RULES.get_or_init(|| {
        let text = std::fs::read_to_string(FILE).unwrap_or_default();
        text.lines().filter_map(Rule::parse).collect()
    });
    let protocol = match (protocol, kind) {
        (0, libc::SOCK_STREAM) => libc::IPPROTO_TCP,
        (0, libc::SOCK_DGRAM) => libc::IPPROTO_UDP,
        _ => protocol,
    };
    let executable = std::env::current_exe().unwrap_or_default();
    let program = executable.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    rules.is_empty() || rules.iter().any(|rule| rule.matches(program, domain, kind, protocol))
}

/// Returns a number from the environment, 0 if it is not set.
fn number(name: &str) -> c_int {
    std::env::var(name).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Returns the `SOL_RDMA` options to set on each rsocket, with their values from the environment.
pub fn sizes() -> &'static [(c_int, c_int)] {
    static SIZES: OnceLock<Vec<(c_int, c_int)>> = OnceLock::new();
    SIZES.get_or_init(|| {
        let names = [(0, "RS_SQ_SIZE"), (1, "RS_RQ_SIZE"), (2, "RS_INLINE")];
        let sizes = names.map(|(option, name)| (option, number(name)));
        sizes.into_iter().filter(|&(_, size)| size != 0).collect()
    })
}

/// Returns true if connections are established in the process that first uses them
/// (`RDMAV_FORK_SAFE`).
pub fn forks() -> bool {
    static FORKS: OnceLock<bool> = OnceLock::new();
    *FORKS.get_or_init(|| number("RDMAV_FORK_SAFE") != 0)
}
