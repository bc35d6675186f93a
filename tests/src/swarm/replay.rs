//! Replays one seed: prints what happens, writes the frames to a capture, and makes a scenario that
//! fails smaller.

use std::fmt;
use std::path::Path;

use feroce_conform::capture_file;

use super::shrink::{Shrink, shrink};
use super::trace::Trace;

/// A scenario of one of the swarms.
pub trait Scenario: Shrink + fmt::Debug {
    /// Generates the scenario of `seed`.
    fn generate(seed: u64) -> Self;

    /// Runs the scenario on new devices.
    ///
    /// # Errors
    /// Why it fails.
    fn run(&self, trace: &mut Trace) -> Result<(), String>;

    /// Says in a line how large the scenario is.
    fn size(&self) -> String;
}

/// Runs the scenario of `seed`, and if it fails, the smallest one that still does. Prints the
/// events, frames and completions of both. The captures are `swarm-SEED.pcap` and
/// `swarm-SEED-smallest.pcap` in `folder`. Returns true if the scenario passes.
///
/// # Errors
/// If a capture cannot be written.
pub fn replay<S: Scenario>(seed: u64, folder: &Path) -> Result<bool, String> {
    let scenario = S::generate(seed);
    let Some(why) = show(&scenario, &folder.join(format!("swarm-{seed}.pcap")))? else {
        println!("seed {seed} passes");
        return Ok(true);
    };
    println!("seed {seed} fails: {why}\n\nsearching a smaller scenario");
    // The first panic has printed its place.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let before = scenario.size();
    let smallest = shrink(scenario, why, |smaller| smaller.run(&mut Trace::off()).err());
    std::panic::set_hook(hook);
    show(&smallest.scenario, &folder.join(format!("swarm-{seed}-smallest.pcap")))?;
    println!(
        "the smallest of {} scenarios fails: {}\n  seed {seed}: {before}\n  smallest: {}",
        smallest.tries + 1,
        smallest.why,
        smallest.scenario.size()
    );
    Ok(false)
}

/// Runs a scenario, prints what happens and writes its frames to `capture`. Returns why it fails.
fn show(scenario: &impl Scenario, capture: &Path) -> Result<Option<String>, String> {
    println!("{scenario:#?}");
    let mut trace = Trace::on();
    let failure = scenario.run(&mut trace).err();
    let frames = trace.into_frames();
    capture_file::write(capture, &frames).map_err(|error| error.to_string())?;
    println!("{} frames are in {}", frames.len(), capture.display());
    Ok(failure)
}
