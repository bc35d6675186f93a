//! `feroce metrics`: the figures of programs and daemons for Prometheus, over HTTP.
//!
//! Input: requests for /metrics, and the figures that `feroce stat` and `feroce stat --daemon`
//! show. Output: Prometheus' text format. `table.rs` lists the metrics, `export.rs` writes them,
//! `server.rs` serves requests (`request.rs`) at the socket of `listen.rs`.

mod export;
mod listen;
mod request;
mod server;
mod table;
#[cfg(test)]
mod tests;

use std::rc::Rc;

use clap::Args;
use feroce_engine::time::{Clock, Duration, Instant};

use crate::failure::Failure;
use crate::figures::Figures;
use crate::up::parse_mode;
use crate::{output, privileges, signal};
use listen::{Address, Listener};
use request::{Request, Status};
use server::Server;

/// Figures are read at most this often: reading them takes each core's token for a moment.
const FRESH: Duration = Duration::from_millis(250);

/// Options of `feroce metrics`.
#[derive(Debug, Args)]
#[command(after_help = "\
Serves the figures of programs and daemons in the network namespace where it runs, and needs no \
privilege: a user reads the figures of the user's own programs, root those of all. Every user of \
the host can read from a loopback address; a Unix socket has permissions, and can be reached from \
other network namespaces. docs/metrics.md lists the metrics; docs/grafana/feroce.json is a \
dashboard for them.")]
pub struct Options {
    /// Address and port, or the path of a Unix socket
    #[arg(short, long, value_name = "ADDR:PORT|unix:PATH", default_value = "127.0.0.1:4791")]
    listen: Address,
    /// Allow an address that other hosts can reach
    #[arg(long)]
    remote: bool,
    /// Permissions of the Unix socket, octal
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = parse_mode)]
    mode: u32,
    /// Show only this interface [default: all in this network namespace]
    #[arg(short, long, value_name = "IFACE")]
    interface: Option<String>,
    /// Print the metrics once instead, for example for node_exporter's textfile collector
    #[arg(long, conflicts_with_all = ["listen", "remote", "mode"])]
    once: bool,
}

/// Serves metrics until a signal ends the process.
pub fn run(options: &Options) -> Result<(), Failure> {
    if options.once {
        let text = text(options, &mut Vec::new())?;
        return output::bytes(text.as_bytes());
    }
    let address = &options.listen;
    if !address.is_local() && !options.remote {
        return Err(Failure::Usage(format!(
            "{address} is no loopback address: with --remote, every host that reaches it may read \
             the metrics"
        )));
    }
    signal::watch();
    let plan = |action: &str, error: &dyn std::fmt::Display| {
        Failure::Plan(format!("cannot {action} {address}: {error}"))
    };
    let listener =
        Listener::open(address, options.mode).map_err(|error| plan("listen at", &error))?;
    privileges::give_up(None)?;
    let socket = listener.socket().map_err(|error| plan("listen at", &error))?;
    let mut server = Server::new(socket).map_err(|error| plan("serve", &error))?;
    output::line(&format!("serving {}", listener.address))?;
    let mut cache = Cache { options, clock: Clock::start(), latest: None, errors: Vec::new() };
    while !signal::interrupted() {
        server.turn(|request| cache.respond(request)).map_err(|error| plan("serve", &error))?;
    }
    Ok(())
}

/// The metrics. Prints why figures are missing, unless that was printed the last time: `errors`.
fn text(options: &Options, errors: &mut Vec<String>) -> Result<String, Failure> {
    let figures = Figures::gather(options.interface.as_deref());
    if figures.errors != *errors {
        figures.errors.iter().for_each(|error| eprintln!("feroce: {error}"));
        errors.clone_from(&figures.errors);
    }
    export::text(&figures)
        .map_err(|error| Failure::Plan(format!("cannot write the metrics: {error}")))
}

/// The latest response, for all who request soon after.
struct Cache<'a> {
    options: &'a Options,
    clock: Clock,
    latest: Option<Latest>,
    /// Why figures are missing in the latest response.
    errors: Vec<String>,
}

struct Latest {
    at: Instant,
    full: Rc<[u8]>,
    /// The response to a HEAD request.
    head: Rc<[u8]>,
}

impl Cache<'_> {
    fn respond(&mut self, request: Request) -> Rc<[u8]> {
        let has_body = match request {
            Request::Metrics { has_body } => has_body,
            Request::Refused(status) => return request::error(status).into(),
        };
        let is_fresh = |latest: &Latest| self.clock.now() < latest.at + FRESH;
        if !self.latest.as_ref().is_some_and(is_fresh) {
            let Ok(text) = text(self.options, &mut self.errors) else {
                return request::error(Status::Failed).into();
            };
            let response =
                |has_body| request::response(export::CONTENT_TYPE, &text, has_body).into();
            let at = self.clock.now();
            self.latest = Some(Latest { at, full: response(true), head: response(false) });
        }
        let latest = self.latest.as_ref().expect("set above");
        Rc::clone(if has_body { &latest.full } else { &latest.head })
    }
}
