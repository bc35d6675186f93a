//! Shared by the examples: options, a device at each end, and a TCP stream for exchanging
//! connection parameters.
//!
//! Without options, an example runs both ends in one process over shared memory:
//!
//! ```text
//! cargo run --release --example pingpong
//! cargo run --release --example pingpong -- --drop 0.01 --seed 7 --pcap pingpong.pcap
//! ```
//!
//! With an interface, it runs one end: `pingpong -i eth0` is the server, `pingpong -i eth0 SERVER`
//! the client.

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use clap::Parser;
use feroce_engine::device::{
    Addressing, Buffer, CompletionQueue, ConnectOptions, Device, DeviceConfig, Endpoint, OpenError,
    QueuePair, StaticAddresses,
};
use feroce_engine::files;
use feroce_engine::memory::arena::Arena;
use feroce_engine::net::Gid;
use feroce_engine::port::Port;
use feroce_engine::port::fault::{FaultPort, Faults};
use feroce_engine::port::pcap::PcapPort;
use feroce_engine::port::shm::{ShmConfig, shm_pair};
use feroce_engine::verbs::{Completion, RemoteAddr};
use feroce_wire::{Key, Psn, Qpn};

/// Result of an example.
pub type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Parser)]
struct Options {
    /// Run one end only, on this interface (AF_XDP, needs root) [default: both ends over shared
    /// memory]
    #[arg(short, long, value_name = "IFACE")]
    interface: Option<String>,
    /// The other end; without it, wait for a connection
    #[arg(requires = "interface")]
    server: Option<String>,
    /// TCP port to listen on or to connect to
    #[arg(short, long, default_value_t = 18600)]
    port: u16,
    /// Write the frames that cross the port to this file (with both ends: the client's port)
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Share of sent frames to drop, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    drop: f64,
    /// Seed of the losses
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// One end of an example.
pub struct End {
    /// The device.
    pub device: Device,
    /// Local address, as an index of the GID table.
    gid_index: u32,
    stream: BufReader<Box<dyn Stream>>,
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// Runs the end or ends that the command line selects.
pub fn run(client: fn(&mut End) -> Outcome, server: fn(&mut End) -> Outcome) -> Outcome {
    let options = Options::parse();
    match (&options.interface, &options.server) {
        (None, _) => {
            let [mut calling, mut waiting] = ends_in_memory(&options)?;
            std::thread::scope(|scope| {
                let serving = scope.spawn(move || server(&mut waiting));
                client(&mut calling)?;
                serving.join().expect("a server that does not panic")
            })
        }
        (Some(interface), None) => {
            let device = open(interface, &options)?;
            println!("waiting on TCP port {}", options.port);
            let (stream, _) = TcpListener::bind((Ipv4Addr::UNSPECIFIED, options.port))?.accept()?;
            server(&mut on_interface(device, stream)?)
        }
        (Some(interface), Some(server)) => {
            let device = open(interface, &options)?;
            let stream = TcpStream::connect((server.as_str(), options.port))?;
            client(&mut on_interface(device, stream)?)
        }
    }
}

fn open(interface: &str, options: &Options) -> Outcome<Device> {
    let wrap = &mut |port| {
        wrap(port, options, true).map_err(|error| OpenError::System {
            action: "wrap the port",
            source: std::io::Error::other(error),
        })
    };
    Ok(Device::open_wrapped(interface, DeviceConfig::default(), wrap)?)
}

fn on_interface(device: Device, stream: TcpStream) -> Outcome<End> {
    let own = Gid::from(stream.local_addr()?.ip());
    let gid = device.gids().into_iter().find(|(_, entry)| entry.gid == own);
    let (gid_index, _) = gid.ok_or("the connection to the peer does not use the interface")?;
    Ok(End { device, gid_index, stream: BufReader::new(Box::new(stream)) })
}

/// Makes two devices in this process, connected by rings in shared memory.
fn ends_in_memory(options: &Options) -> Outcome<[End; 2]> {
    let config = ShmConfig::default();
    let (mtu, macs) = (config.mtu, config.macs);
    let gids = [1, 2].map(|host| Gid::from(Ipv4Addr::new(10, 0, 0, host)));
    let (near, far) = shm_pair(&Arena::new(64 << 20)?, config)?;
    let (calling, waiting) = UnixStream::pair()?;
    let end = |port: Box<dyn Port>, own: usize, stream: UnixStream| -> Outcome<End> {
        let addresses = StaticAddresses {
            mac: macs[own],
            gids: vec![(gids[own], None)],
            peers: [(gids[1 - own], macs[1 - own])].into(),
            mtu,
        };
        let port = wrap(port, options, own == 0)?;
        let device =
            Device::with_ports(vec![port], Addressing::Static(addresses), DeviceConfig::default())?;
        Ok(End { device, gid_index: 0, stream: BufReader::new(Box::new(stream)) })
    };
    Ok([end(Box::new(near), 0, calling)?, end(Box::new(far), 1, waiting)?])
}

/// Wraps `port`. The capture is next to the link and the losses are next to the device, so the
/// capture shows only the frames that are really sent.
fn wrap(mut port: Box<dyn Port>, options: &Options, captured: bool) -> Outcome<Box<dyn Port>> {
    if let Some(path) = options.pcap.as_ref().filter(|_| captured) {
        port = Box::new(PcapPort::new(port, files::create_private(path)?, u32::MAX)?);
    }
    if options.drop > 0.0 {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        // Saturates; checked below.
        let loss = (options.drop * 1e6) as u32;
        let faults = Faults { loss, ..Faults::default() };
        port = Box::new(FaultPort::new(port, faults, options.seed)?);
    }
    Ok(port)
}

impl End {
    /// Connects `qp` to the other end's QP. Sends the address of `buffer` to the other end; returns
    /// the address of the other end's buffer.
    pub fn connect(&mut self, qp: &mut QueuePair, buffer: &Buffer) -> Outcome<RemoteAddr> {
        let psn = self.device.random_psn()?;
        let own = qp.endpoint(psn, self.gid_index)?;
        let region = buffer.region();
        let (qpn, rkey) = (own.qpn.value(), region.rkey().value());
        self.send_line(&format!("{qpn} {} {} {} {rkey}", psn.value(), own.gid, region.addr()))?;

        let line = self.receive_line()?;
        let mut words = line.split_whitespace();
        let mut word = || words.next().ok_or("a short line");
        let qpn = Qpn::masked(word()?.parse()?);
        let peer = Endpoint::new(qpn, Psn::new(word()?.parse()?), word()?.parse()?);
        let remote = RemoteAddr { addr: word()?.parse()?, rkey: Key(word()?.parse()?) };

        let options = ConnectOptions { sgid_index: self.gid_index, ..ConnectOptions::default() };
        qp.connect(psn, &peer, &options)?;
        self.synchronise()?; // No request may arrive before its QP is connected.
        Ok(remote)
    }

    /// Waits until the other end also reaches this call.
    pub fn synchronise(&mut self) -> Outcome {
        self.send_line("here")?;
        self.receive_line().map(|_| ())
    }

    fn send_line(&mut self, line: &str) -> Outcome {
        Ok(writeln!(self.stream.get_mut(), "{line}")?)
    }

    fn receive_line(&mut self) -> Outcome<String> {
        let mut line = String::new();
        match self.stream.read_line(&mut line)? {
            0 => Err("the other end is gone".into()),
            _ => Ok(line),
        }
    }
}

/// Polls until a request completes.
pub fn completion(cq: &CompletionQueue) -> Outcome<Completion> {
    loop {
        match cq.poll_one() {
            Some(completion) if completion.is_success() => return Ok(completion),
            Some(failed) => return Err(failed.status.text().into()),
            None => std::hint::spin_loop(),
        }
    }
}
