//! Completion counters: how many requests of the attached QPs have completed, without a queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::completion::CompletionOpcode;

/// What a counter counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CounterUnit {
    /// Requests.
    Requests,
    /// Bytes of local data.
    Bytes,
}

/// A completion counter, as `ibv_comp_cntr`. Both values wrap at 2^64.
#[derive(Debug)]
pub struct CompletionCounter {
    unit: CounterUnit,
    /// Requests or bytes that completed successfully.
    pub completed: AtomicU64,
    /// Requests that completed in error.
    pub failed: AtomicU64,
}

impl CompletionCounter {
    /// Makes a counter with both values 0.
    pub fn new(unit: CounterUnit) -> Self {
        Self { unit, completed: AtomicU64::new(0), failed: AtomicU64::new(0) }
    }

    fn count(&self, is_success: bool, bytes: u64) {
        let (value, amount) = match (is_success, self.unit) {
            (true, CounterUnit::Requests) => (&self.completed, 1),
            (true, CounterUnit::Bytes) => (&self.completed, bytes),
            (false, _) => (&self.failed, 1),
        };
        value.fetch_add(amount, Ordering::Relaxed);
    }
}

/// Operations whose completions counters can count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountedOp {
    /// SENDs of every kind.
    Send,
    /// Receives, also those that a WRITE WITH IMMEDIATE consumes.
    Receive,
    /// RDMA READs.
    Read,
    /// RDMA WRITEs, with and without immediate.
    Write,
}

impl CountedOp {
    fn of(opcode: CompletionOpcode) -> Option<Self> {
        Some(match opcode {
            CompletionOpcode::Send => Self::Send,
            CompletionOpcode::Receive | CompletionOpcode::ReceiveRdmaWithImmediate => Self::Receive,
            CompletionOpcode::RdmaRead => Self::Read,
            CompletionOpcode::RdmaWrite => Self::Write,
            _ => return None,
        })
    }
}

/// The counters of a QP: at most one for each operation.
#[derive(Debug, Default)]
pub struct AttachedCounters(Option<Box<[Option<Arc<CompletionCounter>>; 4]>>);

impl AttachedCounters {
    /// Attaches `counter` for `ops`. Returns false, and changes nothing, if one of them has a
    /// counter.
    pub fn attach(&mut self, counter: &Arc<CompletionCounter>, ops: &[CountedOp]) -> bool {
        let places = self.0.get_or_insert_default();
        if ops.iter().any(|op| places[*op as usize].is_some()) {
            return false;
        }
        for op in ops {
            places[*op as usize] = Some(Arc::clone(counter));
        }
        true
    }

    /// Returns true if a counter is attached.
    #[inline]
    pub(crate) fn is_attached(&self) -> bool {
        self.0.is_some()
    }

    /// Counts a completed request with `bytes` bytes of local data, signaled or not.
    #[inline]
    pub fn count(&self, opcode: CompletionOpcode, is_success: bool, bytes: u64) {
        let Some(places) = &self.0 else { return };
        let counter = CountedOp::of(opcode).and_then(|op| places[op as usize].as_ref());
        if let Some(counter) = counter {
            counter.count(is_success, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_operation_has_at_most_one_counter() {
        let counter = |unit| Arc::new(CompletionCounter::new(unit));
        let (requests, bytes) = (counter(CounterUnit::Requests), counter(CounterUnit::Bytes));
        let mut attached = AttachedCounters::default();
        attached.count(CompletionOpcode::Send, true, 7);
        assert!(attached.attach(&requests, &[CountedOp::Send, CountedOp::Read]));
        assert!(!attached.attach(&bytes, &[CountedOp::Write, CountedOp::Read]));
        assert!(attached.attach(&bytes, &[CountedOp::Write]));
        attached.count(CompletionOpcode::Send, true, 7);
        attached.count(CompletionOpcode::RdmaRead, false, 7);
        attached.count(CompletionOpcode::RdmaWrite, true, 7);
        attached.count(CompletionOpcode::CompareSwap, true, 8);
        let values = |counter: &CompletionCounter| {
            [&counter.completed, &counter.failed].map(|value| value.load(Ordering::Relaxed))
        };
        assert_eq!((values(&requests), values(&bytes)), ([1, 1], [7, 0]));
    }
}
