//! Replays one scenario of a swarm: `feroce-swarm SEED FOLDER [--services]`. Prints what happens,
//! writes the frames to captures in the folder, and searches the smallest scenario that still
//! fails. `cargo xtask swarm` builds and runs this program.
//!
//! Exit code: 0 if the scenario passes, 1 if it fails, 2 for wrong usage.

use std::path::Path;
use std::process::ExitCode;

use feroce_tests::swarm::Workload;
use feroce_tests::swarm::replay::replay;
use feroce_tests::swarm::services::ServiceScenario;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (seed, folder, replay): (_, _, fn(u64, &Path) -> _) = match words[..] {
        [seed, folder] => (seed, folder, replay::<Workload>),
        [seed, folder, "--services"] => (seed, folder, replay::<ServiceScenario>),
        _ => return usage(),
    };
    let Ok(seed) = seed.parse() else { return usage() };
    match replay(seed, Path::new(folder)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("feroce-swarm: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: feroce-swarm SEED FOLDER [--services]");
    ExitCode::from(2)
}
