//! The shared buffer of a switch: admission of packets, and PFC thresholds.
//!
//! The memory has three parts: a guaranteed part for every ingress queue (a port and a priority),
//! headroom for every lossless ingress queue, and a shared pool. A packet takes guaranteed memory
//! first, then shared memory while its ingress queue holds less shared memory than the *threshold*:
//! alpha times the free part of the pool. A lossless packet above the threshold goes into headroom,
//! and its sender is paused; a lossy packet is dropped. A packet that leaves frees headroom first.

use feroce_engine::memory::ahead::fetch_element;

/// Configuration of the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferConfig {
    /// Total size in bytes.
    pub total: u64,
    /// Guaranteed bytes of each ingress queue.
    pub guaranteed: u64,
    /// Headroom in bytes of each lossless ingress queue.
    pub headroom: u64,
    /// Numerator and denominator of alpha.
    pub alpha: (u64, u64),
    /// Static threshold in bytes; replaces the dynamic threshold.
    pub threshold: Option<u64>,
    /// A pause ends when the queue is this many bytes below the threshold.
    pub resume_offset: u64,
    /// Lossless priorities, one bit each.
    pub lossless: u8,
}

/// The result of an admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Stored in guaranteed or shared memory.
    Shared,
    /// Stored in headroom.
    Headroom,
    /// Dropped: no room.
    Dropped,
}

/// Memory held by the packets of one port and priority.
#[derive(Debug, Clone, Copy, Default)]
#[repr(align(32))] // Never spans two cache lines.
struct Ingress {
    guaranteed: u64,
    shared: u64,
    headroom: u64,
}

/// The buffer of one switch.
#[derive(Debug, Clone)]
pub struct SharedBuffer {
    config: BufferConfig,
    queues: Vec<[Ingress; 8]>,
    /// Of each port, the priorities whose senders are paused, one bit each.
    paused: Vec<u8>,
    pool: u64,
    pool_used: u64,
    used: u64,
    peak_used: u64,
}

impl SharedBuffer {
    /// An empty buffer for `ports` ports.
    ///
    /// # Errors
    /// If guarantees and headroom need more memory than the buffer has.
    pub fn new(config: BufferConfig, ports: usize) -> Result<Self, String> {
        let lossless = u64::from(config.lossless.count_ones());
        let ports_wide = ports as u64;
        let of_port = config.guaranteed.saturating_mul(8);
        let of_port = of_port.saturating_add(lossless.saturating_mul(config.headroom));
        let set_aside = ports_wide.saturating_mul(of_port);
        if set_aside >= config.total {
            return Err(format!(
                "{ports} ports need {set_aside} bytes for headroom and guarantees, and the buffer \
                 has {}",
                config.total
            ));
        }
        Ok(Self {
            config,
            queues: vec![[Ingress::default(); 8]; ports],
            paused: vec![0; ports],
            pool: config.total - set_aside,
            pool_used: 0,
            used: 0,
            peak_used: 0,
        })
    }

    /// Shared memory that an ingress queue may hold now, in bytes.
    #[inline]
    pub fn threshold(&self) -> u64 {
        match self.config.threshold {
            Some(bytes) => bytes,
            None => {
                let (numerator, denominator) = self.config.alpha;
                (self.pool - self.pool_used).saturating_mul(numerator) / denominator
            }
        }
    }

    /// Returns true if `bytes` do not exceed the threshold. Avoids a division, since it runs for
    /// every packet.
    #[inline]
    fn is_within_threshold(&self, bytes: u64) -> bool {
        match self.config.threshold {
            Some(threshold) => bytes <= threshold,
            None => {
                let (numerator, denominator) = self.config.alpha;
                let free = (self.pool - self.pool_used).saturating_mul(numerator);
                u128::from(bytes) * u128::from(denominator) <= u128::from(free)
            }
        }
    }

    /// Bytes in use.
    pub const fn used(&self) -> u64 {
        self.used
    }

    /// Peak of the bytes in use.
    pub const fn peak_used(&self) -> u64 {
        self.peak_used
    }

    const fn is_lossless(&self, priority: u8) -> bool {
        self.config.lossless >> priority & 1 == 1
    }

    /// Fetches the counters that [`Self::admit`] needs into the processor's cache.
    #[inline]
    pub(crate) fn prepare(&self, port: usize, priority: u8) {
        fetch_element(&self.queues[port], usize::from(priority), size_of::<Ingress>());
    }

    /// Stores a packet of `size` bytes that arrived at `port`, if there is room.
    #[inline]
    pub fn admit(&mut self, port: usize, priority: u8, size: u32) -> Admission {
        let size = u64::from(size);
        let (lossless, free) = (self.is_lossless(priority), self.pool - self.pool_used);
        let queue = self.queues[port][usize::from(priority)];
        let guaranteed = size.min(self.config.guaranteed - queue.guaranteed);
        let rest = size - guaranteed;
        let fits =
            queue.headroom == 0 && rest <= free && self.is_within_threshold(queue.shared + rest);
        let queue = &mut self.queues[port][usize::from(priority)];
        let admission = if rest == 0 || fits {
            queue.guaranteed += guaranteed;
            queue.shared += rest;
            self.pool_used += rest;
            Admission::Shared
        } else if lossless && queue.headroom + size <= self.config.headroom {
            queue.headroom += size;
            Admission::Headroom
        } else {
            return Admission::Dropped;
        };
        self.used += size;
        self.peak_used = self.peak_used.max(self.used);
        admission
    }

    /// Frees the memory of a packet that has left.
    #[inline]
    pub fn release(&mut self, port: usize, priority: u8, size: u32) {
        let size = u64::from(size);
        let queue = &mut self.queues[port][usize::from(priority)];
        let headroom = size.min(queue.headroom);
        let shared = (size - headroom).min(queue.shared);
        let guaranteed = size - headroom - shared;
        debug_assert!(guaranteed <= queue.guaranteed, "at most the bytes held are released");
        queue.headroom -= headroom;
        queue.shared -= shared;
        queue.guaranteed -= guaranteed;
        self.pool_used -= shared;
        self.used -= size;
    }

    /// Returns true if the sender of this queue must be paused now, and marks the queue as paused.
    #[inline]
    pub fn pauses(&mut self, port: usize, priority: u8) -> bool {
        if !self.is_lossless(priority) {
            return false;
        }
        let queue = self.queues[port][usize::from(priority)];
        // The threshold is reached if one more byte would exceed it.
        let is_full = || queue.shared > 0 && !self.is_within_threshold(queue.shared + 1);
        let pauses = !self.is_paused(port, priority) && (queue.headroom > 0 || is_full());
        self.paused[port] |= u8::from(pauses) << priority;
        pauses
    }

    /// Returns true if the paused sender of this queue may resume, and marks the queue as not
    /// paused.
    #[inline]
    pub fn resumes(&mut self, port: usize, priority: u8) -> bool {
        if !self.is_paused(port, priority) {
            return false;
        }
        let queue = self.queues[port][usize::from(priority)];
        let resumes = queue.headroom == 0
            && (queue.shared == 0
                || self.is_within_threshold(queue.shared + self.config.resume_offset));
        self.paused[port] &= !(u8::from(resumes) << priority);
        resumes
    }

    /// The priorities of a port whose senders are paused, one bit each.
    pub(crate) fn paused(&self, port: usize) -> u8 {
        self.paused[port]
    }

    /// Returns true if the sender of this queue is paused.
    #[inline]
    pub fn is_paused(&self, port: usize, priority: u8) -> bool {
        self.paused[port] >> priority & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: BufferConfig = BufferConfig {
        total: 100_000,
        guaranteed: 0,
        headroom: 10_000,
        alpha: (1, 8),
        threshold: None,
        resume_offset: 2000,
        lossless: 1 << 3,
    };

    #[test]
    fn the_threshold_is_alpha_times_the_free_buffer() {
        let mut buffer = SharedBuffer::new(CONFIG, 2).unwrap();
        // 100 KB less the headroom of two ports.
        assert_eq!(buffer.threshold(), 80_000 / 8);
        for _ in 0..8 {
            assert_eq!(buffer.admit(0, 3, 1000), Admission::Shared);
        }
        assert_eq!(buffer.threshold(), 72_000 / 8);
        // Both ports at the fixed point T = (80000 - 2 T) / 8, which is 8000.
        for _ in 0..8 {
            assert_eq!(buffer.admit(1, 3, 1000), Admission::Shared);
        }
        assert_eq!(buffer.threshold(), 8000);
        assert_eq!(buffer.admit(1, 3, 1000), Admission::Headroom);
        let buffer = SharedBuffer::new(BufferConfig { alpha: (2, 1), ..CONFIG }, 2).unwrap();
        assert_eq!(buffer.threshold(), 160_000);
    }

    #[test]
    fn above_the_threshold_the_sender_is_paused_and_headroom_absorbs_the_rest() {
        let mut buffer = SharedBuffer::new(CONFIG, 2).unwrap();
        let mut paused_after = None;
        for n in 1..=18 {
            assert_ne!(buffer.admit(0, 3, 1000), Admission::Dropped, "packet {n}");
            if buffer.pauses(0, 3) {
                assert_eq!(paused_after.replace(n), None, "only one pause");
            }
        }
        // After eight packets the threshold is 72000 / 8 = 9000, after nine packets 8875. So the
        // ninth packet exceeds it.
        assert_eq!(paused_after, Some(9));
        assert_eq!(buffer.admit(0, 3, 1000), Admission::Headroom);
        assert_eq!(buffer.admit(0, 3, 1000), Admission::Dropped, "ten in headroom are all");
        assert_eq!((buffer.used(), buffer.peak_used()), (19_000, 19_000));
        // Headroom empties first; the sender resumes 2000 bytes below the threshold.
        let mut resumed_at = None;
        for left in (0..19).rev() {
            buffer.release(0, 3, 1000);
            if buffer.resumes(0, 3) {
                assert_eq!(resumed_at.replace(left), None);
            }
        }
        assert_eq!(resumed_at, Some(7), "7000 + 2000 <= 73000 / 8");
        assert_eq!(buffer.used(), 0);
    }

    #[test]
    fn each_queue_of_a_port_pauses_and_resumes_on_its_own() {
        let config = BufferConfig { lossless: 1 << 3 | 1 << 4, threshold: Some(500), ..CONFIG };
        let mut buffer = SharedBuffer::new(config, 2).unwrap();
        for priority in [3, 4] {
            assert_eq!(buffer.admit(0, priority, 1000), Admission::Headroom);
            assert!(buffer.pauses(0, priority));
        }
        assert_eq!((buffer.paused(0), buffer.paused(1)), (1 << 3 | 1 << 4, 0));
        buffer.release(0, 3, 1000);
        assert!(buffer.resumes(0, 3) && !buffer.resumes(0, 4));
        assert_eq!((buffer.is_paused(0, 3), buffer.is_paused(0, 4)), (false, true));
    }

    #[test]
    fn lossy_packets_are_dropped_at_the_threshold_without_a_pause() {
        let mut buffer = SharedBuffer::new(CONFIG, 2).unwrap();
        let taken = (0..100).take_while(|_| buffer.admit(0, 0, 1000) == Admission::Shared).count();
        assert_eq!(taken, 9);
        assert!(!buffer.pauses(0, 0));
    }

    #[test]
    fn guaranteed_memory_is_used_first_and_not_shared() {
        let config = BufferConfig { guaranteed: 1500, threshold: Some(1000), ..CONFIG };
        let mut buffer = SharedBuffer::new(config, 2).unwrap();
        assert_eq!(buffer.admit(0, 3, 1000), Admission::Shared);
        assert!(!buffer.pauses(0, 3));
        assert_eq!(buffer.admit(0, 3, 1000), Admission::Shared, "half of it is guaranteed");
        assert!(!buffer.pauses(0, 3));
        assert_eq!(buffer.admit(0, 3, 1000), Admission::Headroom);
        assert!(buffer.pauses(0, 3));
        for _ in 0..3 {
            buffer.release(0, 3, 1000);
        }
        assert_eq!((buffer.used(), buffer.pool_used), (0, 0));
    }

    #[test]
    fn a_buffer_that_is_all_headroom_is_refused() {
        let error = SharedBuffer::new(CONFIG, 10).expect_err("no room");
        assert_eq!(
            error,
            "10 ports need 100000 bytes for headroom and guarantees, and the buffer has 100000"
        );
        let huge = BufferConfig { headroom: u64::MAX, guaranteed: u64::MAX, ..CONFIG };
        assert!(SharedBuffer::new(huge, 2).is_err());
    }
}
