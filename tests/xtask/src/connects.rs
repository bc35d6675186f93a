//! How many connections per second programs make and end: runs `tests/programs/connects.c`.

use std::path::Path;
use std::time::Duration;

use crate::Result;
use crate::net::{Namespace, Pair};
use crate::process::{Process, run_into, words};
use crate::setup::Work;

/// The program, without the extension of its source.
pub const PROGRAM: &str = "connects";

/// A figure.
#[derive(Debug)]
pub struct Connects {
    /// Name of the figure.
    pub name: &'static str,
    /// Connections per second that it needs at least.
    pub least: f64,
    /// Words of the server; empty without one.
    server: &'static str,
    /// Words of the client.
    client: &'static str,
}

/// The figures.
pub const FIGURES: &[Connects] = &[
    Connects {
        name: "connections: verbs, one peer",
        least: 20_000.0,
        server: "",
        client: "verbs 10.77.0.2 10000",
    },
    Connects {
        name: "connections: RDMA CM, 32 at once",
        least: 5_000.0,
        server: "server 10.77.0.2",
        client: "client 10.77.0.2 10000 32",
    },
];

impl Connects {
    /// Runs the programs. Returns the connections per second, if the client printed them.
    pub fn rate(&self, work: &Work, pair: &Pair, feroce: &Path) -> Result<Option<f64>> {
        let program = work.file(PROGRAM);
        let line = |namespace: &Namespace, interface: &str, what: &str| {
            let (name, feroce, program) = (namespace.name(), feroce.display(), program.display());
            words(&format!(
                "timeout 60 ip netns exec {name} {feroce} run --quiet --interface {interface} -- \
                 {program} {what}"
            ))
        };
        let (server_log, client_log) = (work.file("server"), work.file("client"));
        let server = match self.server {
            "" => None,
            what => Some(Process::spawn_into(&mut line(&pair.b, "v1", what), &server_log)?),
        };
        for _ in 0..200 {
            if server.is_none() || std::fs::read_to_string(&server_log)?.contains("listens") {
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let code = run_into(&mut line(&pair.a, "v0", self.client), &client_log)?;
        let printed = std::fs::read_to_string(&client_log)?;
        if code != 0 {
            eprint!("{printed}");
        }
        if let Some(server) = server {
            server.wait()?;
        }
        Ok(printed.split(" connections/s").next().and_then(|rate| rate.trim().parse().ok()))
    }
}
