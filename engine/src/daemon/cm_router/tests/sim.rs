//! Clients with real endpoints behind the routers of two hosts, in virtual time.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use feroce_wire::{FlowSpec, IpAddresses, PathMtu};

use super::*;
use crate::cm::{
    CmConfig, CmId, DeviceKey, Endpoint, Event, EventKind, Outgoing, Parameters, Path, QpKind,
    Source,
};

const DEVICE: DeviceKey = DeviceKey(0);
/// Delay of a message.
const DELAY: Duration = Duration::from_millis(1);

/// Decides how a message is delivered, by the sending host: the delays of its copies, none if it is
/// lost.
pub(super) type Delivery = Box<dyn FnMut(usize, &CmMessage) -> Vec<Duration>>;

/// Address of a host.
pub(super) fn ip(host: usize) -> [u8; 4] {
    [LOCAL, PEER][host]
}

/// A client process.
pub(super) struct Client {
    pub host: usize,
    pub id: ClientId,
    pub endpoint: Endpoint,
    pub is_alive: bool,
    /// Events not taken yet, with their time in milliseconds.
    pub events: Vec<(u64, Event)>,
}

/// Two hosts and the wire between them.
pub(super) struct Net {
    pub routers: [CmRouter; 2],
    pub clients: Vec<Client>,
    pub now: Instant,
    pub delivery: Delivery,
    /// Sent messages: milliseconds, host, whether the router sends it, name.
    pub sent: Vec<(u64, usize, bool, &'static str)>,
    /// Why the routers refused MADs, in order.
    pub refused: Vec<Refused>,
    in_flight: BTreeMap<(Instant, u64), (FlowSpec, [u8; MAD_LEN])>,
    count: u64,
}

impl Net {
    /// Makes clients 0, 1, ... on the hosts `hosts`.
    pub fn new(hosts: &[usize]) -> Self {
        Self::with_config(hosts, CmConfig::default())
    }

    pub fn with_config(hosts: &[usize], config: CmConfig) -> Self {
        let guid = |host: usize| [GUID, PEER_GUID][host];
        let mut routers = [0, 1].map(|host| {
            let mut draw = [0, 0x1000][host];
            CmRouter::new(guid(host), move || {
                draw += 1;
                draw
            })
        });
        let clients = (1u32..).zip(hosts).map(|(number, &host)| {
            let id = ClientId(number);
            routers[host].add_client(id, Limits::default());
            let mut draw = number << 24;
            let mut endpoint = Endpoint::new(config, move || {
                draw += 1;
                draw
            });
            endpoint.add_device(DEVICE, guid(host));
            Client { host, id, endpoint, is_alive: true, events: Vec::new() }
        });
        let clients = clients.collect();
        Self {
            routers,
            clients,
            now: Instant::ZERO,
            delivery: Box::new(|_, _| vec![DELAY]),
            sent: Vec::new(),
            refused: Vec::new(),
            in_flight: BTreeMap::new(),
            count: 0,
        }
    }

    /// From now on, messages for which `lost` returns true are lost.
    pub fn lose(&mut self, mut lost: impl FnMut(&CmMessage) -> bool + 'static) {
        self.delivery = Box::new(move |_, message| match lost(message) {
            true => Vec::new(),
            false => vec![DELAY],
        });
    }

    /// Milliseconds since the start.
    pub fn at(&self) -> u64 {
        self.now.as_nanos() / 1_000_000
    }

    fn ip_of(&self, client: usize) -> IpAddr {
        ip(self.clients[client].host).into()
    }

    /// A QP of a client.
    pub fn qpn(client: usize, number: u32) -> Qpn {
        Qpn::masked(Self::first_qpn(client) + number)
    }

    fn first_qpn(client: usize) -> u32 {
        u32::try_from(0x1000 * (client + 1)).expect("few clients")
    }

    fn owns(client: usize) -> impl Fn(Qpn) -> bool {
        move |qpn| qpn.value() & !0xfff == Self::first_qpn(client)
    }

    fn parameters(client: usize, number: u32) -> Parameters {
        Parameters { qpn: Self::qpn(client, number), ..Parameters::default() }
    }

    /// `client` listens at any address.
    pub fn listen(&mut self, client: usize, space: PortSpace) {
        let now = self.now;
        let Client { host, id, endpoint, .. } = &mut self.clients[client];
        let any: IpAddr = [0, 0, 0, 0].into();
        self.routers[*host].claim(*id, Claim::port(space, PORT, any)).expect("the port is free");
        let listener = endpoint.create(space, QpKind::of(space));
        endpoint.bind(listener, SocketAddr::new(any, PORT)).expect("the port is free");
        endpoint.listen(listener, 0, now).expect("bound");
    }

    /// `client` connects to the port at the host of `server`.
    pub fn connect(&mut self, client: usize, server: usize, space: PortSpace, qp: u32) -> CmId {
        let (local, remote, now) = (self.ip_of(client), self.ip_of(server), self.now);
        let endpoint = &mut self.clients[client].endpoint;
        let id = endpoint.create(space, QpKind::of(space));
        endpoint.resolve_address(id, None, SocketAddr::new(remote, PORT)).expect("unbound");
        let mtu = PathMtu::Mtu1024;
        let path = Path { device: DEVICE, local, remote, mtu, hop_limit: 64, traffic_class: 0 };
        endpoint.address_resolved(id, Ok(path)).expect("requested");
        endpoint.resolve_route(id).expect("resolved");
        endpoint.route_resolved(id, Ok(())).expect("requested");
        while endpoint.event().is_some() {}
        endpoint.connect(id, &Self::parameters(client, qp), b"hello", now).expect("a route");
        self.flush();
        id
    }

    pub fn accept(&mut self, client: usize, id: CmId, qp: u32) {
        let now = self.now;
        let endpoint = &mut self.clients[client].endpoint;
        endpoint.accept(id, &Self::parameters(client, qp), b"", now).expect("a request");
        self.flush();
    }

    pub fn establish(&mut self, client: usize, id: CmId) {
        self.clients[client].endpoint.establish(id, b"").expect("accepted");
        self.flush();
    }

    pub fn disconnect(&mut self, client: usize, id: CmId) {
        let now = self.now;
        self.clients[client].endpoint.disconnect(id, now).expect("connected");
        self.flush();
    }

    /// The process of `client` ends without sending a message.
    pub fn kill(&mut self, client: usize) {
        let Client { host, id, is_alive, .. } = &mut self.clients[client];
        *is_alive = false;
        self.routers[*host].client_gone(*id, self.now);
        self.flush();
    }

    /// Takes the oldest event of `client`, which must be of `kind`.
    #[track_caller]
    pub fn expect(&mut self, client: usize, kind: EventKind) -> Event {
        let events = &mut self.clients[client].events;
        assert!(!events.is_empty(), "no event, {kind:?} was expected");
        let (_, event) = events.remove(0);
        assert_eq!(event.kind, kind, "{event:?}");
        if kind == EventKind::ConnectRequest {
            self.clients[client].endpoint.take_request(event.id).expect("it is new");
        }
        event
    }

    /// Sends what clients and routers have to send, and collects events.
    pub fn flush(&mut self) {
        for index in 0..self.clients.len() {
            while let Some(outgoing) = self.clients[index].endpoint.transmit() {
                self.send(index, &outgoing);
            }
            let at = self.at();
            let client = &mut self.clients[index];
            while let Some(event) = client.endpoint.event() {
                client.events.push((at, event));
            }
        }
        for host in 0..2 {
            self.routers[host].table.check();
            while let Some(RouterMad { flow, mad }) = self.routers[host].transmit() {
                self.wire(host, true, flow, mad);
            }
        }
    }

    /// A MAD of a client that is gone is lost with its rings.
    fn send(&mut self, index: usize, outgoing: &Outgoing) {
        let Client { host, id, is_alive, .. } = self.clients[index];
        let (IpAddr::V4(src), IpAddr::V4(dst)) = (outgoing.local, outgoing.remote) else {
            panic!("{outgoing:?}");
        };
        let flow = flow(src.octets(), dst.octets());
        if !is_alive {
            return;
        }
        let owns = Self::owns(index);
        let checked = self.routers[host].outgoing(id, &flow, &outgoing.mad, &owns, self.now);
        match checked {
            Ok(()) => self.wire(host, false, flow, outgoing.mad),
            Err(why) => self.refused.push(why),
        }
    }

    fn wire(&mut self, host: usize, by_router: bool, flow: FlowSpec, mad: [u8; MAD_LEN]) {
        let message = CmMad::parse(&mad).expect("a message").message;
        self.sent.push((self.at(), host, by_router, message.name()));
        for delay in (self.delivery)(host, &message) {
            self.count += 1;
            self.in_flight.insert((self.now + delay, self.count), (flow, mad));
        }
    }

    fn arrive(&mut self, sent: &FlowSpec, mad: &[u8; MAD_LEN]) {
        let IpAddresses::V4 { src, dst } = sent.addresses else { panic!("{sent:?}") };
        let host = usize::from(dst.octets() == ip(1));
        let back = flow(dst.octets(), src.octets());
        if let Route::Client(id) = self.routers[host].incoming(&back, mad, self.now) {
            let found = self.clients.iter_mut().find(|client| client.id == id);
            let client = found.expect("a client of the test");
            assert!(client.is_alive && client.host == host, "a client of this host");
            let from = Source { device: DEVICE, local: dst.into(), remote: src.into() };
            client.endpoint.receive(mad, &from, self.now).expect("a message");
        }
    }

    /// Runs for `millis` milliseconds.
    pub fn run(&mut self, millis: u64) {
        let until = self.now + Duration::from_millis(millis);
        loop {
            let arrival = self.in_flight.first_key_value().map(|((at, _), _)| *at);
            let alive = self.clients.iter().filter(|client| client.is_alive);
            let endpoints = alive.filter_map(|client| client.endpoint.next_deadline());
            let routers = self.routers.iter().filter_map(CmRouter::next_deadline);
            let next = arrival.into_iter().chain(endpoints).chain(routers).min();
            let Some(next) = next.filter(|next| *next <= until) else { break };
            self.now = self.now.max(next);
            while let Some(((at, _), _)) = self.in_flight.first_key_value()
                && *at <= self.now
                && let Some((_, (flow, mad))) = self.in_flight.pop_first()
            {
                self.arrive(&flow, &mad);
                self.flush();
            }
            for router in &mut self.routers {
                router.expire(self.now);
            }
            for client in &mut self.clients {
                client.endpoint.expire(self.now);
            }
            self.flush();
        }
        self.now = until;
    }

    /// Messages that routers sent since the last call: milliseconds, host, name.
    pub fn router_trace(&mut self) -> Vec<(u64, usize, &'static str)> {
        let sent = std::mem::take(&mut self.sent);
        let of_routers = sent.into_iter().filter(|(_, _, by_router, _)| *by_router);
        of_routers.map(|(at, host, _, name)| (at, host, name)).collect()
    }
}
