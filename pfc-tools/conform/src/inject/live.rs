//! Between two interfaces, in real time: a relay in user space that hands frames from one to the other, and the endpoints
//! that are played over it.

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
use feroce_engine::port::packet::{Offload, Tap};
use feroce_engine::time::Clock;
use nix::sched::{CloneFlags, setns};

use super::injector::Injector;
use super::play::{Ends, World};
use super::script::Script;
use super::trace::Side;
use crate::endpoint::agent::RxeEnd;
use crate::endpoint::end::{End, Pace, RealPace};
use crate::endpoint::feroce::{self, FeroceEnd};
use crate::endpoint::{Failure, failed};

/// Room for frames in the kernel, in bytes.
const RX_BYTES: u32 = 8 << 20;
/// How long the relay rests when nothing goes by.
const REST: Duration = Duration::from_micros(20);
/// How late an endpoint may be: a guest without KVM on a busy machine.
pub const SLACK: Duration = Duration::from_millis(20);

/// Two interfaces, and the namespace that they are in.
#[derive(Debug, Clone)]
pub struct Between {
    /// Names: that on the requester's side, then the other.
    pub interfaces: [String; 2],
    /// Name of the network namespace; the caller's if `None`.
    pub namespace: Option<String>,
}

/// Which stack is at an end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stack {
    /// Feroce, in this process: a namespace, an interface and a kind of port.
    Feroce {
        /// The network namespace.
        namespace: String,
        /// The interface in it.
        interface: String,
        /// How frames move.
        port: PortKind,
    },
    /// Linux rxe, by the agent of `tests/rxe`, which is reached from a network namespace.
    Rxe {
        /// The network namespace.
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

/// Does something in another network namespace.
///
/// # Errors
/// The deed's, or why the namespace cannot be entered.
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

/// What stands between the interfaces, shared with the thread that moves frames.
type Shared = Arc<Mutex<Option<Injector>>>;

/// The relay: it runs until it is dropped.
#[derive(Debug)]
pub struct Relay {
    injector: Shared,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Opens both interfaces.
    ///
    /// # Errors
    /// The kernel's words.
    pub fn open(between: &Between) -> Result<Self, Failure> {
        let taps = within(between.namespace.as_deref(), || {
            let open = |name: &String| Tap::open(name, RX_BYTES).map_err(failed(name.clone()));
            Ok([open(&between.interfaces[0])?, open(&between.interfaces[1])?])
        })?;
        let (injector, stop) = (Shared::default(), Arc::new(AtomicBool::new(false)));
        let mut wire = Wire {
            taps,
            injector: Arc::clone(&injector),
            clock: Clock::start(),
            flying: BTreeMap::new(),
            sequence: 0,
        };
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                match wire.turn() {
                    Ok(0) => std::thread::sleep(REST),
                    Ok(_) => {}
                    Err(error) => {
                        eprintln!("feroce: an interface is gone: {error}");
                        return;
                    }
                }
            }
        });
        Ok(Self { injector, stop, thread: Some(thread) })
    }

    /// From now on `injector` stands between the interfaces; nothing does while it is `None`. What stood there.
    ///
    /// # Panics
    /// If the relay did.
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

/// What the relay's thread has.
struct Wire {
    taps: [Tap; 2],
    injector: Shared,
    clock: Clock,
    /// By time and order: where to, and what.
    flying: BTreeMap<(u64, u64), (usize, Vec<u8>)>,
    sequence: u64,
}

impl Wire {
    /// Moves what there is; how many frames.
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
        while let Some(entry) = self.flying.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let (to, bytes) = entry.remove();
            moved += 1;
            // A full interface loses a frame, as a wire may.
            let _ = self.taps[to].send(&bytes, Offload::default());
        }
        Ok(moved)
    }

    fn take(&mut self, to: usize, bytes: Vec<u8>) {
        let now = self.clock.now().as_nanos();
        let mut injector = self.injector.lock().expect("nobody panics with it");
        let onward = match injector.as_mut() {
            None => vec![(0, bytes)],
            Some(injector) => {
                let onward = injector.take(&bytes, now).into_iter();
                let later = |after: Duration| u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
                onward.map(|onward| (later(onward.after), onward.bytes)).collect()
            }
        };
        drop(injector);
        for (later, bytes) in onward {
            self.flying.insert((now.saturating_add(later), self.sequence), (to, bytes));
            self.sequence += 1;
        }
    }
}

/// A stack that is there.
#[derive(Debug)]
pub enum Open {
    /// A device of ours.
    Feroce(Box<Device>),
    /// Where the agent is reached.
    Rxe {
        /// The network namespace.
        namespace: String,
    },
}

impl Open {
    /// Opens it; what crosses a device of ours goes to the file `capture`.
    ///
    /// # Errors
    /// The stack's words.
    pub fn new(stack: &Stack, capture: Option<&Path>) -> Result<Self, Failure> {
        match stack {
            Stack::Rxe { namespace } => Ok(Self::Rxe { namespace: namespace.clone() }),
            Stack::Feroce { namespace, interface, port } => {
                within(Some(namespace.as_str()), || {
                    let create = |path: &Path| File::create(path).map_err(failed(path.display()));
                    let file = capture.map(create).transpose()?;
                    let device = feroce::open(interface, *port, Control::Dcqcn, file);
                    Ok(Self::Feroce(Box::new(device.map_err(failed("open Feroce"))?)))
                })
            }
        }
    }

    /// A new end on it.
    ///
    /// # Errors
    /// The stack's words.
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
    /// Stacks on either side of a relay; those of Feroce leave captures of their own in `folder`.
    ///
    /// # Errors
    /// The stacks' words, or the kernel's.
    pub fn open(between: &Between, stacks: &[Stack; 2], folder: &Path) -> Result<Self, Failure> {
        let relay = Relay::open(between)?;
        let open = |side: Side| {
            let capture = folder.join(format!("{side}.pcap"));
            Open::new(&stacks[side.index()], Some(&capture))
        };
        Ok(Self { relay, stacks: [open(Side::Requester)?, open(Side::Responder)?] })
    }
}

impl World for Live {
    fn roles(&self) -> [String; 2] {
        self.stacks.each_ref().map(Open::name)
    }

    fn ends(&mut self, script: &Script) -> Result<Vec<Ends>, Failure> {
        let [requester, responder] = &self.stacks;
        (0..script.traffic.qps).map(|_| Ok([requester.end()?, responder.end()?])).collect()
    }

    fn way(&self) -> Duration {
        Duration::ZERO
    }

    fn begin(&mut self, injector: Injector) {
        self.relay.put(Some(injector));
    }

    fn finish(&mut self) -> Injector {
        self.relay.put(None).expect("it has begun")
    }

    fn pace(&self) -> Box<dyn Pace> {
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
