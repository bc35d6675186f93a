//! Figures of this network namespace for `stat`, `top` and `metrics`: of programs, which serve
//! their own, and of daemons.

#[cfg(any(feature = "top", feature = "metrics"))]
mod gather;
#[cfg(test)]
pub mod samples;

use std::thread;

use feroce_engine::daemon::{self, DaemonStat};
use feroce_engine::device::stat::{self, Request, Snapshot, StatError};
use feroce_engine::net::{Interface, NetError};
use serde::Serialize;

use crate::failure::Failure;

#[cfg(any(feature = "top", feature = "metrics"))]
pub use gather::Figures;

/// Programs or daemons queried in parallel.
const AT_ONCE: usize = 32;

/// The figures of a daemon.
#[derive(Debug, Clone, Serialize)]
pub struct DaemonFigures {
    pub interface: String,
    pub pid: i32,
    #[serde(flatten)]
    pub stat: DaemonStat,
}

/// Queries the program that serves figures under `name`: an interface, or `interface@process`.
pub fn program(name: &str, request: &Request) -> Result<Snapshot, Failure> {
    stat::query(name, request).map_err(|error| {
        let StatError::NoEndpoint { .. } = error else { return error.into() };
        match Interface::read(name.split('@').next().unwrap_or(name)) {
            Err(cause @ NetError::NoSuchInterface { .. }) => cause.into(),
            _ => error.into(),
        }
    })
}

/// Queries the programs that serve figures under `names`.
pub fn programs(names: &[String], request: &Request) -> Vec<Result<Snapshot, StatError>> {
    let query = |name: &String| stat::query(name, request);
    names.chunks(AT_ONCE).flat_map(|some| in_parallel(some, query)).collect()
}

/// Queries the daemon of `interface`, or all daemons. An error comes with the interface.
///
/// # Errors
/// The directory of the sockets cannot be read.
pub fn daemons(
    interface: Option<&str>,
) -> std::io::Result<Vec<Result<DaemonFigures, (String, std::io::Error)>>> {
    let mut running = daemon::running(None)?;
    running.retain(|daemon| interface.is_none_or(|name| daemon.interface == name));
    let query = |daemon: &daemon::Running| {
        let (interface, pid) = (daemon.interface.clone(), daemon.pid);
        match daemon.stat() {
            Ok(stat) => Ok(DaemonFigures { interface, pid, stat }),
            Err(error) => Err((interface, error)),
        }
    };
    Ok(running.chunks(AT_ONCE).flat_map(|some| in_parallel(some, query)).collect())
}

/// Calls `query` for each of `all` in a thread of its own: a stopped process does not answer, and
/// must not delay the others.
fn in_parallel<A: Sync, R: Send>(all: &[A], query: impl Fn(&A) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let query = &query;
        let queries: Vec<_> = all
            .iter()
            .map(|one| feroce_threads::spawn_scoped(scope, "feroce-query", move || query(one)))
            .collect();
        queries
            .into_iter()
            .map(|response| response.expect("a thread").join().expect("no panic"))
            .collect()
    })
}
