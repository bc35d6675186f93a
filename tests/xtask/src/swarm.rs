//! Replays one scenario of a swarm, of this commit or of another one.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;
use crate::exit::{Guard, at_end};
use crate::process::{output, run};
use crate::setup::{Work, build, built, cargo, target};

/// Where captures are written.
const CAPTURES: &str = "target/swarm";

/// Options of `xtask swarm`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The seed that a failing swarm printed, and a commit other than the working tree
    #[arg(value_name = "SEED[@COMMIT]", value_parser = parse)]
    scenario: (u64, Option<String>),
    /// The swarm of all services (the test `services`) instead of the one of RC (`swarm`)
    #[arg(long)]
    services: bool,
}

fn parse(text: &str) -> std::result::Result<(u64, Option<String>), String> {
    let (seed, commit) = match text.split_once('@') {
        Some((_, "")) => return Err("the commit is empty".to_owned()),
        Some((seed, commit)) => (seed, Some(commit.to_owned())),
        None => (text, None),
    };
    Ok((seed.parse().map_err(|error| format!("{seed}: {error}"))?, commit))
}

/// Runs the command.
pub fn main(options: &Options) -> Result<u8> {
    let (seed, commit) = &options.scenario;
    std::fs::create_dir_all(CAPTURES)?;
    let captures = std::path::absolute(CAPTURES)?;
    let mut command = match commit {
        None => {
            build(&["--bin", "feroce-swarm"])?;
            Command::new(built().join("feroce-swarm"))
        }
        Some(commit) => {
            let work = Work::new()?;
            let Some(tree) = Worktree::add(&work, commit)? else { return Ok(2) };
            return replay_in(&tree, *seed, &captures, options.services);
        }
    };
    command.arg(seed.to_string()).arg(captures).args(options.services.then_some("--services"));
    Ok(u8::try_from(run(&mut command)?).unwrap_or(1))
}

/// Builds and runs the scenario of the commit in `tree`.
fn replay_in(tree: &Worktree, seed: u64, captures: &Path, services: bool) -> Result<u8> {
    let mut command = Command::new(cargo());
    command.current_dir(&tree.path).env("CARGO_TARGET_DIR", target().join("swarm-commits"));
    if tree.path.join("tests/src/bin/feroce-swarm.rs").exists() {
        command.args(["run", "--release", "--quiet", "--bin", "feroce-swarm", "--"]);
        command.arg(seed.to_string()).arg(captures).args(services.then_some("--services"));
    } else {
        println!("this commit has no feroce-swarm: the scenario is neither shrunk nor captured");
        let test = if services { "services" } else { "swarm" };
        command.args(["test", "--release", "--quiet", "--workspace", "--test", test]);
        command
            .args(["random_scenarios", "--", "--nocapture"])
            .env("FEROCE_SEED", seed.to_string());
    }
    Ok(u8::from(run(&mut command)? != 0))
}

/// The files of a commit in a temporary folder. Dropping it removes them.
struct Worktree {
    path: PathBuf,
    _guard: Guard,
}

impl Worktree {
    /// Checks out `commit`. Returns `None` if there is no such commit.
    fn add(work: &Work, commit: &str) -> Result<Option<Self>> {
        let spec = format!("{commit}^{{commit}}");
        let id = output(Command::new("git").args(["rev-parse", "--verify", "--quiet", &spec]))?;
        if id.is_empty() {
            eprintln!("xtask: no commit {commit}");
            return Ok(None);
        }
        let path = work.file("tree");
        let mut add = Command::new("git");
        add.args(["worktree", "add", "--quiet", "--detach"]).arg(&path).arg(id.trim());
        let removed = path.clone();
        let guard = at_end(move || {
            let mut remove = Command::new("git");
            remove.args(["worktree", "remove", "--force"]).arg(removed);
            let _ = output(&mut remove);
        });
        if run(&mut add)? != 0 {
            return Err(format!("git cannot check out {commit}").into());
        }
        Ok(Some(Self { path, _guard: guard }))
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn a_scenario_is_a_seed_or_a_seed_of_a_commit() {
        assert_eq!(parse("17"), Ok((17, None)));
        assert_eq!(parse("17@main~2"), Ok((17, Some("main~2".to_owned()))));
        assert!(["", "x", "17@", "@main", "-1"].iter().all(|text| parse(text).is_err()));
    }
}
