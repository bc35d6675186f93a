//! The egress scheduler of a port: strict priorities first, highest first, then deficit weighted
//! round robin (DWRR) among the others.

/// Configuration of the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Strict priorities, one bit each.
    pub strict: u8,
    /// DWRR quantum of each priority in bytes per round.
    pub quantum: [u32; 8],
}

impl Default for SchedulerConfig {
    /// All priorities are strict.
    fn default() -> Self {
        Self { strict: 0xff, quantum: [0; 8] }
    }
}

/// State of the scheduler, with the quantums of its configuration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scheduler {
    quantum: [u32; 8],
    deficit: [u32; 8],
    turn: u8,
    /// True if the current queue has received its quantum of this round.
    granted: bool,
}

impl Scheduler {
    pub const fn new(config: &SchedulerConfig) -> Self {
        Self { quantum: config.quantum, deficit: [0; 8], turn: 0, granted: false }
    }

    /// Picks the queue to send from, among `ready`. `strict` are the strict priorities (one bit
    /// each), `head` returns the size of a queue's first packet. Accesses the state only if no
    /// strict priority is ready.
    #[inline]
    pub fn pick(&mut self, ready: u8, strict: u8, head: impl Fn(u8) -> u32) -> Option<u8> {
        if let Some(highest) = (ready & strict).checked_ilog2() {
            return Some(highest.to_le_bytes()[0]);
        }
        if ready == 0 {
            return None;
        }
        loop {
            let (priority, index) = (self.turn, usize::from(self.turn));
            if ready >> priority & 1 == 1 {
                if !self.granted {
                    self.deficit[index] += self.quantum[index].max(1);
                    self.granted = true;
                }
                let size = head(priority);
                if self.deficit[index] >= size {
                    self.deficit[index] -= size;
                    return Some(priority);
                }
            }
            self.turn = (priority + 1) % 8;
            self.granted = false;
        }
    }

    /// Resets the deficit of a queue that has become empty.
    #[inline]
    pub fn reset_deficit(&mut self, priority: u8) {
        self.deficit[usize::from(priority)] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes sent by each priority out of about `total`, with packets of `sizes`.
    fn shares(config: &SchedulerConfig, ready: u8, sizes: [u32; 8], total: u32) -> [u32; 8] {
        let (mut scheduler, mut sent) = (Scheduler::new(config), [0; 8]);
        while sent.iter().sum::<u32>() < total {
            let next = scheduler.pick(ready, config.strict, |p| sizes[usize::from(p)]).unwrap();
            sent[usize::from(next)] += sizes[usize::from(next)];
        }
        sent
    }

    #[test]
    fn the_highest_strict_priority_goes_first() {
        let sent = shares(&SchedulerConfig::default(), 0b0010_1001, [1000; 8], 10_000);
        assert_eq!(sent, [0, 0, 0, 0, 0, 10_000, 0, 0]);
    }

    #[test]
    fn weights_share_what_strict_priorities_leave_whatever_the_packets_sizes() {
        let mut config = SchedulerConfig { strict: 1 << 6, quantum: [0; 8] };
        (config.quantum[1], config.quantum[3]) = (1000, 3000);
        let sent = shares(&config, 1 << 1 | 1 << 3, [1000; 8], 400_000);
        assert_eq!((sent[1], sent[3]), (100_000, 300_000));
        let mut sizes = [1000; 8];
        sizes[1] = 100;
        sizes[3] = 1500;
        let sent = shares(&config, 1 << 1 | 1 << 3, sizes, 400_000);
        assert_eq!((sent[1], sent[3]), (100_000, 300_000));
        let sent = shares(&config, 1 << 1 | 1 << 3 | 1 << 6, [1000; 8], 10_000);
        assert_eq!(sent[6], 10_000);
    }

    #[test]
    fn an_empty_queue_loses_its_deficit() {
        let mut config = SchedulerConfig { strict: 0, quantum: [1; 8] };
        config.quantum[0] = 10_000;
        let mut scheduler = Scheduler::new(&config);
        assert_eq!(scheduler.pick(1, config.strict, |_| 100), Some(0));
        assert_eq!(scheduler.deficit[0], 9900);
        scheduler.reset_deficit(0);
        assert_eq!(scheduler.deficit[0], 0);
    }
}
