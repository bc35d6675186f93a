//! UD, multicast and loopback over the ports of the kernel: the host joins and leaves groups, and
//! the ports receive their frames. Live, in network namespaces; needs root.

use std::process::Command;
use std::time::{Duration, Instant};

use feroce_engine::device::{
    ConnectOptions, Device, DeviceConfig, Path, PortKind, ProtectionDomain, QpInit,
};
use feroce_engine::memory::Access;
use feroce_engine::net::Gid;
use feroce_engine::verbs::{Completion, Data, SendFlags, SendOp, SendRequest, Status};
use feroce_tests::datagram::DatagramQp;
use feroce_tests::live::{ADDRESSES, INTERFACES, Net, small_config};
use feroce_wire::{Psn, Qpn};

const PORTS: [PortKind; 2] = [PortKind::AfXdp, PortKind::Packet];
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// A device on end `end` with a UD QP. Calls that use the host's network run on the test's thread,
/// in the namespace of `end`.
struct Host {
    end: usize,
    device: Device,
    pd: ProtectionDomain,
    datagrams: DatagramQp,
}

fn host(net: &Net, end: usize, port: PortKind) -> Host {
    net.enter(end);
    let config = DeviceConfig { port, ..small_config() };
    let device = Device::open(INTERFACES[end], config).expect("a device");
    let pd = device.alloc_pd();
    let datagrams = DatagramQp::new(&device, &pd, |_| {});
    Host { end, device, pd, datagrams }
}

impl Host {
    /// Returns the index of the GID of the same IP version as `to`.
    fn gid_index(&self, to: Gid) -> u32 {
        let family = |gid: Gid| gid.ip().is_ipv4();
        let own = self.device.gids();
        own.iter().find(|(_, entry)| family(entry.gid) == family(to)).expect("a GID").0
    }

    fn send(&mut self, net: &Net, payload: &[u8], to: Gid, qpn: Qpn) {
        net.enter(self.end);
        let ah = self.pd.create_ah(&Path::new(to, self.gid_index(to))).expect("a path");
        self.datagrams.send(SendOp::Send, payload, &ah, qpn).expect("room");
    }

    /// Waits for `count` datagrams and returns their payloads.
    fn receive(&mut self, count: usize) -> Vec<Vec<u8>> {
        let start = Instant::now();
        let mut payloads = Vec::new();
        while payloads.len() < count {
            assert!(
                start.elapsed() < TEST_TIMEOUT,
                "{} of {count} datagrams arrived",
                payloads.len()
            );
            for done in self.datagrams.done() {
                assert_eq!(done.status, Status::Success);
                if done.datagram.is_some() {
                    payloads.push(self.datagrams.received(&done).1);
                }
            }
        }
        payloads
    }
}

/// Returns the multicast groups of the host's interface, as `ip` lists them.
fn memberships(net: &Net, end: usize) -> String {
    net.enter(end);
    let shown = Command::new("ip").args(["maddress", "show", "dev", INTERFACES[end]]).output();
    String::from_utf8(shown.expect("the `ip` program").stdout).expect("text")
}

#[test]
fn datagrams_and_multicast_groups_work_between_hosts() {
    for port in PORTS {
        let Some(net) = Net::new() else { return };
        let mut hosts = [0, 1].map(|end| host(&net, end, port));
        hosts.iter_mut().for_each(|host| host.datagrams.receive(8));
        let qpn = hosts[1].datagrams.qp.qpn();
        hosts[0].send(&net, b"unicast", ADDRESSES[1].parse().unwrap(), qpn);
        assert_eq!(hosts[1].receive(1), [b"unicast"], "{port}");

        for (group, mac) in
            [("239.77.1.2", "01:00:5e:4d:01:02"), ("ff0e::77:12", "33:33:00:77:00:12")]
        {
            let gid: Gid = group.parse().unwrap();
            assert!(!memberships(&net, 1).contains(group), "{port}");
            for host in &hosts {
                net.enter(host.end);
                host.datagrams.qp.attach_multicast(gid).expect("attached");
            }
            let joined = memberships(&net, 1);
            assert!(joined.contains(group) && joined.contains(mac), "{port}: {joined}");
            hosts[0].send(&net, group.as_bytes(), gid, Qpn::MULTICAST);
            for host in &mut hosts {
                assert_eq!(host.receive(1), [group.as_bytes()], "{port}: end {}", host.end);
            }
            for host in &hosts {
                net.enter(host.end);
                host.datagrams.qp.detach_multicast(gid).expect("detached");
            }
            assert!(!memberships(&net, 1).contains(group), "{port}: left");
        }
    }
}

/// Two QPs of one device. No frame may appear on the link.
#[test]
fn loopback_traffic_stays_off_the_link() {
    for port in PORTS {
        let Some(net) = Net::new() else { return };
        let mut host = host(&net, 0, port);
        let own: Gid = ADDRESSES[0].parse().unwrap();
        let sgid_index = host.gid_index(own);
        let cqs = [0, 1].map(|_| host.device.create_cq(64).unwrap());
        let buffers = [0, 1].map(|_| host.pd.alloc_buffer(1 << 20, Access::ALL).unwrap());
        let mut qps = [0, 1].map(|end: usize| host.pd.create_qp(&QpInit::new(&cqs[end])).unwrap());
        let options = ConnectOptions { sgid_index, ..ConnectOptions::default() };
        let psn = Psn::new(1);
        let ends = [0, 1].map(|end: usize| qps[end].endpoint(psn, sgid_index).unwrap());
        for end in 0..2 {
            qps[end].connect(psn, &ends[1 - end], &options).unwrap();
        }
        buffers[0].write(0, &[9; 1 << 20]);
        let remote = feroce_engine::verbs::RemoteAddr {
            addr: buffers[1].region().addr(),
            rkey: buffers[1].region().rkey(),
        };
        let sges = [buffers[0].region().sge(0, 1 << 20)];
        let (op, data, flags) = (SendOp::Write(remote), Data::Sges(&sges), SendFlags::SIGNALED);
        qps[0].post_send(&SendRequest { wr_id: 1, op, data, flags }).unwrap();
        let start = Instant::now();
        let done: Completion = loop {
            if let Some(done) = cqs[0].poll_one() {
                break done;
            }
            assert!(start.elapsed() < TEST_TIMEOUT, "{port}: the WRITE does not complete");
        };
        assert_eq!(done.status, Status::Success, "{port}");
        let mut last = [0];
        buffers[1].read((1 << 20) - 1, &mut last);
        assert_eq!(last, [9], "{port}");

        host.datagrams.receive(1);
        let qpn = host.datagrams.qp.qpn();
        host.send(&net, b"to myself", own, qpn);
        assert_eq!(host.receive(1), [b"to myself"], "{port}");
        assert_eq!(host.device.port_stats()[0].tx_frames, 0, "{port}: nothing on the link");
    }
}
