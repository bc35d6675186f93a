//! Tries the orders in which the threads of small programs can execute the rings and wake-up
//! protocols of the engine, and every value that a load may return, with loom. A run has at most
//! [`PREEMPTIONS`] preemptions.
//!
//! The files of the engine are compiled here as they are. Their `crate::sync` is loom's, and what
//! they need of the system - the arena, descriptors - is replaced by a few lines. A load or store
//! of memory that a ring hands over is reported to loom (`Handover`, `UnsafeCell`), so that it
//! finds two threads that use a slot at once, and a slot whose contents may not be visible yet. A
//! lost wake-up is a deadlock, which loom reports.
//!
//! `cargo run [NAME]...` runs the named models, or all.

#![allow(dead_code)] // The models use a part of each file.
#![allow(missing_docs)] // Stand-ins.

mod models;
mod stand_ins;
mod sync;

extern crate self as crossbeam_queue;

use stand_ins::{ArrayQueue, port, wake};

/// As in the engine.
#[path = "../../src/memory"]
mod memory {
    pub use crate::stand_ins::{arena, bell, shared_memory};

    mod copy;
    pub mod frame_ring;
    mod frame_ring_error;
    mod key_word;
    pub mod queue;
    pub mod shared_ring;
    pub mod work_ring;

    pub use guarded::Guarded;

    /// Two fields behind a key word, as those of a slot in the table of regions.
    mod guarded {
        use feroce_wire::Key;

        use super::key_word::KeyWord;
        use crate::sync::{AtomicU64, Ordering};

        const DROPPED: u64 = u64::MAX;

        #[derive(Default)]
        pub struct Guarded {
            word: AtomicU64,
            fields: [AtomicU64; 2],
        }

        impl Guarded {
            fn word(&self) -> KeyWord<'_> {
                KeyWord(&self.word)
            }

            /// Binds `key` to fields that name it. Returns false if another thread changes them.
            pub fn bind(&self, key: u32) -> bool {
                let Some(before) = self.word().claim() else { return false };
                for field in &self.fields {
                    field.store(key.into(), Ordering::Relaxed);
                }
                self.word().publish(before, Key(key), true);
                true
            }

            /// Invalidates `key`. Returns false if it is not valid, or another thread changes the
            /// fields.
            pub fn invalidate(&self, key: u32) -> bool {
                let before = self.word().begin();
                let is_claimed = before.is_of(Key(key)) && self.word().claim_from(before);
                if is_claimed {
                    self.word().publish(before, Key(key), false);
                }
                is_claimed
            }

            /// Binds `key`, unless the fields were dropped, as `MrTable::bind`.
            pub fn bind_unless_dropped(&self, key: u32) {
                let before = self.word().begin();
                let is_dropped = self.fields[0].load(Ordering::Relaxed) == DROPPED;
                if !is_dropped && self.word().claim_from(before) {
                    self.fields[1].store(key.into(), Ordering::Relaxed);
                    self.word().publish(before, Key(key), true);
                }
            }

            /// Prevents further binds, as `MrTable::drop_window`.
            pub fn drop_fields(&self, key: u32) {
                let before = loop {
                    match self.word().claim() {
                        Some(before) => break before,
                        None => crate::sync::yield_now(),
                    }
                };
                self.fields[0].store(DROPPED, Ordering::Relaxed);
                self.word().publish(before, Key(key), false);
            }

            /// The fields, if `key` is valid, as `MrTable::view_at` reads them.
            pub fn read(&self, key: u32) -> Option<[u64; 2]> {
                let state = self.word().begin();
                if !state.is_of(Key(key)) {
                    return None;
                }
                let fields = [0, 1].map(|n: usize| self.fields[n].load(Ordering::Relaxed));
                self.word().is_still(state).then_some(fields)
            }
        }
    }
}

/// As in the engine.
#[path = "../../src/verbs"]
mod verbs {
    pub mod completion;
    pub mod cq;
    pub mod ids;
}

/// As in the engine.
#[path = "../../src/core"]
mod core {
    pub mod doorbell;

    impl doorbell::Doorbell {
        pub fn next_slot(&self) -> Option<u32> {
            self.next()
        }

        pub fn request_wake_up(&self) -> bool {
            self.arm()
        }
    }
}

/// As in the engine.
#[path = "../../src/device"]
mod device {
    pub mod helper_sleep;
}

mod time {
    pub use feroce_congestion::time::{Duration, Instant};
}

/// Times that a thread of a run stops for another although it could go on. Loom's documentation
/// calls two or three enough for most defects.
const PREEMPTIONS: usize = 3;

fn main() {
    let chosen: Vec<String> = std::env::args().skip(1).collect();
    for (name, model) in models::ALL {
        if chosen.is_empty() || chosen.iter().any(|wanted| wanted == name) {
            let mut explorer = loom::model::Builder::new();
            explorer.preemption_bound = Some(PREEMPTIONS);
            explorer.check(model);
            println!("{name}: no order fails");
        }
    }
}
