//! Paths of RDMA CM that are known from an earlier connection, while the host's addresses change.
//! The test uses network namespaces and needs root.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use feroce_engine::cm::{CmConfig, DeviceKey, EventKind, QpKind, Status, Unresolved};
use feroce_engine::device::{CmEventQueue, ConnectionManager, Device, PortKind};
use feroce_engine::verbs::AsyncEvent;
use feroce_tests::live::{self, Net};
use feroce_wire::cm::PortSpace;

/// Time allowed on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Resolves `destination` as `rdma_resolve_addr` does. Returns the status of the event.
fn resolve(manager: &ConnectionManager, events: &CmEventQueue, destination: SocketAddr) -> Status {
    let id = manager.with(|endpoint, _| {
        let id = endpoint.create(PortSpace::Tcp, QpKind::Rc);
        endpoint.resolve_address(id, None, destination).expect("a new identifier");
        id
    });
    let timeout = feroce_engine::time::Duration::from_millis(500);
    let any = IpAddr::from(Ipv4Addr::UNSPECIFIED);
    manager.start_resolve(id, any, destination, timeout).expect("a thread");
    let end = Instant::now() + TEST_TIMEOUT;
    let event = loop {
        match events.poll_event() {
            Some(event) if event.id == id => break event,
            _ => assert!(Instant::now() < end, "no event"),
        }
        std::thread::yield_now();
    };
    manager.with(|endpoint, now| endpoint.destroy(id, now)).expect("it exists");
    let is_resolved = event.kind == EventKind::AddrResolved;
    assert_eq!(is_resolved, event.status == Status::Success, "{event:?}");
    event.status
}

fn expect_gid_change(device: &Device) {
    let end = Instant::now() + TEST_TIMEOUT;
    while device.poll_event() != Some(AsyncEvent::GidChange) {
        assert!(Instant::now() < end, "no event");
        std::thread::yield_now();
    }
}

/// A known path is not used after the address at either end has gone, and is found again when the
/// address is back.
#[test]
fn known_paths_end_with_the_address() {
    let Some(net) = Net::new() else { return };
    net.enter(0);
    let (name, config) = live::device(0, PortKind::Packet);
    let device = Device::open(&name, config).expect("a device");
    let events = CmEventQueue::new().expect("a descriptor");
    let manager = ConnectionManager::new(CmConfig::default(), events.sink()).expect("random");
    manager.attach(DeviceKey(0), &device).expect("QP 1 is free");
    let peer = SocketAddr::from(([10, 77, 0, 2], 7471));
    for _ in 0..3 {
        assert_eq!(resolve(&manager, &events, peer), Status::Success);
    }
    net.ip(0, "address del 10.77.0.1/24 dev v0");
    expect_gid_change(&device);
    // The event comes before the paths are looked up again.
    std::thread::sleep(Duration::from_millis(50));
    let status = resolve(&manager, &events, peer);
    assert!(matches!(status, Status::Unresolved(_)), "{status:?}");
    net.ip(0, "address add 10.77.0.1/24 dev v0");
    expect_gid_change(&device);
    assert_eq!(resolve(&manager, &events, peer), Status::Success);

    // The peer does not answer any more: Linux finds out when it asks.
    net.ip(1, "address del 10.77.0.2/24 dev v1");
    net.ip(0, "neighbour del 10.77.0.2 dev v0");
    std::thread::sleep(Duration::from_millis(50));
    let status = resolve(&manager, &events, peer);
    assert_eq!(status, Status::Unresolved(Unresolved::NoAnswer));
}
