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

use stand_ins::{port, wake};

/// As in the engine.
#[path = "../../src/memory"]
mod memory {
    pub use crate::stand_ins::{arena, bell, shared_memory};

    mod copy;
    pub mod frame_ring;
    mod frame_ring_error;
    pub mod queue;
    pub mod work_ring;
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
