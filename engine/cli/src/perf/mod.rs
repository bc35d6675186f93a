//! `feroce perf`: bandwidth and latency between two hosts.

mod bandwidth;
mod clients;
mod data;
mod depth;
pub mod error;
mod exchange;
mod latency;
mod message;
mod options;
mod plan;
mod report;
mod results;
mod rounds;
mod session;
mod setup;
mod tcp;
mod watch;

use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};

use feroce_engine::net::Gid;
use feroce_wire::PathMtu;

pub use options::Options;

use crate::failure::{self, Failure};
use crate::open::OpenDevice;
use crate::{privileges, signal, socket_holder};
use clients::Clients;
use error::{ExchangeError, PerfError};
use exchange::Control;
use message::Message;
use plan::{Plan, Transport};
use report::Report;
use rounds::Bench;
use session::Session;
use setup::Setup;

/// Runs a test as the client or as the server.
pub fn run(options: &Options) -> Result<(), Failure> {
    signal::watch();
    let settings = options.settings()?;
    let plan = options.test.plan(&settings)?;
    options.check(&settings, plan.transport)?;
    // Listens first: a port below 1024 requires a privilege that opening the device drops.
    let listener = options.server.is_none().then(|| listen(options.port)).transpose()?;
    let device = match plan.transport {
        Transport::Roce => {
            Some(options.open.open(&settings, |config| setup::limits(&settings, config))?)
        }
        Transport::Tcp => {
            privileges::give_up(privileges::find_of(&settings)?.as_ref())?;
            None
        }
    };
    let run = match (&options.server, &listener) {
        (Some(server), _) => {
            Control::connect(server, options.port).map_err(Failure::from).and_then(|mut control| {
                let run = run_client(options, &plan, device.as_ref(), &mut control);
                report_failure(&mut control, run)
            })
        }
        (None, listener) => serve(options, listener.as_ref().expect("bound"), device.as_ref()),
    };
    match device.map_or(Ok(()), OpenDevice::close) {
        Err(_) if run.is_err() => run,
        closed => run.and(closed),
    }
}

/// The listening socket for clients.
fn listen(port: u16) -> Result<TcpListener, Failure> {
    let failed = |source| {
        let holder = socket_holder::of_tcp_listener(port);
        ExchangeError::Listen { port, holder, source }
    };
    // Without IPv6, its wildcard address cannot be bound.
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
        .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
        .map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

/// Reports the reason of a failure to the peer.
fn report_failure(control: &mut Control, run: Result<(), Failure>) -> Result<(), Failure> {
    match &run {
        Ok(()) | Err(Failure::Perf(PerfError::Exchange(_))) => {}
        Err(failure) => {
            let wrong_data = matches!(failure, Failure::Perf(error) if error.is_wrong_data());
            control.give_up(&failure::chain(failure), wrong_data);
        }
    }
    run
}

/// Serves one client, or with `--persist` one after another until Ctrl-C.
fn serve(
    options: &Options,
    listener: &TcpListener,
    device: Option<&OpenDevice>,
) -> Result<(), Failure> {
    let failed =
        |source| ExchangeError::Listen { port: options.port, holder: String::new(), source };
    let mut clients = Clients::new(listener);
    loop {
        eprintln!("feroce: waiting for a client on TCP port {}", options.port);
        let Some((stream, peer)) = clients.next().map_err(failed)? else {
            return Ok(()); // Ctrl-C while no test was running.
        };
        let served = Control::greet(stream, peer).map_err(Failure::from).and_then(|mut control| {
            let run = run_server(options, device, &mut control);
            report_failure(&mut control, run)
        });
        match served {
            Err(Failure::Perf(PerfError::Interrupted)) => {
                return Err(PerfError::Interrupted.into());
            }
            Err(failure) if options.persist => eprintln!("feroce: {}", failure::chain(&failure)),
            served if !options.persist => return served,
            _ => {}
        }
    }
}

fn run_client(
    options: &Options,
    plan: &Plan,
    device: Option<&OpenDevice>,
    control: &mut Control,
) -> Result<(), Failure> {
    let active_mtu = active_mtu(device)?;
    control.send(&Message::Plan { plan: plan.clone(), active_mtu })?;
    let theirs = match control.receive()? {
        Message::Agreed { active_mtu } => active_mtu,
        other => return Err(control.unexpected(&other).into()),
    };
    let mut report = Report::new(options.json, options.report_gbits, plan);
    let mut bench = prepare(options, plan, device, control, active_mtu.min(theirs), &mut report)?;
    let run = rounds::lead(&mut bench, plan, control, &mut report);
    if matches!(run, Ok(()) | Err(Failure::Perf(PerfError::Interrupted))) {
        report.end(device)?;
    }
    run
}

fn run_server(
    options: &Options,
    device: Option<&OpenDevice>,
    control: &mut Control,
) -> Result<(), Failure> {
    let (plan, theirs) = match control.receive()? {
        Message::Plan { plan, active_mtu } => (plan, active_mtu),
        other => return Err(control.unexpected(&other).into()),
    };
    if let Some(detail) = plan.contradiction() {
        return Err(control.invalid(detail).into());
    }
    if let Some(conflict) = options.test.conflict_with(&plan) {
        return Err(Failure::Plan(format!("the two sides do not agree: {conflict}")));
    }
    let needed = match plan.transport {
        Transport::Roce => device,
        Transport::Tcp => None,
    };
    if plan.transport == Transport::Roce && device.is_none() {
        let detail =
            "the two sides do not agree: the server has no interface, but the client tests RoCE";
        return Err(Failure::Plan(detail.to_owned()));
    }
    let active_mtu = active_mtu(needed)?;
    control.send(&Message::Agreed { active_mtu })?;
    let mut report = Report::new(options.json, options.report_gbits, &plan);
    let mut bench = prepare(options, &plan, needed, control, active_mtu.min(theirs), &mut report)?;
    rounds::follow(&mut bench, &plan, control, &mut report)?;
    report.end(needed)
}

/// The largest path MTU of the device's port in bytes; 0 without a device.
fn active_mtu(device: Option<&OpenDevice>) -> Result<u32, Failure> {
    let Some(device) = device else { return Ok(0) };
    let attributes = device.device.attributes();
    attributes.active_mtu.map(PathMtu::bytes).ok_or_else(|| {
        let least = PathMtu::Mtu256.bytes() + PathMtu::OVERHEAD;
        Failure::Plan(format!(
            "interface {} has an MTU of {}: RoCE needs at least {least} (`ip link set {} mtu N`)",
            device.interface, attributes.mtu, device.interface
        ))
    })
}

/// Creates the test's QPs and buffers and connects them.
fn prepare(
    options: &Options,
    plan: &Plan,
    device: Option<&OpenDevice>,
    control: &mut Control,
    active_mtu: u32,
    report: &mut Report,
) -> Result<Bench, Failure> {
    let Some(device) = device else {
        report.head(plan, None)?;
        return Ok(Bench::Tcp);
    };
    let is_client = options.server.is_some();
    let active = PathMtu::from_bytes(active_mtu);
    let active = active.ok_or_else(|| control.invalid("an invalid path MTU"))?;
    let path_mtu = plan.path_mtu(active)?;
    let sgid_index = match options.gid_index {
        Some(index) => index,
        None => gid_of_connection(device, control)?,
    };
    let mut setup = Setup::new(control, plan.qps);
    let mut session = Session::new(device, plan, is_client, sgid_index, path_mtu, &mut setup)?;
    let created = setup.end();
    let own = session.side()?;
    control.send(&Message::Side(own.clone()))?;
    let peer = match control.receive()? {
        Message::Side(side) => side,
        other => return Err(control.unexpected(&other).into()),
    };
    let mut setup = Setup::new(control, plan.qps);
    let connected = session.connect(&peer, &mut setup)?;
    let times = [created, setup.end()];
    if connected.is_none() {
        return Err(control.invalid("QPs that do not match this side").into());
    }
    control.send(&Message::Connected)?;
    match control.receive()? {
        Message::Connected => {}
        other => return Err(control.unexpected(&other).into()),
    }
    report.setup(times);
    report.head(plan, Some((path_mtu.bytes(), device, &own, &peer)))?;
    Ok(Bench::Roce(Box::new(session)))
}

/// The index of the GID whose address the control connection uses: the peer can reach that address.
/// A port without a kernel interface has no kernel address; there it is the first routable GID.
fn gid_of_connection(device: &OpenDevice, control: &Control) -> Result<u32, Failure> {
    if !device.settings.port_kind.is_on_kernel() {
        return Ok(device.device.default_gid_index());
    }
    let address = control.local()?.ip();
    let gid = Gid::from(address);
    let found = device.device.gids().into_iter().find(|(_, entry)| entry.gid == gid);
    found.map(|(index, _)| index).ok_or_else(|| {
        let interface = &device.interface;
        Failure::Plan(format!(
            "{address}, the local address towards {}, is not on {interface}: use an address of the \
             peer that is reached through {interface}, or choose a GID with -x (`feroce devinfo \
             -i {interface}` lists them)",
            control.peer().ip()
        ))
    })
}
