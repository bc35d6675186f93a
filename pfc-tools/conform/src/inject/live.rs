//! Two interfaces in real time: a [`Relay`] forwards frames between them, and endpoints exchange
//! them.

use std::path::Path;
use std::time::Duration;

use feroce_engine::congestion::Control;
use feroce_engine::counters::Counter;
use feroce_engine::device::{Device, DeviceConfig, PortKind};
use feroce_engine::files;

use super::injector::Injector;
use super::play::{Ends, Testbed};
use super::relay::{Relay, RelayInterfaces, RelayReport, within};
use super::script::Script;
use super::trace::Side;
use crate::endpoint::agent::RxeEnd;
use crate::endpoint::end::{End, Pace, RealPace};
use crate::endpoint::feroce::{self, FeroceEnd};
use crate::endpoint::{Failure, failed};

/// How much later than required an endpoint may act: a guest without KVM on a busy machine is slow.
pub const SLACK: Duration = Duration::from_millis(20);

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
                    // With exact timers: an early timeout after a NAK would look like a
                    // go-back without a cause.
                    let config = feroce::config(*port, Control::DCQCN);
                    let config = DeviceConfig { min_ack_timeout: 0, ..config };
                    let device = feroce::open(interface, config, file);
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

    fn relay(&self) -> Option<RelayReport> {
        Some(self.relay.report())
    }
}
