//! Communication management over QP 1 with real threads: two devices connect a pair of QPs, send a
//! message over them, and resolve a service ID.

use std::net::IpAddr;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use feroce_engine::cm::{
    self, CmConfig, CmId, DeviceKey, Event, EventKind, Parameters, QpKind, QpParameters, Status,
    Unresolved,
};
use feroce_engine::counters::Counter;
use feroce_engine::device::{
    CompletionQueue, ConnectOptions, ConnectionManager, Device, DeviceConfig, Driver, Endpoint,
    QpInit, QueuePair,
};
use feroce_engine::memory::Access;
use feroce_engine::net::Gid;
use feroce_engine::verbs::{Data, RecvRequest, SendFlags, SendOp, SendRequest};
use feroce_tests::ports::{PortResources, RigPorts};
use feroce_tests::{addresses, manual_config};
use feroce_wire::cm::{PortSpace, RejectReason};
use feroce_wire::{Qkey, Qpn};

const KEY: DeviceKey = DeviceKey(0);

/// A device with its connection manager and that manager's events.
struct End {
    manager: ConnectionManager,
    events: Receiver<Event>,
    device: Device,
}

impl End {
    #[track_caller]
    fn expect(&self, kind: EventKind) -> Event {
        let event =
            self.events.recv_timeout(Duration::from_secs(60)).expect("an event within 60 s");
        assert_eq!(event.kind, kind, "{event:?}");
        event
    }

    /// The routable address of the device: that of its default GID.
    fn address(&self) -> IpAddr {
        let index = self.device.default_gid_index();
        let gids = self.device.gids();
        gids.iter().find(|(at, _)| *at == index).expect("a GID").1.gid.ip()
    }

    fn listen(&self, space: PortSpace, port: u16) -> CmId {
        let address = std::net::SocketAddr::new(self.address(), port);
        self.manager.with(|endpoint, now| {
            let id = endpoint.create(space, QpKind::of(space));
            endpoint.bind(id, address).expect("a free port");
            endpoint.listen(id, 0, now).expect("bound");
            id
        })
    }

    fn connect_to(&self, to: &Self, space: PortSpace, port: u16, local: &Parameters) -> CmId {
        let remote = to.address();
        let any: IpAddr = if remote.is_ipv4() { [0; 4].into() } else { [0u8; 16].into() };
        let path = self.manager.resolve(any, std::net::SocketAddr::new(remote, port));
        self.manager.with(|endpoint, now| {
            let id = endpoint.create(space, QpKind::of(space));
            endpoint.resolve_address(id, None, std::net::SocketAddr::new(remote, port)).unwrap();
            endpoint.address_resolved(id, path).unwrap();
            endpoint.resolve_route(id).unwrap();
            endpoint.route_resolved(id, Ok(())).unwrap();
            endpoint.connect(id, local, b"hello", now).unwrap();
            id
        })
    }
}

fn ends() -> ([End; 2], PortResources) {
    let config = DeviceConfig { driver: Driver::Helper, seed: None, ..manual_config(0) };
    let (ports, resources) = RigPorts::cable();
    let mut end = 0..2;
    let ends = ports.map(|port| {
        let end = end.next().unwrap();
        let device = Device::with_ports(vec![port], addresses(end), config.clone()).unwrap();
        let (sender, events) = channel();
        let sink = Box::new(move |event| drop(sender.send(event)));
        let manager = ConnectionManager::new(CmConfig::default(), sink).unwrap();
        manager.attach(KEY, &device).unwrap();
        assert!(manager.attach(KEY, &device).is_err(), "QP 1 is already in use");
        End { manager, events, device }
    });
    (ends, resources)
}

fn connect(end: &End, qp: &mut QueuePair, parameters: &QpParameters) {
    let peer =
        Endpoint::new(parameters.agreed.qpn, parameters.rq_psn, Gid::from(parameters.path.remote));
    let options = ConnectOptions {
        path_mtu: Some(parameters.path.mtu),
        sgid_index: end.device.default_gid_index(),
        timeout: 20,
        ..ConnectOptions::default()
    };
    qp.connect(parameters.sq_psn, &peer, &options).unwrap();
}

fn wait(cq: &CompletionQueue) {
    let done = loop {
        match cq.poll_one() {
            Some(done) => break done,
            None => std::thread::yield_now(),
        }
    };
    assert!(done.is_success(), "{done:?}");
}

#[test]
fn a_connection_carries_a_message() {
    let (ends, _resources) = ends();
    let [passive, active] = &ends;
    let pds = [passive, active].map(|end| end.device.alloc_pd());
    let cqs = [passive, active].map(|end| end.device.create_cq(16).unwrap());
    let mut qps = [0, 1].map(|end| pds[end].create_qp(&QpInit::new(&cqs[end])).unwrap());
    let buffer = pds[0].alloc_buffer(64, Access::LOCAL_WRITE).unwrap();
    let local =
        |qp: &QueuePair| Parameters { qpn: qp.qpn(), retry_count: 7, ..Parameters::default() };

    passive.listen(PortSpace::Tcp, 7174);
    let active_id = active.connect_to(passive, PortSpace::Tcp, 7174, &local(&qps[1]));
    active.expect(EventKind::AddrResolved);
    active.expect(EventKind::RouteResolved);
    let request = passive.expect(EventKind::ConnectRequest);
    assert_eq!(&request.private_data[..5], b"hello");
    let parameters =
        passive.manager.with(|endpoint, _| endpoint.qp_parameters(request.id)).unwrap();
    connect(passive, &mut qps[0], &parameters);
    let sge = buffer.region().sge(0, 64);
    qps[0].post_recv(&RecvRequest { wr_id: 1, sges: &[sge] }).unwrap();
    let accept = local(&qps[0]);
    passive.manager.with(|endpoint, now| endpoint.accept(request.id, &accept, b"", now)).unwrap();
    active.expect(EventKind::ConnectResponse);
    let parameters = active.manager.with(|endpoint, _| endpoint.qp_parameters(active_id)).unwrap();
    connect(active, &mut qps[1], &parameters);
    active.manager.with(|endpoint, _| endpoint.establish(active_id, b"")).unwrap();
    passive.expect(EventKind::Established);

    let data = Data::Inline(&[b"through the connection"]);
    let (wr_id, op, flags) = (1, SendOp::Send, SendFlags::SIGNALED);
    qps[1].post_send(&SendRequest { wr_id, op, data, flags }).unwrap();
    wait(&cqs[1]);
    wait(&cqs[0]);
    let mut got = [0; 22];
    buffer.read(0, &mut got);
    assert_eq!(&got, b"through the connection");

    active.manager.with(|endpoint, now| endpoint.disconnect(active_id, now)).unwrap();
    passive.expect(EventKind::Disconnected);
    passive.manager.with(|endpoint, now| endpoint.disconnect(request.id, now)).unwrap();
    active.expect(EventKind::Disconnected);
    // The thread of the connection manager wakes for the deadline of timewait.
    active.expect(EventKind::TimewaitExit);
    passive.expect(EventKind::TimewaitExit);
}

#[test]
fn a_service_id_is_resolved_and_a_connection_rejected() {
    let (ends, _resources) = ends();
    let [passive, active] = &ends;
    passive.listen(PortSpace::Udp, 7175);
    active.connect_to(passive, PortSpace::Udp, 7175, &Parameters::default());
    let request = passive.expect(EventKind::ConnectRequest);
    let local =
        Parameters { qpn: Qpn::masked(0x65), qkey: Qkey(0x0123_4567), ..Parameters::default() };
    passive.manager.with(|endpoint, now| endpoint.accept(request.id, &local, b"", now)).unwrap();
    active.expect(EventKind::AddrResolved);
    active.expect(EventKind::RouteResolved);
    let reply = active.expect(EventKind::Established);
    assert_eq!((reply.parameters.qpn, reply.parameters.qkey), (local.qpn, local.qkey));

    active.connect_to(passive, PortSpace::Tcp, 7175, &Parameters::default());
    active.expect(EventKind::AddrResolved);
    active.expect(EventKind::RouteResolved);
    let rejected = active.expect(EventKind::Rejected);
    assert_eq!(rejected.status, Status::Rejected(RejectReason::INVALID_SERVICE_ID));
}

/// The program may call `_exit` next.
#[test]
fn a_rejection_is_sent_when_flush_returns() {
    let (ends, _resources) = ends();
    let [passive, active] = &ends;
    passive.listen(PortSpace::Tcp, 7176);
    active.connect_to(passive, PortSpace::Tcp, 7176, &Parameters::default());
    let request = passive.expect(EventKind::ConnectRequest);
    let sent = || passive.device.counter(Counter::PortXmitPackets);
    let before = sent();
    let reject = |endpoint: &mut cm::Endpoint, now| {
        endpoint.reject(request.id, RejectReason::CONSUMER, b"full", now)
    };
    passive.manager.with(reject).unwrap();
    passive.manager.flush(feroce_engine::time::Duration::from_secs(60));
    assert!(sent() > before, "nothing was sent");
    active.expect(EventKind::AddrResolved);
    active.expect(EventKind::RouteResolved);
    assert!(active.expect(EventKind::Rejected).private_data.starts_with(b"full"));
}

/// Resolution fails if no device has the source address.
#[test]
fn a_foreign_source_address_has_no_device() {
    let (ends, _resources) = ends();
    let resolved =
        ends[0].manager.resolve("192.0.2.1".parse().unwrap(), "192.0.2.2:7".parse().unwrap());
    assert_eq!(resolved, Err(Unresolved::NoDevice));
}

/// A loopback address means the device itself: the request arrives at the device's own listener,
/// from the device's own address, as `cma_resolve_loopback` of the kernel intends.
#[test]
fn a_loopback_address_leads_to_the_device_itself() {
    let (ends, _resources) = ends();
    let end = &ends[0];
    let own = end.address();
    let loopback: IpAddr = match own {
        IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
    };
    let to = std::net::SocketAddr::new(loopback, 7176);
    let any: IpAddr = if own.is_ipv4() { [0; 4].into() } else { [0u8; 16].into() };
    let path = end.manager.resolve(any, to).expect("a path");
    assert_eq!((path.local, path.remote), (own, own));
    assert_eq!(end.manager.resolve(own, to), Ok(path), "bound to the device's address");
    let foreign = ends[1].address();
    assert_eq!(end.manager.resolve(foreign, to), Err(Unresolved::NoDevice));

    end.listen(PortSpace::Tcp, 7176);
    let id = end.manager.with(|endpoint, now| {
        let id = endpoint.create(PortSpace::Tcp, QpKind::Rc);
        endpoint.resolve_address(id, None, to).unwrap();
        endpoint.address_resolved(id, Ok(path)).unwrap();
        let source = endpoint.source(id).unwrap().expect("bound");
        assert_eq!((source.ip(), endpoint.destination(id)), (loopback, Ok(Some(to))));
        endpoint.resolve_route(id).unwrap();
        endpoint.route_resolved(id, Ok(())).unwrap();
        let local = Parameters { qpn: Qpn::masked(0x77), ..Parameters::default() };
        endpoint.connect(id, &local, b"self", now).unwrap();
        id
    });
    end.expect(EventKind::AddrResolved);
    end.expect(EventKind::RouteResolved);
    let request = end.expect(EventKind::ConnectRequest);
    assert_eq!(&request.private_data[..4], b"self");
    end.manager.with(|endpoint, _| {
        let (source, peer) = (endpoint.source(request.id), endpoint.destination(request.id));
        assert_eq!(source, Ok(Some(std::net::SocketAddr::new(own, 7176))));
        let port = endpoint.source(id).unwrap().expect("bound").port();
        assert_eq!(peer, Ok(Some(std::net::SocketAddr::new(own, port))));
    });
}

/// The thread that gives a command sends its message: no other thread must be woken.
#[test]
fn a_request_is_sent_when_the_command_returns() {
    let (ends, _resources) = ends();
    let [passive, active] = &ends;
    passive.listen(PortSpace::Tcp, 7177);
    let sent = || active.device.counter(Counter::PortXmitPackets);
    for number in 0x100..0x110 {
        let before = sent();
        let local = Parameters { qpn: Qpn::masked(number), ..Parameters::default() };
        active.connect_to(passive, PortSpace::Tcp, 7177, &local);
        assert!(sent() > before, "not sent yet");
        passive.expect(EventKind::ConnectRequest);
    }
}

/// A path that was resolved a moment ago is reported without another thread.
#[test]
fn a_known_path_is_reported_at_once() {
    let (ends, _resources) = ends();
    let [passive, active] = &ends;
    let remote = std::net::SocketAddr::new(passive.address(), 7178);
    let any: IpAddr = if remote.is_ipv4() { [0; 4].into() } else { [0u8; 16].into() };
    let path = active.manager.resolve(any, remote).expect("a path");
    for port in [7178, 7179] {
        let to = std::net::SocketAddr::new(remote.ip(), port);
        let id = active.manager.with(|endpoint, _| {
            let id = endpoint.create(PortSpace::Tcp, QpKind::Rc);
            endpoint.resolve_address(id, None, to).unwrap();
            id
        });
        let timeout = feroce_engine::time::Duration::from_secs(1);
        active.manager.start_resolve(id, any, to, timeout).unwrap();
        let event = active.events.try_recv().expect("an event at once");
        assert_eq!((event.id, event.kind), (id, EventKind::AddrResolved));
        let resolved = active.manager.with(|endpoint, _| endpoint.path(id));
        assert_eq!(resolved, Ok(Some(path)));
    }
}

/// QP 1 is free when the manager is dropped, although a thread still resolves a path for it.
#[test]
fn a_dropped_manager_frees_qp_1() {
    let ([end, _other], _resources) = ends();
    let to: std::net::SocketAddr = match end.address() {
        IpAddr::V4(_) => "10.0.0.77:7180".parse().unwrap(),
        IpAddr::V6(_) => "[fd00::77]:7180".parse().unwrap(),
    };
    let id = end.manager.with(|endpoint, _| {
        let id = endpoint.create(PortSpace::Tcp, QpKind::Rc);
        endpoint.resolve_address(id, None, to).unwrap();
        id
    });
    let timeout = feroce_engine::time::Duration::from_secs(60);
    end.manager.start_resolve(id, end.address(), to, timeout).unwrap();
    let End { manager, device, .. } = end;
    drop(manager);
    let manager = ConnectionManager::new(CmConfig::default(), Box::new(|_| ())).unwrap();
    manager.attach(KEY, &device).expect("QP 1 is free");
}
