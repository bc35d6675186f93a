//! A host that sends connection requests and never confirms. In virtual time: the server neither
//! fills its memory nor keeps others out, wherever the requests seem to come from.

use std::net::{IpAddr, SocketAddr};

use feroce_engine::cm::{
    CmConfig, CmId, DeviceKey, Endpoint, EventKind, ObjectCounts, Path, QpKind, Source,
};
use feroce_engine::time::{Duration, Instant};
use feroce_tests::cm::{DEVICE, PORT, address, parameters, random};
use feroce_tests::forger::{numbered, request_pattern};
use feroce_wire::PathMtu;
use feroce_wire::cm::{CmMad, PortSpace};

const TCP: PortSpace = PortSpace::Tcp;
const FORGER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 77, 0, 9));

/// A server, its honest client, and a request of the client as a pattern for forged ones.
struct Scene {
    server: Endpoint,
    client: Endpoint,
    pattern: CmMad,
    now: Instant,
    forged: u32,
    /// Requests that the server's program has not taken yet.
    requests: Vec<CmId>,
    /// QP numbers of the server.
    accepted: u32,
    /// What became of the connections that the server's program accepted.
    established: usize,
    given_up: usize,
}

impl Scene {
    fn new(backlog: u32) -> Self {
        let config = CmConfig { early_copies: [Duration::ZERO; 2], ..CmConfig::default() };
        let endpoint = |guid: u64| {
            let mut endpoint = Endpoint::new(config, random(guid));
            endpoint.add_device(DEVICE, guid);
            endpoint
        };
        let (mut server, client, now) = (endpoint(1), endpoint(2), Instant::ZERO);
        let server_address = SocketAddr::new(address(0, false), PORT);
        let pattern = request_pattern(address(1, false), server_address);
        let listener = server.create(TCP, QpKind::of(TCP));
        server.bind(listener, server_address).expect("a free port");
        server.listen(listener, backlog, now).expect("bound");
        let requests = Vec::new();
        let (forged, accepted, established, given_up) = (0, 0, 0, 0);
        Self { server, client, pattern, now, forged, requests, accepted, established, given_up }
    }

    /// The server receives a request that nobody will confirm, and its program accepts it.
    fn forge(&mut self, source: IpAddr) {
        self.forge_untaken(source);
        self.exchange(usize::MAX);
    }

    /// The server receives a request that nobody will confirm, from another node, QP and ID each
    /// time.
    fn forge_untaken(&mut self, source: IpAddr) {
        self.forged += 1;
        let mad = numbered(&self.pattern, source, self.forged);
        let from = Source { device: DEVICE, local: address(0, false), remote: source };
        self.server.receive(&mad.to_bytes(), &from, self.now).expect("well-formed");
        self.exchange(0);
    }

    /// Delivers all messages between server and client. The server's program accepts up to
    /// `accepts` requests. Messages to others are lost.
    fn exchange(&mut self, accepts: usize) {
        let ends = [address(0, false), address(1, false)];
        loop {
            let before = (self.server.object_counts(), self.client.object_counts());
            while let Some(sent) = self.server.transmit() {
                let from = Source { device: DEVICE, local: ends[1], remote: ends[0] };
                if sent.remote == ends[1] {
                    self.client.receive(&sent.mad, &from, self.now).expect("well-formed");
                }
            }
            while let Some(event) = self.client.event() {
                if event.kind == EventKind::ConnectResponse {
                    self.client.establish(event.id, b"").expect("a response");
                }
            }
            while let Some(sent) = self.client.transmit() {
                let from = Source { device: DEVICE, local: ends[0], remote: ends[1] };
                self.server.receive(&sent.mad, &from, self.now).expect("well-formed");
            }
            self.serve(accepts);
            if before == (self.server.object_counts(), self.client.object_counts()) {
                return;
            }
        }
    }

    /// The server's program handles its events.
    fn serve(&mut self, accepts: usize) {
        while let Some(event) = self.server.event() {
            match event.kind {
                EventKind::ConnectRequest => self.requests.push(event.id),
                EventKind::Established => self.established += 1,
                EventKind::Unreachable => {
                    self.given_up += 1;
                    self.server.destroy(event.id, self.now).expect("its identifier");
                }
                _ => {}
            }
        }
        for id in self.requests.drain(..accepts.min(self.requests.len())) {
            self.server.take_request(id).expect("it is new");
            self.accepted += 1;
            self.server.accept(id, &parameters(self.accepted), b"", self.now).expect("a request");
        }
    }

    /// The honest client connects. Returns true if the server takes the connection at once.
    fn client_connects(&mut self, qpn: u32) -> bool {
        let before = self.established;
        connect(&mut self.client, qpn, self.now);
        self.exchange(usize::MAX);
        self.established > before
    }

    fn advance(&mut self, by: Duration) {
        self.now += by;
        self.server.expire(self.now);
        self.client.expire(self.now);
        self.exchange(usize::MAX);
    }
}

/// `client` sends a REQ to the server, from the QP `qpn`.
fn connect(client: &mut Endpoint, qpn: u32, now: Instant) {
    let id = client.create(TCP, QpKind::of(TCP));
    let (local, remote) = (address(1, false), address(0, false));
    client.resolve_address(id, None, SocketAddr::new(remote, PORT)).expect("unbound");
    let device: DeviceKey = DEVICE;
    let mtu = PathMtu::Mtu1024;
    let path = Path { device, local, remote, mtu, hop_limit: 64, traffic_class: 0 };
    client.address_resolved(id, Ok(path)).expect("a pending request");
    client.resolve_route(id).expect("resolved");
    client.route_resolved(id, Ok(())).expect("a pending request");
    while client.event().is_some() {}
    client.connect(id, &parameters(qpn), b"", now).expect("a route");
}

/// The address that a request comes from, by its number.
type SourceOf = fn(u32) -> IpAddr;

/// 100,000 requests at 10,000 per second, from the address that `source` returns for each.
fn flood(source: SourceOf) -> Scene {
    let mut scene = Scene::new(16);
    for n in 0..100_000 {
        scene.forge(source(n));
        scene.now += Duration::from_micros(100);
        if n % 1000 == 999 {
            scene.advance(Duration::ZERO);
            let connects = scene.client_connects(0x1000 + n);
            let counts = scene.server.object_counts();
            assert!(connects, "after {n} requests: {counts:?}");
            assert!(counts.half_open <= 4096 && counts.ids <= 4096 + 200, "{counts:?}");
            assert!(counts.cached_responses <= 16_384 && counts.timers <= 4096, "{counts:?}");
        }
    }
    scene
}

#[test]
fn requests_that_are_never_confirmed_keep_nobody_out() {
    let sources: [(&str, SourceOf, usize); 3] = [
        ("one source", |_| FORGER, 2048),
        ("the client's own address", |_| address(1, false), 2048),
        ("65536 sources", |n| IpAddr::from((0x0a4e_0000 | n & 0xffff).to_be_bytes()), 4096),
    ];
    for (name, source, left) in sources {
        let mut scene = flood(source);
        let counts = scene.server.object_counts();
        // The last one to connect has confirmed and left its place.
        assert!(left - counts.half_open <= 1, "{name}: {counts:?}");
        let ended = scene.given_up + counts.half_open;
        assert_eq!((scene.established, ended), (100, 100_000), "{name}");
        // Nothing is left when the flood is over and the connections have ended.
        scene.client.destroy_all(scene.now);
        (0..300).for_each(|_| scene.advance(Duration::from_secs(1)));
        scene.server.destroy_all(scene.now);
        (0..300).for_each(|_| scene.advance(Duration::from_secs(1)));
        assert_eq!(scene.server.object_counts(), ObjectCounts::default(), "{name}");
    }
}

#[test]
fn one_source_cannot_fill_the_backlog() {
    for backlog in [1, 3, 16, 1024] {
        let mut scene = Scene::new(backlog);
        let offer = |scene: &mut Scene, source: IpAddr| {
            scene.forge_untaken(source);
            scene.requests.len()
        };
        let most = (0..2 * backlog).map(|_| offer(&mut scene, FORGER)).last();
        assert_eq!(most, Some(backlog as usize), "the backlog is the limit of a source");
        assert_eq!(offer(&mut scene, address(1, false)), backlog as usize + 1, "another source");
        // All sources together have a limit too.
        let all = (0..2 * backlog)
            .map(|n| offer(&mut scene, IpAddr::from((n + 0x0a50_0001).to_be_bytes())))
            .last();
        assert_eq!(all, Some((backlog + backlog.div_ceil(4)) as usize));
        // Once the program takes them, there is room again.
        scene.exchange(usize::MAX);
        assert_eq!(offer(&mut scene, FORGER), 1);
    }
}
