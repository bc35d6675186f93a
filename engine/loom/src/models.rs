//! Programs of two or three threads. Each asserts what must hold in every order of its steps.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use feroce_wire::{Key, Qpn};
use loom::thread;

use crate::core::doorbell::Doorbell;
use crate::device::helper_sleep::HelperSleep;
use crate::memory::Guarded;
use crate::memory::arena::Arena;
use crate::memory::frame_ring::frame_ring;
use crate::memory::queue::queue;
use crate::memory::shared_ring::SharedRing;
use crate::memory::work_ring::{Sge, work_ring};
use crate::port::Priority;
use crate::sync::{AtomicBool, AtomicU32, Mutex, Ordering, yield_now};
use crate::time::Instant;
use crate::verbs::completion::{Completion, CompletionOpcode, Extra, Status};
use crate::verbs::cq::{CqRing, Notify};
use crate::verbs::ids::CqId;
use crate::wake;

/// The models by name.
pub const ALL: &[(&str, fn())] = &[
    ("work-ring", posts_cross_a_work_ring),
    ("queue", values_of_two_producers_cross_a_queue),
    ("queue-reuse", places_of_a_queue_are_used_again),
    ("frame-ring", frames_cross_a_ring),
    ("frame-ring-consumer-sleeps", a_sleeping_consumer_hears_of_a_frame),
    ("frame-ring-producer-sleeps", a_sleeping_producer_hears_of_room),
    ("shared-ring", receives_cross_a_shared_ring),
    ("key", fields_belong_to_their_key),
    ("key-stale", a_stale_key_invalidates_no_other),
    ("key-dropped", a_dropped_window_stays_unbound),
    ("cq", a_sleeping_program_hears_of_a_completion),
    ("cq-two-cores", a_program_hears_of_the_completions_of_two_cores),
    ("doorbell", no_ring_of_two_posters_is_lost),
    ("helper", a_sleeping_helper_hears_of_a_post),
    ("helper-deadline", a_sleeping_helper_hears_of_an_earlier_deadline),
];

/// Three requests through two slots: contents, order, and slots that are used again.
fn posts_cross_a_work_ring() {
    const POSTS: u64 = 3;
    let (mut posts, mut core) = work_ring::<u64>(&Arc::new(Arena), 2, 16).unwrap();
    let sge = |n: u64| Sge { addr: n, length: 1, lkey: Key(2) };
    let poster = thread::spawn(move || {
        for n in 0..POSTS {
            while !posts.push(&n, &[sge(n)]) {
                yield_now();
            }
        }
    });
    for n in 0..POSTS {
        while core.is_empty() {
            yield_now();
        }
        assert_eq!(core.get(core.head()), Some(&n));
        assert_eq!(core.posted(core.head()).unwrap().sges(1), [sge(n)]);
        core.retire();
    }
    poster.join().unwrap();
}

/// Two cores complete at once: no value is lost, doubled or torn.
fn values_of_two_producers_cross_a_queue() {
    let (queue, mut consumer) = queue::<[u64; 2]>(2);
    let producers = [1, 2].map(|n| {
        let queue = Arc::clone(&queue);
        thread::spawn(move || assert!(queue.push(&[n; 2], 2)))
    });
    let mut sum = 0;
    while sum < 3 {
        match consumer.pop() {
            Some([a, b]) => {
                assert_eq!(a, b);
                sum += a;
            }
            None => yield_now(),
        }
    }
    producers.into_iter().for_each(|producer| producer.join().unwrap());
    assert_eq!((sum, consumer.pop()), (3, None));
}

/// A producer writes to a place only after the consumer has read it.
fn places_of_a_queue_are_used_again() {
    let (queue, mut consumer) = queue::<u64>(1);
    let producer = {
        let queue = Arc::clone(&queue);
        thread::spawn(move || {
            for n in 0..3 {
                while !queue.push(&n, 1) {
                    yield_now();
                }
            }
        })
    };
    for n in 0..3 {
        let value = loop {
            match consumer.pop() {
                Some(value) => break value,
                None => yield_now(),
            }
        };
        assert_eq!(value, n);
    }
    producer.join().unwrap();
}

/// Frames in batches through two slots.
fn frames_cross_a_ring() {
    wake::begin();
    let (mut producer, mut consumer) = frame_ring(&Arc::new(Arena), 2, 16).unwrap();
    let sender = thread::spawn(move || {
        for n in 0..3 {
            while !producer.push(&[n; 4], &[n; 3], Priority::new(n)) {
                yield_now();
            }
            producer.publish();
        }
        producer
    });
    let mut next = 0;
    while next < 3 {
        let burst = consumer.burst();
        for index in 0..burst {
            assert_eq!(consumer.frame(index), (&[next; 7][..], Priority::new(next)));
            next += 1;
        }
        if burst == 0 {
            yield_now();
        }
    }
    drop((sender.join().unwrap(), consumer));
}

fn a_sleeping_consumer_hears_of_a_frame() {
    wake::begin();
    let (mut producer, mut consumer) = frame_ring(&Arc::new(Arena), 2, 16).unwrap();
    let sender = thread::spawn(move || {
        for n in 0..2 {
            assert!(producer.push(&[n], &[], Priority::new(0)));
            producer.publish();
        }
        producer
    });
    let mut next = 0;
    while next < 2 {
        if consumer.arm() {
            wake::poll(&[consumer.fd()]);
            consumer.disarm();
        }
        for index in 0..consumer.burst() {
            assert_eq!(consumer.frame(index).0, [next]);
            next += 1;
        }
    }
    drop((sender.join().unwrap(), consumer));
}

fn a_sleeping_producer_hears_of_room() {
    wake::begin();
    let (mut producer, mut consumer) = frame_ring(&Arc::new(Arena), 1, 16).unwrap();
    assert!(producer.push(&[0], &[], Priority::new(0)));
    producer.publish();
    let receiver = thread::spawn(move || {
        assert_eq!(consumer.burst(), 1);
        assert_eq!(consumer.frame(0).0, [0]);
        consumer.burst(); // Gives the frame back.
        consumer
    });
    while !producer.push(&[1], &[], Priority::new(0)) {
        if producer.arm() {
            wake::poll(&[producer.fd()]);
            producer.disarm();
        }
    }
    drop((receiver.join().unwrap(), producer));
}

/// A program posts receives through one slot while two cores look for one. Each finds what was
/// posted, or nothing.
fn receives_cross_a_shared_ring() {
    let ring = Arc::new(SharedRing::<u64>::new(&Arc::new(Arena), 1, 1).unwrap());
    let sge = |n: u64| Sge { addr: n, length: 1, lkey: Key(2) };
    let take = move |ring: &Arc<SharedRing<u64>>| {
        let taken = ring.take()?;
        assert_eq!(taken.sges(1), [sge(*taken.request())]);
        Some(*taken.request())
    };
    let cores = [0, 1].map(|_| {
        let ring = Arc::clone(&ring);
        thread::spawn(move || take(&ring))
    });
    let posted: Vec<u64> = (1..=2).filter(|n| ring.push(n, &[sge(*n)])).collect();
    let taken = cores.map(|core| core.join().unwrap());
    let taken = taken.into_iter().flatten().chain(take(&ring)).sum::<u64>();
    assert_eq!(taken, posted.iter().sum());
}

/// A program changes a region while two readers use it: no reader gets fields of another key.
fn fields_belong_to_their_key() {
    let slot = Arc::new(Guarded::default());
    assert!(slot.bind(1));
    let readers = [1, 2].map(|key| {
        let slot = Arc::clone(&slot);
        thread::spawn(move || {
            let read = slot.read(key);
            assert!(read.is_none_or(|fields| fields == [key.into(); 2]), "{read:?} of {key}");
        })
    });
    assert!(slot.bind(2));
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    assert_eq!((slot.read(1), slot.read(2)), (None, Some([2; 2])));
}

/// A peer invalidates a key while another core binds the window anew: the new key stays valid.
fn a_stale_key_invalidates_no_other() {
    let slot = Arc::new(Guarded::default());
    assert!(slot.bind(1));
    let peer = {
        let slot = Arc::clone(&slot);
        thread::spawn(move || slot.invalidate(1))
    };
    let is_bound = slot.bind(2);
    let is_invalidated = peer.join().unwrap();
    assert!(is_bound || is_invalidated, "one of them could");
    assert_eq!(slot.read(2).is_some(), is_bound);
}

/// A program drops a window while a core binds it: no key is valid afterwards.
fn a_dropped_window_stays_unbound() {
    let slot = Arc::new(Guarded::default());
    assert!(slot.bind(1));
    let core = {
        let slot = Arc::clone(&slot);
        thread::spawn(move || slot.bind_unless_dropped(2))
    };
    slot.drop_fields(1);
    core.join().unwrap();
    assert_eq!((slot.read(1), slot.read(2)), (None, None));
}

fn completion(wr_id: u64) -> Completion {
    Completion {
        wr_id,
        status: Status::Success,
        opcode: CompletionOpcode::Receive,
        byte_len: 0,
        extra: Extra::None,
        solicited: false,
        qp: Qpn::masked(5),
        at: Instant::ZERO,
        datagram: None,
    }
}

/// Sleeps for `count` completions as verbs applications do: polls until the queue is empty, arms
/// it, and sleeps without a second look.
fn sleep_for(cq: &CqRing, count: u64) {
    let fd = cq.open_fd().unwrap().unwrap().as_raw_fd();
    let mut taken = 0;
    loop {
        while cq.pop().is_some() {
            taken += 1;
        }
        if taken == count {
            return;
        }
        cq.arm(Notify::Any);
        wake::poll(&[fd]);
    }
}

fn cq() -> Arc<CqRing> {
    wake::begin();
    let cq = CqRing::new(CqId(1), 4);
    cq.open_fd().unwrap();
    Arc::new(cq)
}

fn a_sleeping_program_hears_of_a_completion() {
    let cq = cq();
    let core = {
        let cq = Arc::clone(&cq);
        thread::spawn(move || {
            for n in 0..2 {
                cq.push(completion(n)).unwrap();
            }
        })
    };
    sleep_for(&cq, 2);
    core.join().unwrap();
}

fn a_program_hears_of_the_completions_of_two_cores() {
    let cq = cq();
    let cores = [1, 2].map(|n| {
        let cq = Arc::clone(&cq);
        thread::spawn(move || cq.push(completion(n)).unwrap())
    });
    sleep_for(&cq, 2);
    cores.into_iter().for_each(|core| core.join().unwrap());
}

/// Two threads post to QPs of one core, which polls.
fn no_ring_of_two_posters_is_lost() {
    wake::begin();
    let doorbell = Arc::new(Doorbell::new(2).unwrap());
    let qps: Arc<[Qp; 2]> = Arc::default();
    let posters = [0, 1].map(|slot: u32| {
        let (doorbell, qps) = (Arc::clone(&doorbell), Arc::clone(&qps));
        thread::spawn(move || {
            for _ in 0..2 - slot {
                qps[slot as usize].post(slot, &doorbell);
            }
        })
    });
    let mut done = 0;
    while done < 3 {
        match turn(&doorbell, &*qps) {
            0 => yield_now(),
            some => done += some,
        }
    }
    posters.into_iter().for_each(|poster| poster.join().unwrap());
}

/// A QP of a model.
#[derive(Default)]
struct Qp {
    posted: AtomicBool,
    /// Requests posted so far.
    requests: AtomicU32,
    /// Requests handled so far. Only the holder of the token uses it.
    handled: AtomicU32,
}

impl Qp {
    /// Only one thread at a time posts to a QP.
    fn post(&self, slot: u32, doorbell: &Doorbell) {
        let requests = self.requests.load(Ordering::Relaxed);
        self.requests.store(requests + 1, Ordering::Release);
        doorbell.ring(slot, &self.posted);
    }
}

/// Handles the doorbells as `Core::handle_doorbells` does. Returns the number of requests.
fn turn(doorbell: &Doorbell, qps: &[Qp]) -> u32 {
    let mut done = 0;
    while let Some(slot) = doorbell.next_slot() {
        let qp = &qps[slot as usize];
        qp.posted.swap(false, Ordering::AcqRel);
        let requests = qp.requests.load(Ordering::Acquire);
        done += requests - qp.handled.load(Ordering::Relaxed);
        qp.handled.store(requests, Ordering::Relaxed);
    }
    done
}

/// What the token guards in the models of the helper.
#[derive(Default)]
struct Core {
    done: u32,
    deadline: Option<Instant>,
}

/// A core with its helper, as `CoreCell`.
struct Cell {
    core: Mutex<Core>,
    doorbell: Doorbell,
    helper_sleep: HelperSleep,
    qp: Qp,
}

impl Cell {
    fn new() -> Arc<Self> {
        wake::begin();
        Arc::new(Self {
            core: Mutex::new(Core::default()),
            doorbell: Doorbell::new(1).unwrap(),
            helper_sleep: HelperSleep::new(),
            qp: Qp::default(),
        })
    }

    /// Runs turns until `is_done`, and sleeps between them as `Sleeper::sleep` does.
    fn run_helper(&self, is_done: impl Fn(&Core) -> bool) {
        loop {
            let mut core = self.core.lock().unwrap();
            core.done += turn(&self.doorbell, std::slice::from_ref(&self.qp));
            if is_done(&core) {
                return;
            }
            drop(core);
            let core = self.core.lock().unwrap();
            let is_quiet = self.doorbell.request_wake_up();
            let until = core.deadline.unwrap_or(Instant::FAR);
            self.helper_sleep.begin(until);
            drop(core);
            // A sleep with a deadline ends by itself.
            if is_quiet && until == Instant::FAR {
                wake::poll(&[self.doorbell.fd().as_raw_fd()]);
            }
            self.helper_sleep.end();
            let _token = self.core.lock().unwrap();
            self.doorbell.disarm();
        }
    }

    /// Runs a turn as a thread that polls does. It leaves `deadline` in the core.
    fn poll(&self, deadline: Option<Instant>) {
        let mut core = self.core.lock().unwrap();
        core.done += turn(&self.doorbell, std::slice::from_ref(&self.qp));
        core.deadline = deadline;
        if self.helper_sleep.is_too_long(|| core.deadline) {
            self.helper_sleep.end();
            self.doorbell.wake();
        }
    }
}

/// A thread posts while the helper goes to sleep.
fn a_sleeping_helper_hears_of_a_post() {
    let cell = Cell::new();
    let poster = {
        let cell = Arc::clone(&cell);
        thread::spawn(move || {
            cell.qp.post(0, &cell.doorbell);
            cell.qp.post(0, &cell.doorbell);
        })
    };
    cell.run_helper(|core| core.done == 2);
    poster.join().unwrap();
}

/// A thread posts, runs a turn, and leaves a deadline, while the helper goes to sleep.
fn a_sleeping_helper_hears_of_an_earlier_deadline() {
    let cell = Cell::new();
    let program = {
        let cell = Arc::clone(&cell);
        thread::spawn(move || {
            cell.doorbell.enter(0, &cell.qp.posted);
            cell.poll(Some(Instant::from_nanos(1)));
        })
    };
    cell.run_helper(|core| core.deadline.is_some());
    program.join().unwrap();
}
