//! Measures the engine on shm, AF_XDP, packet and UDP ports: `cargo xtask bench` runs this program.
//! Prints a line per figure (name, value, bound, `ok` or `missed`). Exit code 1 if a figure misses
//! its bound.

use std::net::TcpListener;
use std::process::ExitCode;

use feroce_engine::device::{Device, DeviceConfig, Driver, PortKind};
use feroce_engine::memory::arena::Arena;
use feroce_engine::memory::buffer::SharedBytes;
use feroce_engine::port::Port;
use feroce_engine::port::af_xdp::{AfXdp, AfXdpConfig, XdpMode};
use feroce_engine::port::packet::{PacketConfig, PacketPort, SuperFrames};
use feroce_engine::port::shm::{ShmConfig, shm_pair};
use feroce_tests::bench::link::{ADDRESSES, Link};
use feroce_tests::bench::{
    BUFFER_LEN, BULK_LEN, Bound, Figure, WRITE_LEN, bare, engine, paired, tcp, touch,
};
use feroce_tests::{MACS, addresses};
use feroce_wire::{FlowHeader, FlowSpec, IpAddresses, MacAddr};

fn main() -> ExitCode {
    let only = std::env::args().nth(1);
    let wanted = |name: &str| only.as_deref().is_none_or(|only| name.contains(only));
    let mut all_ok = true;
    let mut show = |name: String, measure: &mut dyn FnMut(&str) -> Figure| {
        if wanted(&name) {
            let figure = measure(&name);
            println!("{}", figure.line());
            all_ok &= figure.is_ok();
        }
    };
    show("shm: 4 KiB WRITE / bare loop".to_owned(), &mut shm_write);
    let modes = [(XdpMode::Native, "native"), (XdpMode::Generic, "generic")];
    for (mode, called) in modes {
        show(format!("af_xdp {called}: 4 KiB WRITE / bare loop"), &mut |name| {
            af_xdp_write(name, mode)
        });
        show(format!("af_xdp {called}: 64 B SEND half-RTT / spinning TCP"), &mut |name| {
            af_xdp_latency(name, mode)
        });
    }
    for len in READ_LENS {
        let size =
            if len < 1 << 20 { format!("{} KiB", len >> 10) } else { format!("{} MiB", len >> 20) };
        let name = format!("af_xdp native: {size} READ / WRITE");
        show(name, &mut |name| read_write(name, &af_xdp(XdpMode::Native), len));
        show(format!("packet: {size} READ / WRITE"), &mut |name| {
            read_write(name, &packet(SuperFrames::Auto), len)
        });
    }
    show("packet: 64 KiB WRITE / TCP with TSO".to_owned(), &mut packet_bulk);
    show("packet: 4 KiB WRITE / bare loop".to_owned(), &mut packet_write);
    show("packet: 64 B SEND half-RTT / spinning TCP".to_owned(), &mut packet_latency);
    show("udp / packet: 64 KiB WRITE".to_owned(), &mut udp_bulk);
    if all_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Message sizes for which READs are compared with WRITEs.
const READ_LENS: [usize; 3] = [64 << 10, 1 << 20, 64 << 20];

fn config() -> DeviceConfig {
    DeviceConfig { max_qp: 64, arena_bytes: 1 << 30, driver: Driver::Helper, ..Default::default() }
}

fn flow(end: usize, macs: [MacAddr; 2]) -> FlowHeader {
    let ip = |end: usize| ADDRESSES[end].parse().expect("an address");
    let addresses = IpAddresses::V4 { src: ip(end), dst: ip(1 - end) };
    FlowHeader::new(&FlowSpec {
        udp_source_port: 0xc001,
        ..FlowSpec::new(macs[1 - end], macs[end], addresses)
    })
}

fn gigabits(rate: f64) -> f64 {
    rate * 8.0 / 1e9
}

fn write_figure(name: &str, bound: Bound, (rate, bare, ratio): (f64, f64, f64)) -> Figure {
    let note = format!("{:.1} Gb/s of {:.1} Gb/s", gigabits(rate), gigabits(bare));
    Figure { name: name.to_owned(), value: ratio, bound, note }
}

/// Creates two buffers in the same kind of memory as the engine's buffers.
fn buffers() -> [SharedBytes; 2] {
    let arena = Arena::new(2 * BUFFER_LEN + (2 << 20)).expect("an arena");
    [(); 2].map(|()| {
        let block = arena.alloc(BUFFER_LEN, 4096).expect("room for a buffer");
        let buffer = SharedBytes::new(block, BUFFER_LEN);
        touch(&buffer);
        buffer
    })
}

/// Every measurement has new rings and buffers. Some pages of a machine are twice as fast as
/// others; with kept buffers, the pages would decide the ratio.
fn shm_write(name: &str) -> Figure {
    let make = || {
        let arena = Arena::new(256 << 20).expect("an arena");
        shm_pair(&arena, ShmConfig::default()).expect("a pair of ports")
    };
    let open =
        |end, port| Device::with_ports(vec![port], addresses(end), config()).expect("a device");
    let flows = [flow(0, MACS), flow(1, MACS)];
    let result = paired(
        || {
            let (a, b) = make();
            let devices = [open(0, Box::new(a) as Box<dyn Port>), open(1, Box::new(b))];
            let [a, b] = &devices;
            engine::write_rate(&mut engine::connect([a, b], BUFFER_LEN, [0, 0]), WRITE_LEN)
        },
        || {
            let ((mut near, mut far), [source, target]) = (make(), buffers());
            bare::write_rate(&mut near, &mut far, [&flows[0], &flows[1]], [&source, &target])
        },
    );
    write_figure(name, Bound::AtLeast(0.6), result)
}

/// Opens a device at each end of the link.
fn open_devices(link: &Link, config: &DeviceConfig) -> [Device; 2] {
    [0, 1].map(|end| {
        link.enter(end);
        Device::open("v0", config.clone()).expect("a device on the veth")
    })
}

fn af_xdp(mode: XdpMode) -> DeviceConfig {
    let af_xdp = AfXdpConfig { mode, ..AfXdpConfig::new("") };
    let config = config();
    DeviceConfig { port: PortKind::AfXdp, ports: config.ports.with(af_xdp), ..config }
}

fn packet(super_frames: SuperFrames) -> DeviceConfig {
    let packet = PacketConfig { super_frames, ..PacketConfig::new("") };
    let config = config();
    DeviceConfig { port: PortKind::Packet, ports: config.ports.with(packet), ..config }
}

fn udp() -> DeviceConfig {
    DeviceConfig { port: PortKind::Udp, ..config() }
}

/// Returns the index of the IPv4 GID. It is not 0: the link-local GID comes first.
fn ipv4_gid(device: &Device) -> u32 {
    let gids = device.gids();
    gids.iter().find(|(_, entry)| entry.gid.ip().is_ipv4()).expect("an IPv4 address").0
}

fn connect(devices: &[Device; 2], len: usize) -> [engine::End; 2] {
    let [a, b] = devices;
    engine::connect([a, b], len, [ipv4_gid(a), ipv4_gid(b)])
}

fn af_xdp_write(name: &str, mode: XdpMode) -> Figure {
    let link = Link::new();
    link.offloads_off();
    let result = paired(
        || {
            let devices = open_devices(&link, &af_xdp(mode));
            engine::write_rate(&mut connect(&devices, BUFFER_LEN), WRITE_LEN)
        },
        || {
            let mut ports = [0, 1].map(|end| {
                link.enter(end);
                let config = AfXdpConfig { mode, ..AfXdpConfig::new("v0") };
                let port = AfXdp::open(&config, 1).expect("a port").remove(0);
                let own: std::net::Ipv4Addr = ADDRESSES[end].parse().expect("an address");
                port.address_filter().set(&[own.to_ipv6_mapped()]).expect("a filter");
                port
            });
            let macs = [0, 1].map(|end| ports[end].attributes().mac);
            let flows = [flow(0, macs), flow(1, macs)];
            let [near, far] = &mut ports;
            let [source, target] = buffers();
            bare::write_rate(near, far, [&flows[0], &flows[1]], [&source, &target])
        },
    );
    write_figure(name, Bound::AtLeast(0.85), result)
}

/// READs must be about as fast as WRITEs: the work of requests and responses is the same, at
/// opposite ends.
fn read_write(name: &str, config: &DeviceConfig, len: usize) -> Figure {
    let link = Link::new();
    if config.port == PortKind::AfXdp {
        link.offloads_off();
    }
    let measure = |operation| {
        engine::rate(&mut connect(&open_devices(&link, config), BUFFER_LEN), operation, len)
    };
    let result =
        paired(|| measure(engine::BulkOperation::Read), || measure(engine::BulkOperation::Write));
    write_figure(name, Bound::AtLeast(0.9), result)
}

struct TcpStreams {
    ends: [std::net::TcpStream; 2],
}

impl TcpStreams {
    fn new(link: &Link) -> Self {
        link.enter(1);
        let address = format!("{}:5001", ADDRESSES[1]).parse().expect("an address");
        let listener = TcpListener::bind(address).expect("a TCP port");
        Self { ends: tcp::connect(&listener, address, || link.enter(0)) }
    }
}

fn af_xdp_latency(name: &str, mode: XdpMode) -> Figure {
    let link = Link::new();
    let mut tcp = TcpStreams::new(&link); // TCP runs with the default offloads.
    link.offloads_off();
    latency_figure(name, &open_devices(&link, &af_xdp(mode)), &mut tcp)
}

fn latency_figure(name: &str, devices: &[Device; 2], tcp: &mut TcpStreams) -> Figure {
    let mut ends = connect(devices, 8192);
    let (send, tcp, ratio) =
        paired(|| engine::ping_half_rtt(&mut ends), || tcp::ping_half_rtt(&mut tcp.ends));
    Figure {
        name: name.to_owned(),
        value: ratio,
        bound: Bound::AtMost(0.7),
        note: format!("{:.2} us of {:.2} us", send * 1e6, tcp * 1e6),
    }
}

/// Offloads are on for both: TCP uses segmentation offload, Feroce super-frames.
fn packet_bulk(name: &str) -> Figure {
    let link = Link::new();
    let mut tcp = TcpStreams::new(&link);
    let config = packet(SuperFrames::Auto);
    let result = paired(
        || {
            let devices = open_devices(&link, &config);
            engine::write_rate(&mut connect(&devices, BUFFER_LEN), BULK_LEN)
        },
        || {
            let mut buffers = [(); 2].map(|()| vec![1; BUFFER_LEN]);
            tcp::stream_rate(&mut tcp.ends, &mut buffers)
        },
    );
    write_figure(name, Bound::AtLeast(0.9), result)
}

fn packet_write(name: &str) -> Figure {
    let link = Link::new();
    let config = packet(SuperFrames::Off);
    let result = paired(
        || {
            let devices = open_devices(&link, &config);
            engine::write_rate(&mut connect(&devices, BUFFER_LEN), WRITE_LEN)
        },
        || {
            let mut ports = [0, 1].map(|end| {
                link.enter(end);
                let packet = config.ports.get::<PacketConfig>().clone();
                let config = PacketConfig { interface: "v0".to_owned(), ..packet };
                let port = PacketPort::open(&config, 1).expect("a port").remove(0);
                let own: std::net::Ipv4Addr = ADDRESSES[end].parse().expect("an address");
                port.address_filter().set(&[own.to_ipv6_mapped()]).expect("a filter");
                port
            });
            let macs = [0, 1].map(|end| ports[end].attributes().mac);
            let flows = [flow(0, macs), flow(1, macs)];
            let [near, far] = &mut ports;
            let [source, target] = buffers();
            bare::write_rate(near, far, [&flows[0], &flows[1]], [&source, &target])
        },
    );
    write_figure(name, Bound::AtLeast(0.85), result)
}

fn packet_latency(name: &str) -> Figure {
    let link = Link::new();
    let mut tcp = TcpStreams::new(&link);
    let mut config = packet(SuperFrames::Off);
    config.ports.get_mut::<PacketConfig>().qdisc_bypass = true;
    let devices = open_devices(&link, &config);
    latency_figure(name, &devices, &mut tcp)
}

/// Both ports send super-frames. As root, so that receive buffers hold several windows.
fn udp_bulk(name: &str) -> Figure {
    let link = Link::new();
    let rate = |config: &DeviceConfig| {
        let devices = open_devices(&link, config);
        engine::write_rate(&mut connect(&devices, BUFFER_LEN), BULK_LEN)
    };
    let result = paired(|| rate(&udp()), || rate(&packet(SuperFrames::Auto)));
    write_figure(name, Bound::AtLeast(0.5), result)
}
