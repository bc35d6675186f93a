//! Two communication management endpoints and a wire between them, in virtual time. Every message
//! is recorded with its time.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use feroce_engine::cm::{
    CmConfig, CmId, DeviceKey, Endpoint, Event, EventKind, ObjectCounts, Outgoing, Parameters,
    Path, QpKind, Source,
};
use feroce_engine::time::{Duration, Instant};
use feroce_wire::cm::{CmMad, CmMessage, PortSpace};
use feroce_wire::{PathMtu, Qpn};

use crate::cm_transitions::{CALL, TIMER, Transitions};

/// Device key of both ends.
pub const DEVICE: DeviceKey = DeviceKey(0);
/// Delay of a message.
pub const DELAY: Duration = Duration::from_millis(1);
/// Port of the listener.
pub const PORT: u16 = 7174;

/// Decides how a message is delivered: the delays of its copies, none if it is lost.
pub type Delivery = Box<dyn FnMut(usize, &CmMessage) -> Vec<Duration>>;

/// A message that was sent.
#[derive(Clone, Debug, PartialEq)]
pub struct SentMessage {
    /// Time since the start.
    pub at: Duration,
    /// Sending end.
    pub by: usize,
    /// The message.
    pub message: CmMessage,
}

/// Two endpoints and the wire between them.
pub struct Pair {
    /// The ends. End 0 has 10.77.0.2 and fd77::2, end 1 has 10.77.0.3 and fd77::3.
    pub ends: [Endpoint; 2],
    /// Current time.
    pub now: Instant,
    /// Events delivered to the programs, in order: time, end, event.
    pub delivered: Vec<(Duration, usize, Event)>,
    /// Messages that were sent.
    pub sent_messages: Vec<SentMessage>,
    /// Decides how each message is delivered.
    pub delivery: Delivery,
    /// The changes of state at each end.
    pub transitions: [Transitions; 2],
    in_flight: BTreeMap<(Instant, u64), (usize, Source, [u8; 256])>,
    sent: u64,
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair")
            .field("now", &self.now)
            .field("sent_messages", &self.sent_messages)
            .finish_non_exhaustive()
    }
}

/// Returns a generator of pseudo-random numbers.
pub fn random(seed: u64) -> impl FnMut() -> u32 + Send + 'static {
    use rand_xoshiro::rand_core::{Rng, SeedableRng};
    let mut generator = rand_xoshiro::Xoshiro256StarStar::seed_from_u64(seed);
    move || generator.next_u32()
}

/// Returns the address of an end.
pub fn address(end: usize, v6: bool) -> IpAddr {
    let texts = if v6 { ["fd77::2", "fd77::3"] } else { ["10.77.0.2", "10.77.0.3"] };
    texts[end].parse().expect("an address")
}

/// Returns the connection parameters of a QP in these tests.
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
    /// Creates two ends with the default configuration, but without early copies of REQs; no
    /// message is lost.
    pub fn new(seed: u64) -> Self {
        let early_copies = [Duration::ZERO; 2];
        Self::with_config(seed, CmConfig { early_copies, ..CmConfig::default() })
    }

    /// Creates two ends with this configuration; no message is lost.
    pub fn with_config(seed: u64, config: CmConfig) -> Self {
        let end = |end: u64| {
            let mut endpoint = Endpoint::new(config, random(seed * 2 + end));
            endpoint.add_device(DEVICE, 0x0200_00ff_fe00_0000 + end);
            endpoint
        };
        Self {
            ends: [end(0), end(1)],
            now: Instant::ZERO,
            delivered: Vec::new(),
            sent_messages: Vec::new(),
            delivery: Box::new(|_, _| vec![DELAY]),
            transitions: Default::default(),
            in_flight: BTreeMap::new(),
            sent: 0,
        }
    }

    /// Returns the time since the start.
    pub fn at(&self) -> Duration {
        self.now.saturating_since(Instant::ZERO)
    }

    /// Starts a listener on [`PORT`] at end `end`, with an address or any.
    ///
    /// # Panics
    /// If the endpoint refuses.
    pub fn listen(&mut self, end: usize, space: PortSpace, ip: &str, backlog: u32) -> CmId {
        self.listen_with_type(end, (space, QpKind::of(space)), ip, backlog)
    }

    /// Like [`Pair::listen`], for a QP type other than the default of the port space.
    ///
    /// # Panics
    /// If the endpoint refuses.
    pub fn listen_with_type(
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

    /// Creates an identifier at `end` with a resolved route to the other end.
    ///
    /// # Panics
    /// If the endpoint refuses.
    pub fn route(&mut self, end: usize, space: PortSpace, v6: bool, port: u16) -> CmId {
        self.route_with_type(end, (space, QpKind::of(space)), v6, port)
    }

    /// Like [`Pair::route`], for a QP type other than the default of the port space.
    ///
    /// # Panics
    /// If the endpoint refuses.
    pub fn route_with_type(
        &mut self,
        end: usize,
        (space, kind): (PortSpace, QpKind),
        v6: bool,
        port: u16,
    ) -> CmId {
        let endpoint = &mut self.ends[end];
        let id = endpoint.create(space, kind);
        self.transitions[end].know(id);
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
        endpoint.address_resolved(id, Ok(path)).expect("a pending request");
        endpoint.resolve_route(id).expect("resolved");
        endpoint.route_resolved(id, Ok(())).expect("a pending request");
        for kind in [EventKind::AddrResolved, EventKind::RouteResolved] {
            let event = endpoint.event().expect("an event");
            assert_eq!((event.id, event.kind), (id, kind));
        }
        id
    }

    /// Connects to [`PORT`] of the other end, from the QP `qpn`.
    ///
    /// # Panics
    /// If the endpoint refuses.
    pub fn connect(&mut self, end: usize, space: PortSpace, qpn: u32, data: &[u8]) -> CmId {
        let id = self.route(end, space, false, PORT);
        let now = self.now;
        self.ends[end].connect(id, &parameters(qpn), data, now).expect("a route");
        self.flush();
        id
    }

    /// Accepts the request `id` at `end` with the QP `qpn`.
    ///
    /// # Panics
    /// If the endpoint refuses.
    pub fn accept(&mut self, end: usize, id: CmId, qpn: u32, data: &[u8]) {
        self.ends[end].accept(id, &parameters(qpn), data, self.now).expect("a pending request");
        self.flush();
    }

    /// Moves the outgoing messages of both ends to the wire and collects their events, after a call
    /// of a program.
    ///
    /// # Panics
    /// If an end sends an invalid message.
    pub fn flush(&mut self) {
        self.flush_after(CALL);
    }

    fn flush_after(&mut self, cause: &'static str) {
        for by in 0..2 {
            while let Some(outgoing) = self.ends[by].transmit() {
                self.send(by, outgoing);
            }
            while let Some(event) = self.ends[by].event() {
                self.transitions[by].know(event.id);
                self.delivered.push((self.at(), by, event));
            }
            let end = &self.ends[by];
            self.transitions[by].note(cause, |id| end.state(id).ok());
        }
    }

    fn send(&mut self, by: usize, outgoing: Outgoing) {
        let Outgoing { local, remote, mad, .. } = outgoing;
        let v6 = local.is_ipv6();
        assert_eq!((local, remote), (address(by, v6), address(1 - by, v6)), "addresses of a MAD");
        let message = CmMad::parse(&mad).expect("a valid message").message;
        self.sent_messages.push(SentMessage { at: self.at(), by, message });
        let source = Source { device: DEVICE, local: remote, remote: local };
        for delay in (self.delivery)(by, &message) {
            self.sent += 1;
            self.in_flight.insert((self.now + delay, self.sent), (1 - by, source, mad));
        }
    }

    /// Returns the time of the next arrival or deadline.
    pub fn next(&self) -> Option<Instant> {
        let arrival = self.in_flight.first_key_value().map(|((at, _), _)| *at);
        let deadlines = self.ends.iter().map(Endpoint::next_deadline);
        deadlines.chain([arrival]).flatten().min()
    }

    /// Advances to the next arrival or deadline, if it is not after `until`. Returns false if there
    /// is none.
    ///
    /// # Panics
    /// If an end cannot parse a message.
    pub fn step(&mut self, until: Instant) -> bool {
        let Some(next) = self.next().filter(|next| *next <= until) else { return false };
        assert!(next > self.now || !self.in_flight.is_empty() || next == self.now, "time goes on");
        self.now = self.now.max(next);
        while let Some(((at, _), _)) = self.in_flight.first_key_value()
            && *at <= self.now
            && let Some((_, (to, source, mad))) = self.in_flight.pop_first()
        {
            self.ends[to].receive(&mad, &source, self.now).expect("a message");
            self.flush_after(CmMad::parse(&mad).expect("a message").message.name());
        }
        for end in 0..2 {
            self.ends[end].expire(self.now);
        }
        self.flush_after(TIMER);
        true
    }

    /// Runs until `millis` milliseconds after the start.
    pub fn run_until(&mut self, millis: u64) {
        let until = Instant::from_nanos(millis * 1_000_000);
        while self.step(until) {}
        self.now = until;
    }

    /// Runs until there are no more arrivals and deadlines.
    ///
    /// # Panics
    /// If that takes longer than a day.
    pub fn run_out(&mut self) {
        let until = self.now + Duration::from_secs(86_400);
        while self.step(until) {}
        assert_eq!(self.next(), None);
    }

    /// Returns the messages sent since the last call: milliseconds, end, name.
    pub fn trace(&mut self) -> Vec<(u64, usize, &'static str)> {
        let messages = std::mem::take(&mut self.sent_messages);
        messages.iter().map(|sent| (millis(sent.at), sent.by, sent.message.name())).collect()
    }

    /// Returns the events delivered since the last call: milliseconds, end, kind.
    pub fn events(&mut self) -> Vec<(u64, usize, EventKind)> {
        let events = std::mem::take(&mut self.delivered);
        events.iter().map(|(at, end, event)| (millis(*at), *end, event.kind)).collect()
    }

    /// Takes the oldest event, which must be of `end` and of `kind`.
    ///
    /// # Panics
    /// If the oldest event is another one.
    #[track_caller]
    pub fn expect(&mut self, end: usize, kind: EventKind) -> Event {
        assert!(!self.delivered.is_empty(), "no event, {kind:?} was expected");
        let (_, by, event) = self.delivered.remove(0);
        assert_eq!((by, event.kind), (end, kind), "{event:?}");
        if kind == EventKind::ConnectRequest {
            self.ends[end].take_request(event.id).expect("it is new");
        }
        event
    }

    /// Drops the first `count` messages with the name `name`.
    pub fn lose(&mut self, name: &'static str, mut count: u32) {
        self.delivery = Box::new(move |_, message| {
            let hit = message.name() == name && count > 0;
            count -= u32::from(hit);
            if hit { Vec::new() } else { vec![DELAY] }
        });
    }

    /// Checks that both endpoints hold no objects.
    ///
    /// # Panics
    /// If an endpoint holds an object.
    #[track_caller]
    pub fn assert_empty(&self) {
        for end in &self.ends {
            assert_eq!(end.object_counts(), ObjectCounts::default(), "{end:?}");
        }
    }
}

/// Returns whole milliseconds.
///
/// # Panics
/// If the number does not fit in a `u64`.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).expect("a short time")
}
