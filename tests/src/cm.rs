//! Two endpoints of connection management and a wire between them, in virtual time: what is said is written down with its time.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use feroce_engine::cm::{
    CmConfig, CmId, DeviceKey, Endpoint, Event, EventKind, ObjectCounts, Outgoing, Parameters,
    Path, QpKind, Source,
};
use feroce_engine::time::{Duration, Instant};
use feroce_wire::cm::{CmMad, CmMessage, PortSpace};
use feroce_wire::{PathMtu, Qpn};

/// The device of either end.
pub const DEVICE: DeviceKey = DeviceKey(0);
/// How long a message is under way.
pub const DELAY: Duration = Duration::from_millis(1);
/// The port that is listened to.
pub const PORT: u16 = 7174;

/// What becomes of a message: the delays of its copies, none if it is lost.
pub type Fate = Box<dyn FnMut(usize, &CmMessage) -> Vec<Duration>>;

/// A message that was sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Said {
    /// When.
    pub at: Duration,
    /// By which end.
    pub by: usize,
    /// What.
    pub message: CmMessage,
}

/// Two endpoints.
pub struct Pair {
    /// The ends; 0 is 10.77.0.2 and fd77::2, 1 the one with 3.
    pub ends: [Endpoint; 2],
    /// The time.
    pub now: Instant,
    /// What was told to the programs, in order, with its time.
    pub told: Vec<(Duration, usize, Event)>,
    /// What was said.
    pub said: Vec<Said>,
    /// Decides what becomes of a message.
    pub fate: Fate,
    under_way: BTreeMap<(Instant, u64), (usize, Source, [u8; 256])>,
    sent: u64,
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair")
            .field("now", &self.now)
            .field("said", &self.said)
            .finish_non_exhaustive()
    }
}

/// Numbers that look random, from a seed.
pub fn random(seed: u64) -> impl FnMut() -> u32 + Send + 'static {
    use rand_xoshiro::rand_core::{Rng, SeedableRng};
    let mut generator = rand_xoshiro::Xoshiro256StarStar::seed_from_u64(seed);
    move || generator.next_u32()
}

/// The address of an end.
pub fn address(end: usize, v6: bool) -> IpAddr {
    let texts = if v6 { ["fd77::2", "fd77::3"] } else { ["10.77.0.2", "10.77.0.3"] };
    texts[end].parse().expect("an address")
}

/// What a QP of a test says of itself.
pub fn parameters(qpn: u32) -> Parameters {
    Parameters {
        qpn: Qpn::masked(qpn),
        responder_resources: 4,
        initiator_depth: 2,
        retry_count: 7,
        rnr_retry_count: 6,
        ..Parameters::default()
    }
}

impl Pair {
    /// Two ends with the defaults; everything arrives.
    pub fn new(seed: u64) -> Self {
        let end = |end: u64| {
            let mut endpoint = Endpoint::new(CmConfig::default(), random(seed * 2 + end));
            endpoint.add_device(DEVICE, 0x0200_00ff_fe00_0000 + end);
            endpoint
        };
        Self {
            ends: [end(0), end(1)],
            now: Instant::ZERO,
            told: Vec::new(),
            said: Vec::new(),
            fate: Box::new(|_, _| vec![DELAY]),
            under_way: BTreeMap::new(),
            sent: 0,
        }
    }

    /// Milliseconds since the start.
    pub fn at(&self) -> Duration {
        self.now.saturating_since(Instant::ZERO)
    }

    /// Listens at end `end` to [`PORT`], with an address or any.
    ///
    /// # Panics
    /// If it may not.
    pub fn listen(&mut self, end: usize, space: PortSpace, ip: &str, backlog: u32) -> CmId {
        self.listen_of(end, (space, QpKind::of(space)), ip, backlog)
    }

    /// The same for QPs of another kind than the space's.
    ///
    /// # Panics
    /// If it may not.
    pub fn listen_of(
        &mut self,
        end: usize,
        (space, kind): (PortSpace, QpKind),
        ip: &str,
        backlog: u32,
    ) -> CmId {
        let (endpoint, now) = (&mut self.ends[end], self.now);
        let id = endpoint.create(space, kind);
        let address = SocketAddr::new(ip.parse().expect("an address"), PORT);
        endpoint.bind(id, address).expect("a free port");
        endpoint.listen(id, backlog, now).expect("bound");
        id
    }

    /// An identifier of `end` with a route to the other end.
    ///
    /// # Panics
    /// If it may not.
    pub fn route(&mut self, end: usize, space: PortSpace, v6: bool, port: u16) -> CmId {
        self.route_of(end, (space, QpKind::of(space)), v6, port)
    }

    /// The same for a QP of another kind than the space's.
    ///
    /// # Panics
    /// If it may not.
    pub fn route_of(
        &mut self,
        end: usize,
        (space, kind): (PortSpace, QpKind),
        v6: bool,
        port: u16,
    ) -> CmId {
        let endpoint = &mut self.ends[end];
        let id = endpoint.create(space, kind);
        let (local, remote) = (address(end, v6), address(1 - end, v6));
        endpoint.resolve_address(id, None, SocketAddr::new(remote, port)).expect("unbound");
        let path = Path {
            device: DEVICE,
            local,
            remote,
            mtu: PathMtu::Mtu1024,
            hop_limit: 64,
            traffic_class: 0,
        };
        endpoint.address_resolved(id, Ok(path)).expect("asked");
        endpoint.resolve_route(id).expect("resolved");
        endpoint.route_resolved(id, Ok(())).expect("asked");
        for kind in [EventKind::AddrResolved, EventKind::RouteResolved] {
            let event = endpoint.event().expect("an event");
            assert_eq!((event.id, event.kind), (id, kind));
        }
        id
    }

    /// Asks the other end's [`PORT`] for a connection, from a QP of the number.
    ///
    /// # Panics
    /// If it may not.
    pub fn dial(&mut self, end: usize, space: PortSpace, qpn: u32, data: &[u8]) -> CmId {
        let id = self.route(end, space, false, PORT);
        let now = self.now;
        self.ends[end].connect(id, &parameters(qpn), data, now).expect("a route");
        self.flush();
        id
    }

    /// Accepts `id` of `end` with a QP of the number.
    ///
    /// # Panics
    /// If it may not.
    pub fn accept(&mut self, end: usize, id: CmId, qpn: u32, data: &[u8]) {
        self.ends[end].accept(id, &parameters(qpn), data, self.now).expect("asked");
        self.flush();
    }

    /// Sends what the ends have to say and hears what they tell.
    ///
    /// # Panics
    /// If what is said cannot be read.
    pub fn flush(&mut self) {
        for by in 0..2 {
            while let Some(outgoing) = self.ends[by].transmit() {
                self.send(by, outgoing);
            }
            while let Some(event) = self.ends[by].event() {
                self.told.push((self.at(), by, event));
            }
        }
    }

    fn send(&mut self, by: usize, outgoing: Outgoing) {
        let Outgoing { local, remote, mad, .. } = outgoing;
        let v6 = local.is_ipv6();
        assert_eq!((local, remote), (address(by, v6), address(1 - by, v6)), "addresses of a MAD");
        let message = CmMad::parse(&mad).expect("a message of ours").message;
        self.said.push(Said { at: self.at(), by, message });
        let source = Source { device: DEVICE, local: remote, remote: local };
        for delay in (self.fate)(by, &message) {
            self.sent += 1;
            self.under_way.insert((self.now + delay, self.sent), (1 - by, source, mad));
        }
    }

    /// When something happens by itself.
    pub fn next(&self) -> Option<Instant> {
        let arrival = self.under_way.first_key_value().map(|((at, _), _)| *at);
        let deadlines = self.ends.iter().map(Endpoint::next_deadline);
        deadlines.chain([arrival]).flatten().min()
    }

    /// Lets the next thing happen, if it does not happen after `until`.
    ///
    /// # Panics
    /// If an end does not understand the other.
    pub fn step(&mut self, until: Instant) -> bool {
        let Some(next) = self.next().filter(|next| *next <= until) else { return false };
        assert!(next > self.now || !self.under_way.is_empty() || next == self.now, "time goes on");
        self.now = self.now.max(next);
        while let Some(((at, _), _)) = self.under_way.first_key_value()
            && *at <= self.now
            && let Some((_, (to, source, mad))) = self.under_way.pop_first()
        {
            self.ends[to].receive(&mad, &source, self.now).expect("a message");
            self.flush();
        }
        for end in 0..2 {
            self.ends[end].expire(self.now);
        }
        self.flush();
        true
    }

    /// Lets time pass, in milliseconds since the start.
    pub fn run_until(&mut self, millis: u64) {
        let until = Instant::from_nanos(millis * 1_000_000);
        while self.step(until) {}
        self.now = until;
    }

    /// Lets time pass until nothing more happens by itself.
    ///
    /// # Panics
    /// If that does not come in a day.
    pub fn run_out(&mut self) {
        let until = self.now + Duration::from_secs(86_400);
        while self.step(until) {}
        assert_eq!(self.next(), None);
    }

    /// What was said since the last call: milliseconds, end, name.
    pub fn trace(&mut self) -> Vec<(u64, usize, &'static str)> {
        let said = std::mem::take(&mut self.said);
        said.iter().map(|said| (millis(said.at), said.by, said.message.name())).collect()
    }

    /// What was told since the last call: milliseconds, end, kind.
    pub fn events(&mut self) -> Vec<(u64, usize, EventKind)> {
        let told = std::mem::take(&mut self.told);
        told.iter().map(|(at, end, event)| (millis(*at), *end, event.kind)).collect()
    }

    /// Takes the oldest event, which is of `end` and of `kind`.
    ///
    /// # Panics
    /// If it is another.
    #[track_caller]
    pub fn expect(&mut self, end: usize, kind: EventKind) -> Event {
        assert!(!self.told.is_empty(), "no event, {kind:?} was expected");
        let (_, by, event) = self.told.remove(0);
        assert_eq!((by, event.kind), (end, kind), "{event:?}");
        if kind == EventKind::ConnectRequest {
            self.ends[end].take_request(event.id).expect("it is new");
        }
        event
    }

    /// Loses the first `count` messages of the name.
    pub fn lose(&mut self, name: &'static str, mut count: u32) {
        self.fate = Box::new(move |_, message| {
            let hit = message.name() == name && count > 0;
            count -= u32::from(hit);
            if hit { Vec::new() } else { vec![DELAY] }
        });
    }

    /// Nothing is left of anything.
    ///
    /// # Panics
    /// If something is.
    #[track_caller]
    pub fn assert_empty(&self) {
        for end in &self.ends {
            assert_eq!(end.object_counts(), ObjectCounts::default(), "{end:?}");
        }
    }
}

/// Whole milliseconds.
///
/// # Panics
/// If they are more than a `u64` counts.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).expect("a short time")
}
