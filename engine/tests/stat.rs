//! Statistics that a device serves to `feroce stat`, on a veth pair in a network namespace of the
//! test. A device serves them only while it is open, and not at all if its configuration turns this
//! off. Without root, each test prints a message and passes.

use std::process::Command;

use feroce_engine::device::stat::{Request, StatError, endpoints, query};
use feroce_engine::device::{Device, DeviceConfig, Driver, QpInit};
use nix::sched::{CloneFlags, unshare};

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split_whitespace()).status();
    assert!(status.expect("the `ip` program").success(), "ip {arguments}");
}

/// Runs `test` on a thread with its own network namespace, which disappears with the thread.
fn in_own_namespace(test: fn()) {
    let run = move || {
        if unshare(CloneFlags::CLONE_NEWNET).is_err() {
            feroce_test_skip::skip("a network namespace needs root");
            return;
        }
        ip("link add v0 type veth peer name v1");
        ip("address add 10.8.0.1/24 dev v0");
        ip("link set v0 up");
        ip("link set v1 up");
        test();
    };
    std::thread::spawn(run).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

fn figures() -> Result<feroce_engine::device::stat::Snapshot, StatError> {
    query("v0", &Request { queue_pairs: true, ..Request::default() })
}

#[test]
fn statistics_are_served_while_the_device_is_open() {
    in_own_namespace(|| {
        assert!(matches!(figures(), Err(StatError::NoEndpoint { .. })));
        assert!(endpoints().is_empty());
        let device = Device::open("v0", DeviceConfig::default()).expect("a device");
        assert_eq!(endpoints(), ["v0"]);
        let cq = device.create_cq(8).expect("a CQ");
        let pd = device.alloc_pd();
        let qps: Vec<_> =
            (0..200).map(|_| pd.create_qp(&QpInit::new(&cq)).expect("a QP")).collect();
        let shown = figures().expect("figures");
        assert_eq!((shown.qps, shown.pid), (200, std::process::id()));
        let shown = shown.queue_pairs.expect("requested");
        let numbers: Vec<_> = shown.iter().map(|qp| qp.qpn).collect();
        let mut expected: Vec<_> = qps.iter().map(|qp| qp.qpn().value()).collect();
        expected.sort_unstable();
        assert_eq!(numbers, expected, "more QPs than one round covers, each once");
        assert!(shown.iter().all(|qp| qp.state == "RESET" && qp.peer.is_none()));
        assert_eq!(query("v0", &Request::default()).expect("figures").queue_pairs, None);
        drop(qps);
        assert_eq!(figures().expect("figures").qps, 0);
        drop((device, cq, pd));
        assert!(matches!(figures(), Err(StatError::NoEndpoint { .. })));
    });
}

#[test]
fn statistics_can_be_turned_off() {
    in_own_namespace(|| {
        let quiet = DeviceConfig { serve_stat: false, ..DeviceConfig::default() };
        let manual = DeviceConfig { driver: Driver::Manual, ..DeviceConfig::default() };
        for config in [quiet, manual] {
            let device = Device::open("v0", config).expect("a device");
            let own = i32::try_from(std::process::id()).expect("a pid");
            assert!(
                matches!(figures(), Err(StatError::NotServed { owner, .. }) if owner.pid == own)
            );
            drop(device);
        }
    });
}

#[test]
fn silent_or_invalid_clients_do_no_harm() {
    use std::io::{Read, Write};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixStream};
    in_own_namespace(|| {
        let device = Device::open("v0", DeviceConfig::default()).expect("a device");
        let address = SocketAddr::from_abstract_name("feroce/stat/v0").expect("a name");
        let connect = || UnixStream::connect_addr(&address).expect("a connection");
        let silent = connect();
        let mut invalid = connect();
        invalid.write_all(&[b'x'; 100]).and_then(|()| invalid.write_all(b"\n")).expect("taken");
        let mut response = String::new();
        invalid.read_to_string(&mut response).expect("a response");
        assert!(response.contains("no request"), "{response}");
        drop(silent);
        assert!(figures().is_ok());
        drop(device);
    });
}
