//! Two Feroce devices in virtual time: the same script gives the same trace, to the nanosecond.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use feroce_engine::congestion::{CongestionConfig, Control};
use feroce_engine::counters::Counter;

use super::injector::{Forwarded, Injector};
use super::play::{Ends, Testbed};
use super::script::Script;
use super::trace::Side;
use crate::device_pair::{DevicePair, manual_config};
use crate::endpoint::Failure;
use crate::endpoint::end::{End, Pace};
use crate::endpoint::feroce::FeroceEnd;

/// Latency of the link.
const LATENCY: Duration = Duration::from_micros(1);

/// See the [module](self).
#[derive(Debug)]
pub struct Fabric {
    rig: Rc<RefCell<DevicePair>>,
    injector: Arc<Mutex<Option<Injector>>>,
}

impl Fabric {
    /// Creates two devices and the wire between them.
    pub fn new() -> Self {
        let config = feroce_engine::device::DeviceConfig {
            congestion: CongestionConfig { control: Control::DCQCN, ..CongestionConfig::default() },
            arena_bytes: 32 << 20,
            ..manual_config(1)
        };
        let mut rig = DevicePair::on_shm(&config, LATENCY);
        let injector = Arc::new(Mutex::new(None));
        let current = Arc::clone(&injector);
        rig.wire.set_replacement(Some(Box::new(move |_, now, bytes| {
            let mut current = current.lock().expect("no thread panics while it holds the lock");
            match current.as_mut() {
                None => vec![(Duration::ZERO, bytes.to_vec())],
                Some(injector) => {
                    let injector: &mut Injector = injector;
                    let forwarded = injector.take(bytes, now.as_nanos());
                    forwarded.into_iter().map(|Forwarded { after, bytes }| (after, bytes)).collect()
                }
            }
        })));
        Self { rig: Rc::new(RefCell::new(rig)), injector }
    }
}

impl Default for Fabric {
    fn default() -> Self {
        Self::new()
    }
}

impl Testbed for Fabric {
    fn roles(&self) -> [String; 2] {
        ["Feroce", "Feroce"].map(str::to_owned)
    }

    fn ends(&mut self, script: &Script) -> Result<Vec<Ends>, Failure> {
        let end = |index: usize| -> Result<Box<dyn End>, Failure> {
            let device = self.rig.borrow().devices[index].clone();
            Ok(Box::new(FeroceEnd::paced(&device, self.clock())?))
        };
        (0..script.traffic.qps).map(|_| Ok([end(0)?, end(1)?])).collect()
    }

    fn latency(&self) -> Duration {
        LATENCY
    }

    fn begin(&mut self, injector: Injector) {
        *self.injector.lock().expect("no thread panics while it holds the lock") = Some(injector);
    }

    fn finish(&mut self) -> Injector {
        self.injector
            .lock()
            .expect("no thread panics while it holds the lock")
            .take()
            .expect("an injector is inserted")
    }

    fn clock(&self) -> Box<dyn Pace> {
        Box::new(RigPace(Rc::clone(&self.rig)))
    }

    fn counters(&self, side: Side) -> Result<Vec<(String, u64)>, Failure> {
        let rig = self.rig.borrow();
        let device = &rig.devices[side.index()];
        let all = Counter::ALL.iter();
        Ok(all.map(|&one| (one.name().to_owned(), device.counter(one))).collect())
    }

    fn slack(&self) -> Duration {
        Duration::ZERO
    }
}

/// The virtual clock of the devices; it advances while a caller waits.
#[derive(Debug)]
struct RigPace(Rc<RefCell<DevicePair>>);

impl Pace for RigPace {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.borrow().now.as_nanos())
    }

    fn pass(&mut self, limit: Duration) {
        let mut rig = self.0.borrow_mut();
        let until = rig.now + limit;
        if !rig.step(until) {
            rig.now = until;
            rig.settle();
        }
    }
}
