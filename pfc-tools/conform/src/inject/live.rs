//! Two interfaces in real time: a relay in user space forwards frames between them, and endpoints
//! exchange them.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use feroce_engine::congestion::Control;
use feroce_engine::counters::Counter;
use feroce_engine::device::{Device, PortKind};
use feroce_engine::files;
use feroce_engine::port::packet::{Offload, Tap};
use feroce_engine::time::Clock;
use nix::sched::{CloneFlags, setns};

use super::injector::Injector;
use super::play::{Ends, Testbed};
use super::script::Script;
use super::trace::Side;
use crate::endpoint::agent::RxeEnd;
use crate::endpoint::end::{End, Pace, RealPace};
use crate::endpoint::feroce::{self, FeroceEnd};
use crate::endpoint::{Failure, failed};

/// Size of the kernel's receive buffer for frames, in bytes.
const RX_BYTES: u32 = 8 << 20;
/// Time for which the relay sleeps when no frame arrives.
const IDLE_SLEEP: Duration = Duration::from_micros(20);
/// How much later than required an endpoint may act: a guest without KVM on a busy machine is slow.
pub const SLACK: Duration = Duration::from_millis(20);

/// Two interfaces and their network namespace.
#[derive(Debug, Clone)]
pub struct RelayInterfaces {
    /// Names of the interfaces, the one on the requester's side first.
    pub interfaces: [String; 2],
    /// Name of the network namespace; `None` for the caller's.
    pub namespace: Option<String>,
}

/// The stack of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stack {
    /// Feroce, in this process.
    Feroce {
        /// The network namespace.
        namespace: String,
        /// The interface in it.
        interface: String,
        /// The kind of port.
        port: PortKind,
    },
    /// Linux rxe, through the agent of `tests/rxe`.
    Rxe {
        /// The network namespace from which the agent is reached.
        namespace: String,
    },
}

impl std::str::FromStr for Stack {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<_> = text.split(':').collect();
        match words[..] {
            ["feroce", namespace, interface, port] => Ok(Self::Feroce {
                namespace: namespace.to_owned(),
                interface: interface.to_owned(),
                port: port.parse().map_err(|_| format!("no port of the kind `{port}`"))?,
            }),
            ["rxe", namespace] => Ok(Self::Rxe { namespace: namespace.to_owned() }),
            _ => Err("expected feroce:NAMESPACE:INTERFACE:PORT or rxe:NAMESPACE".to_owned()),
        }
    }
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

/// The injector between the interfaces, shared with the relay's thread.
type Shared = Arc<Mutex<Option<Injector>>>;

/// The relay. It runs until it is dropped.
#[derive(Debug)]
pub struct Relay {
    injector: Shared,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Opens both interfaces and starts the relay.
    ///
    /// # Errors
    /// An error of the kernel.
    pub fn open(between: &RelayInterfaces) -> Result<Self, Failure> {
        let taps = within(between.namespace.as_deref(), || {
            let open = |name: &String| Tap::open(name, RX_BYTES).map_err(failed(name.clone()));
            Ok([open(&between.interfaces[0])?, open(&between.interfaces[1])?])
        })?;
        let (injector, stop) = (Shared::default(), Arc::new(AtomicBool::new(false)));
        let mut wire = Wire {
            taps,
            injector: Arc::clone(&injector),
            clock: Clock::start(),
            in_flight: BTreeMap::new(),
            sequence: 0,
        };
        let stopped = Arc::clone(&stop);
        let thread = feroce_threads::spawn("feroce-relay", move || {
            while !stopped.load(Ordering::Relaxed) {
                match wire.turn() {
                    Ok(0) => std::thread::sleep(IDLE_SLEEP),
                    Ok(_) => {}
                    Err(error) => {
                        eprintln!("feroce: an interface is gone: {error}");
                        return;
                    }
                }
            }
        })
        .map_err(failed("a thread".to_owned()))?;
        Ok(Self { injector, stop, thread: Some(thread) })
    }

    /// Sets the injector between the interfaces, or removes it (`None`). Returns the previous one.
    ///
    /// # Panics
    /// If the relay's thread has panicked.
    pub fn put(&self, injector: Option<Injector>) -> Option<Injector> {
        let mut place = self.injector.lock().expect("the relay runs");
        std::mem::replace(&mut place, injector)
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

/// The state of the relay's thread.
struct Wire {
    taps: [Tap; 2],
    injector: Shared,
    clock: Clock,
    /// Frames in flight, by time and order: the destination and the bytes.
    in_flight: BTreeMap<(u64, u64), (usize, Vec<u8>)>,
    sequence: u64,
}

impl Wire {
    /// Receives frames and sends the frames that are due. Returns their number.
    fn turn(&mut self) -> std::io::Result<usize> {
        let mut moved = 0;
        for from in 0..2 {
            let count = self.taps[from].receive()?;
            moved += count;
            for index in 0..count {
                let frame = self.taps[from].frame(index);
                let (mut bytes, offload) = (frame.bytes.to_vec(), frame.offload);
                if !offload.is_super_frame() {
                    offload.complete(&mut bytes);
                    self.take(1 - from, bytes);
                }
            }
        }
        let now = self.clock.now().as_nanos();
        while let Some(entry) = self.in_flight.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let (to, bytes) = entry.remove();
            moved += 1;
            // If the interface has no room, the frame is lost, as on a real link.
            let _ = self.taps[to].send(&bytes, Offload::default());
        }
        Ok(moved)
    }

    fn take(&mut self, to: usize, bytes: Vec<u8>) {
        let now = self.clock.now().as_nanos();
        let mut injector = self.injector.lock().expect("no thread panics while it holds the lock");
        let forwarded = match injector.as_mut() {
            None => vec![(0, bytes)],
            Some(injector) => {
                let forwarded = injector.take(&bytes, now).into_iter();
                let later = |after: Duration| u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
                forwarded.map(|forwarded| (later(forwarded.after), forwarded.bytes)).collect()
            }
        };
        drop(injector);
        for (later, bytes) in forwarded {
            self.in_flight.insert((now.saturating_add(later), self.sequence), (to, bytes));
            self.sequence += 1;
        }
    }
}

/// An open stack.
#[derive(Debug)]
pub enum Open {
    /// A Feroce device.
    Feroce(Box<Device>),
    /// The agent of Linux rxe.
    Rxe {
        /// The network namespace from which the agent is reached.
        namespace: String,
    },
}

impl Open {
    /// Opens the stack. The frames of a Feroce device are written to the file `capture`.
    ///
    /// # Errors
    /// The error of the stack.
    pub fn new(stack: &Stack, capture: Option<&Path>) -> Result<Self, Failure> {
        match stack {
            Stack::Rxe { namespace } => Ok(Self::Rxe { namespace: namespace.clone() }),
            Stack::Feroce { namespace, interface, port } => {
                within(Some(namespace.as_str()), || {
                    let create =
                        |path: &Path| files::create_private(path).map_err(failed(path.display()));
                    let file = capture.map(create).transpose()?;
                    let device =
                        feroce::open(interface, feroce::config(*port, Control::DCQCN), file);
                    Ok(Self::Feroce(Box::new(device.map_err(failed("open Feroce"))?)))
                })
            }
        }
    }

    /// Creates an end on the stack.
    ///
    /// # Errors
    /// The error of the stack.
    pub fn end(&self) -> Result<Box<dyn End>, Failure> {
        Ok(match self {
            Self::Feroce(device) => Box::new(FeroceEnd::new(device)?),
            Self::Rxe { namespace } => Box::new(within(Some(namespace.as_str()), RxeEnd::new)?),
        })
    }

    fn name(&self) -> String {
        match self {
            Self::Feroce(device) => format!("Feroce ({})", device.attributes().port),
            Self::Rxe { .. } => "rxe".to_owned(),
        }
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct Live {
    relay: Relay,
    stacks: [Open; 2],
}

impl Live {
    /// Opens the stacks on both sides of a relay. Feroce stacks write captures to `folder`.
    ///
    /// # Errors
    /// The error of a stack or of the kernel.
    pub fn open(
        between: &RelayInterfaces,
        stacks: &[Stack; 2],
        folder: &Path,
    ) -> Result<Self, Failure> {
        let relay = Relay::open(between)?;
        let open = |side: Side| {
            let capture = folder.join(format!("{side}.pcap"));
            Open::new(&stacks[side.index()], Some(&capture))
        };
        Ok(Self { relay, stacks: [open(Side::Requester)?, open(Side::Responder)?] })
    }
}

impl Testbed for Live {
    fn roles(&self) -> [String; 2] {
        self.stacks.each_ref().map(Open::name)
    }

    fn ends(&mut self, script: &Script) -> Result<Vec<Ends>, Failure> {
        let [requester, responder] = &self.stacks;
        (0..script.traffic.qps).map(|_| Ok([requester.end()?, responder.end()?])).collect()
    }

    fn latency(&self) -> Duration {
        Duration::ZERO
    }

    fn begin(&mut self, injector: Injector) {
        self.relay.put(Some(injector));
    }

    fn finish(&mut self) -> Injector {
        self.relay.put(None).expect("an injector is inserted")
    }

    fn clock(&self) -> Box<dyn Pace> {
        Box::new(RealPace::start())
    }

    fn counters(&self, side: Side) -> Result<Vec<(String, u64)>, Failure> {
        match &self.stacks[side.index()] {
            Open::Feroce(device) => {
                let all = Counter::ALL.iter();
                Ok(all.map(|&one| (one.name().to_owned(), device.counter(one))).collect())
            }
            Open::Rxe { namespace } => {
                within(Some(namespace.as_str()), || RxeEnd::new()?.counters())
            }
        }
    }

    fn slack(&self) -> Duration {
        SLACK
    }
}
