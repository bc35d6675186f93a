//! A relay in user space: it forwards the frames between two interfaces, through an injector if one
//! is inserted. It knows its own delay and its own losses, which are no behaviour of the endpoints.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use feroce_engine::port::af_xdp::{AfXdpError, Bridge, XdpMode};
use feroce_engine::port::packet::{Offload, Tap};
use feroce_engine::time::wall_clock;
use hdrhistogram::Histogram;
use nix::sched::{CloneFlags, setns};

use super::injector::Injector;
use crate::endpoint::{Failure, failed};

/// Size of the kernel's receive buffer for frames, in bytes.
const RX_BYTES: u32 = 8 << 20;
/// Time for which the relay sleeps when no frame arrives.
const IDLE_SLEEP: Duration = Duration::from_micros(20);
/// The longest delay that is told apart, in nanoseconds.
const LONGEST: u64 = 100_000_000_000;

/// Two interfaces and their network namespace.
#[derive(Debug, Clone)]
pub struct RelayInterfaces {
    /// Names of the interfaces, the one on the requester's side first.
    pub interfaces: [String; 2],
    /// Name of the network namespace; `None` for the caller's.
    pub namespace: Option<String>,
    /// XDP programs forward what concerns no flow of a script, in this mode; `None`: the relay
    /// forwards everything.
    pub xdp: Option<XdpMode>,
}

/// Runs `act` in another network namespace.
///
/// # Errors
/// The error of `act`, or why the namespace cannot be entered.
pub fn within<T>(
    namespace: Option<&str>,
    act: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let Some(name) = namespace else { return act() };
    let enter = |path: &str| File::open(path).map_err(failed(path.to_owned()));
    let back = enter("/proc/thread-self/ns/net")?;
    let there = enter(&format!("/run/netns/{name}"))?;
    setns(there, CloneFlags::CLONE_NEWNET).map_err(failed("enter a namespace"))?;
    let done = act();
    setns(back, CloneFlags::CLONE_NEWNET).map_err(failed("leave a namespace"))?;
    done
}

/// The relay. It runs until it is dropped.
#[derive(Debug)]
pub struct Relay {
    shared: Arc<Mutex<Shared>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What the relay's thread shares.
#[derive(Debug)]
struct Shared {
    /// The injector between the interfaces.
    injector: Option<Injector>,
    report: RelayReport,
    /// How often the injector was inserted or removed.
    changes: u64,
    /// The changes that the relay's thread has followed.
    followed: u64,
}

/// What the relay itself did to the frames.
#[derive(Debug, Clone)]
pub struct RelayReport {
    /// Nanoseconds from the arrival of a frame, by the kernel's timestamp, until the relay hands it
    /// to the kernel, less the delay that an event asked for.
    delays: Histogram<u64>,
    /// Frames that arrived, and that the kernel had no room for.
    pub lost_on_arrival: u64,
    /// Frames that the outgoing interface did not take.
    pub lost_on_departure: u64,
    /// Why the relay has ended, if it has.
    ended: Option<String>,
}

impl Default for RelayReport {
    fn default() -> Self {
        let delays = Histogram::new_with_bounds(1, LONGEST, 2).expect("valid bounds");
        Self { delays, lost_on_arrival: 0, lost_on_departure: 0, ended: None }
    }
}

impl RelayReport {
    /// Returns the number of frames that the relay lost.
    pub const fn lost(&self) -> u64 {
        self.lost_on_arrival + self.lost_on_departure
    }

    /// Checks that the relay saw and forwarded everything: without that nothing can be judged.
    ///
    /// # Errors
    /// What is missing.
    pub fn is_whole(&self) -> Result<(), Failure> {
        match (&self.ended, self.lost()) {
            (Some(why), _) => Err(Failure(format!("the relay has ended: {why}"))),
            (None, 0) => Ok(()),
            (None, lost) => Err(Failure(format!("the relay itself lost {lost} frames"))),
        }
    }

    /// Returns the number of forwarded frames.
    pub fn frames(&self) -> u64 {
        self.delays.len()
    }

    /// Adds what the relay did for another script.
    ///
    /// # Panics
    /// Never: all reports have the same bounds.
    pub fn add(&mut self, other: &Self) {
        self.delays.add(&other.delays).expect("equal bounds");
        self.lost_on_arrival += other.lost_on_arrival;
        self.lost_on_departure += other.lost_on_departure;
    }

    /// Returns the delay that a share of the frames does not exceed, in nanoseconds; 0 without
    /// frames.
    pub fn delay(&self, share: f64) -> u64 {
        self.delays.value_at_quantile(share)
    }
}

impl Relay {
    /// Opens both interfaces and starts the relay.
    ///
    /// # Errors
    /// An error of the kernel.
    pub fn open(between: &RelayInterfaces) -> Result<Self, Failure> {
        let taps = within(between.namespace.as_deref(), || {
            let open =
                |name: &String| Tap::open_timestamped(name, RX_BYTES).map_err(failed(name.clone()));
            let [one, other] = &between.interfaces;
            let taps = [open(one)?, open(other)?];
            let bridge = |mode| Bridge::open([one, other], mode).map_err(failed("XDP"));
            Ok((taps, between.xdp.map(bridge).transpose()?))
        })?;
        let (taps, bridge) = taps;
        let report = RelayReport::default();
        let shared = Shared { injector: None, report, changes: 1, followed: 0 };
        let (shared, stop) = (Arc::new(Mutex::new(shared)), Arc::new(AtomicBool::new(false)));
        let mut wire = Wire {
            taps,
            shared: Arc::clone(&shared),
            in_flight: BTreeMap::new(),
            sequence: 0,
            drops: 0,
            fast: bridge.map(|bridge| FastPath { bridge, watched: None }),
        };
        let stopped = Arc::clone(&stop);
        let thread = feroce_threads::spawn("feroce-relay", move || {
            while !stopped.load(Ordering::Relaxed) {
                match wire.turn() {
                    Ok(0) => std::thread::sleep(IDLE_SLEEP),
                    Ok(_) => {}
                    Err(error) => {
                        eprintln!("feroce: the relay ends: {error}");
                        let shared = wire.shared.lock();
                        shared.expect("the relay runs").report.ended = Some(error.to_string());
                        return;
                    }
                }
            }
        })
        .map_err(failed("a thread".to_owned()))?;
        Ok(Self { shared, stop, thread: Some(thread) })
    }

    /// Sets the injector between the interfaces, or removes it (`None`), and waits until the relay
    /// has followed. An injector begins a new report. Returns the previous injector.
    ///
    /// # Panics
    /// If the relay's thread has panicked.
    pub fn put(&self, injector: Option<Injector>) -> Option<Injector> {
        let mut shared = self.shared.lock().expect("the relay runs");
        let previous = std::mem::replace(&mut shared.injector, injector);
        shared.changes += 1;
        let change = shared.changes;
        while shared.followed < change && shared.report.ended.is_none() {
            drop(shared);
            std::thread::sleep(IDLE_SLEEP);
            shared = self.shared.lock().expect("the relay runs");
        }
        previous
    }

    /// Returns what the relay did since an injector was inserted.
    ///
    /// # Panics
    /// If the relay's thread has panicked.
    pub fn report(&self) -> RelayReport {
        self.shared.lock().expect("the relay runs").report.clone()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A frame that the relay has not sent yet.
struct InFlight {
    /// The outgoing interface.
    to: usize,
    /// When it arrived, plus the delay that an event asked for.
    due: Duration,
    bytes: Vec<u8>,
    offload: Offload,
}

/// The state of the relay's thread.
struct Wire {
    taps: [Tap; 2],
    shared: Arc<Mutex<Shared>>,
    /// Frames by the time of sending, since 1970, and by order.
    in_flight: BTreeMap<(Duration, u64), InFlight>,
    sequence: u64,
    /// Frames that the kernel had no room for, in all.
    drops: u64,
    fast: Option<FastPath>,
}

/// Frames that the relay does not see.
struct FastPath {
    bridge: Bridge,
    /// The QPs whose frames the relay sees; `None` for all.
    watched: Option<Vec<u32>>,
}

impl FastPath {
    /// Lets the relay see the frames that concern the injector. While flows are learned, these are
    /// all RoCE frames.
    fn follow(&mut self, injector: Option<&Injector>) -> std::io::Result<()> {
        let wanted = match injector {
            None => Some(Vec::new()),
            Some(injector) => injector.flows().settled(),
        };
        if wanted == self.watched {
            return Ok(());
        }
        // All frames in between, so that none is missed.
        let failed = |error: AfXdpError| std::io::Error::other(error.to_string());
        self.bridge.watch_all(true).map_err(failed)?;
        for qpn in self.watched.iter().flatten() {
            self.bridge.watch(*qpn, false).map_err(failed)?;
        }
        for qpn in wanted.iter().flatten() {
            self.bridge.watch(*qpn, true).map_err(failed)?;
        }
        if wanted.is_some() {
            self.bridge.watch_all(false).map_err(failed)?;
        }
        self.watched = wanted;
        Ok(())
    }
}

impl Wire {
    /// Receives frames and sends the frames that are due. Returns their number.
    fn turn(&mut self) -> std::io::Result<usize> {
        let shared = Arc::clone(&self.shared);
        let mut shared = shared.lock().expect("no thread panics while it holds the lock");
        let Shared { injector, report, changes, followed } = &mut *shared;
        if let Some(fast) = &mut self.fast {
            fast.follow(injector.as_ref())?;
        }
        if changes != followed {
            // What was lost before an injector is not its report's; what was lost until its end is.
            self.count_drops(report);
            if injector.is_some() {
                *report = RelayReport::default();
            }
            *followed = *changes;
        }
        let mut moved = 0;
        for from in 0..2 {
            moved += self.receive(from, injector.as_mut())?;
        }
        moved += self.send(report);
        Ok(moved)
    }

    fn count_drops(&mut self, report: &mut RelayReport) {
        let drops = self.taps.iter_mut().map(Tap::drops).sum();
        report.lost_on_arrival += drops - std::mem::replace(&mut self.drops, drops);
    }

    fn receive(
        &mut self,
        from: usize,
        mut injector: Option<&mut Injector>,
    ) -> std::io::Result<usize> {
        let count = self.taps[from].receive()?;
        let now = wall_clock();
        for index in 0..count {
            let frame = self.taps[from].frame(index);
            let (mut bytes, offload) = (frame.bytes.to_vec(), frame.offload);
            let arrived = frame.arrived.unwrap_or(now).min(now);
            // A super-frame is not RoCE: that was cut into its packets.
            let offload = match offload.is_super_frame() {
                true => offload,
                false => offload.complete(&mut bytes),
            };
            match injector.as_deref_mut() {
                Some(injector) if !offload.is_super_frame() => {
                    let at = u64::try_from(arrived.as_nanos()).unwrap_or(u64::MAX);
                    for forwarded in injector.take(&bytes, at) {
                        let due = arrived.saturating_add(forwarded.after);
                        self.push(1 - from, due, forwarded.bytes, offload);
                    }
                }
                _ => self.push(1 - from, arrived, bytes, offload),
            }
        }
        Ok(count)
    }

    fn push(&mut self, to: usize, due: Duration, bytes: Vec<u8>, offload: Offload) {
        self.in_flight.insert((due, self.sequence), InFlight { to, due, bytes, offload });
        self.sequence += 1;
    }

    fn send(&mut self, report: &mut RelayReport) -> usize {
        let mut sent = 0;
        while let Some(entry) = self.in_flight.first_entry() {
            let now = wall_clock();
            if entry.key().0 > now {
                break;
            }
            let InFlight { to, due, bytes, offload } = entry.remove();
            let late = now.saturating_sub(due).as_nanos();
            report.delays.saturating_record(u64::try_from(late).unwrap_or(u64::MAX));
            report.lost_on_departure += u64::from(self.taps[to].send(&bytes, offload).is_err());
            sent += 1;
        }
        sent
    }
}
