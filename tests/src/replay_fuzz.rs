//! Turns fuzz input into captures for the replay. The fuzz target `replay` of `engine/fuzz` uses
//! this module; `tests/tests/fuzz_smoke.rs` runs it on the stored inputs.
//!
//! An input is one of the target `check`: a [`Head`] and a capture. The frames are always sealed,
//! because packets with a wrong ICRC are not played.

use feroce_conform::replay::lanes::Captured;
use feroce_conform::replay::report::Summary;
use feroce_conform::replay::{Role, options, replay};
use feroce_conform::trace::Trace;

use crate::conform_fuzz::{Head, opened};

/// Most frames of an input that are played.
const FRAMES: usize = 256;

/// Plays both ends of the capture in `data`, and writes the report as text and as JSON.
///
/// # Panics
/// If the replay panics.
pub fn feed(data: &[u8]) {
    let Some((_, bytes)) = Head::split(data) else { return };
    let Some(capture) = opened(bytes, true) else { return };
    let mut trace = Trace::of(vec![capture]).expect("one capture");
    let Ok(mut frames): Result<Vec<Captured>, _> = options::frames_of(&mut trace) else { return };
    frames.truncate(FRAMES);
    let replay = replay(frames, &[Role::Responder, Role::Requester]);
    let text = replay.to_string();
    assert!(!text.is_empty(), "the report says something");
    serde_json::to_vec(&Summary::of(&replay)).expect("JSON");
}
