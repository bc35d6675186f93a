//! Completion queues.
//!
//! Several cores may complete to one queue and several threads may poll it, so the queue is a bounded
//! lock-free MPMC ring. A core that finds it full raises [`AsyncEvent::CqError`] and takes the QP to ERR.
//!
//! [`AsyncEvent::CqError`]: super::event::AsyncEvent::CqError

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
use std::task::Waker;

use crossbeam_queue::ArrayQueue;

use super::completion::Completion;
use crate::wake::EventFd;

/// Number of a completion queue, unique in its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CqId(pub u32);

/// Which completions make the descriptor of a CQ readable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notify {
    /// Any.
    Any,
    /// Those of messages sent with the solicited flag, and errors.
    Solicited,
}

const UNARMED: u8 = 0;
const ARMED_SOLICITED: u8 = 1;
const ARMED_ANY: u8 = 2;

/// The queue was full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CqFull;

/// The part of a completion queue that cores and program share.
#[derive(Debug)]
pub struct CqRing {
    id: CqId,
    queue: ArrayQueue<Completion>,
    overflowed: AtomicBool,
    armed: AtomicU8,
    fd: EventFd,
    /// Told instead of `fd`, if there is one.
    waker: Option<Waker>,
    /// Cores that may complete to this queue, one bit each: the ones that polling drives.
    cores: AtomicU64,
}

impl CqRing {
    /// A queue for `depth` completions.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub fn new(id: CqId, depth: u32) -> std::io::Result<Self> {
        Self::with_waker(id, depth, None)
    }

    /// The same; an armed completion wakes `waker` instead of making the descriptor readable.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub fn with_waker(id: CqId, depth: u32, waker: Option<Waker>) -> std::io::Result<Self> {
        Ok(Self {
            id,
            queue: ArrayQueue::new(depth.max(1) as usize),
            overflowed: AtomicBool::new(false),
            armed: AtomicU8::new(UNARMED),
            fd: EventFd::new()?,
            waker,
            cores: AtomicU64::new(0),
        })
    }

    /// Its number.
    pub fn id(&self) -> CqId {
        self.id
    }

    /// Completions it can hold.
    pub fn depth(&self) -> usize {
        self.queue.capacity()
    }

    /// Appends a completion and wakes whoever waits for one like it.
    ///
    /// # Errors
    /// [`CqFull`]; the completion is lost and the queue is in error from then on.
    #[inline]
    pub fn push(&self, completion: Completion) -> Result<(), CqFull> {
        if self.overflowed() || self.queue.push(completion).is_err() {
            self.overflowed.store(true, Ordering::Relaxed);
            return Err(CqFull);
        }
        fence(Ordering::SeqCst); // Pairs with the one in `arm`: one side sees the other.
        let armed = self.armed.load(Ordering::Relaxed);
        if armed != UNARMED {
            self.notify(armed, &completion);
        }
        Ok(())
    }

    fn notify(&self, armed: u8, completion: &Completion) {
        let wanted = armed == ARMED_ANY || completion.solicited || !completion.is_success();
        if wanted && self.armed.swap(UNARMED, Ordering::Relaxed) != UNARMED {
            match &self.waker {
                Some(waker) => waker.wake_by_ref(),
                None => self.fd.signal(),
            }
        }
    }

    /// Takes up to `out.len()` completions; returns how many.
    #[inline]
    pub fn take(&self, out: &mut Vec<Completion>, most: usize) -> usize {
        let before = out.len();
        while out.len() - before < most
            && let Some(completion) = self.queue.pop()
        {
            out.push(completion);
        }
        out.len() - before
    }

    /// Takes one completion.
    #[inline]
    pub fn pop(&self) -> Option<Completion> {
        self.queue.pop()
    }

    /// Asks for one wake-up at the next completion of that kind. As with `ibv_req_notify_cq`, poll once
    /// more after arming: what came before is not notified.
    pub fn arm(&self, notify: Notify) {
        self.fd.clear();
        let armed = match notify {
            Notify::Any => ARMED_ANY,
            Notify::Solicited => ARMED_SOLICITED,
        };
        self.armed.store(armed, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Readable once an armed completion has come, until armed again.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// True once a completion was lost.
    pub fn overflowed(&self) -> bool {
        self.overflowed.load(Ordering::Relaxed)
    }

    /// Notes that core `core` completes to this queue.
    pub(crate) fn add_core(&self, core: usize) {
        self.cores.fetch_or(1 << core, Ordering::Relaxed);
    }

    /// The cores noted, one bit each.
    pub(crate) fn cores(&self) -> u64 {
        self.cores.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::completion::{CompletionOpcode, Extra, Status};
    use super::*;
    use feroce_wire::Qpn;
    use std::os::fd::AsRawFd;

    fn completion(wr_id: u64, solicited: bool) -> Completion {
        Completion {
            wr_id,
            status: Status::Success,
            opcode: CompletionOpcode::Receive,
            byte_len: 0,
            extra: Extra::None,
            solicited,
            qp: Qpn::masked(5),
        }
    }

    fn readable(cq: &CqRing) -> bool {
        let mut scratch = Vec::new();
        let no_wait = Some(std::time::Duration::ZERO);
        crate::sys::poll_readable(&[cq.fd().as_raw_fd()], &mut scratch, no_wait);
        scratch[0].revents != 0
    }

    #[test]
    fn a_full_queue_says_so_and_keeps_what_it_has() {
        let cq = CqRing::new(CqId(1), 2).unwrap();
        assert_eq!(cq.push(completion(1, false)), Ok(()));
        assert_eq!(cq.push(completion(2, false)), Ok(()));
        assert!(!cq.overflowed());
        assert_eq!(cq.push(completion(3, false)), Err(CqFull));
        assert!(cq.overflowed());
        let mut out = Vec::new();
        assert_eq!(cq.take(&mut out, 8), 2);
        assert_eq!(out.iter().map(|c| c.wr_id).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn arming_wakes_once_and_only_for_its_kind() {
        let cq = CqRing::new(CqId(1), 8).unwrap();
        cq.push(completion(1, true)).unwrap();
        assert!(!readable(&cq), "not armed");
        cq.arm(Notify::Solicited);
        cq.push(completion(2, false)).unwrap();
        assert!(!readable(&cq), "not solicited");
        cq.push(completion(3, true)).unwrap();
        assert!(readable(&cq));
        cq.arm(Notify::Any);
        assert!(!readable(&cq), "arming clears");
        cq.push(Completion { status: Status::Fatal, ..completion(4, false) }).unwrap();
        assert!(readable(&cq));
    }
}
