//! `cargo xtask`: the checks of this repository that need namespaces, a guest, another stack or
//! minutes. `scripts/test.sh` runs them with the tests of `cargo test`.

mod bench;
mod ceph;
mod compliance;
mod connects;
mod daemon;
mod exit;
mod frames;
mod guest;
mod inject;
mod interop_kit;
mod live_incast;
mod mutants;
mod mutation;
mod net;
mod own;
mod packages;
mod pfc_endpoint;
mod process;
mod programs;
mod pyverbs;
mod replay_live;
mod root;
mod rows;
mod rxe;
mod setup;
mod swarm;
mod symbols;
mod tally;
mod together;
mod tree_copy;

use std::error::Error;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// Runs checks of Feroce that need namespaces, a guest with Linux rxe, another stack or minutes.
///
/// Exit code: 0 if everything passed, 1 if something failed or is missing, 2 for wrong usage.
#[derive(Debug, Parser)]
#[command(name = "xtask", bin_name = "cargo xtask", max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run unmodified programs of the distribution on Feroce
    Programs(programs::Options),
    /// Try Feroce against a host with a real RNIC, over ssh: the same programs in both roles,
    /// captures of both sides, and one report. docs/interop.md says what the host needs
    InteropKit(interop_kit::Options),
    /// Play 598 cases against Linux rxe in a guest, in both roles. tests/src/rxe/cases.rs has the
    /// cases
    Rxe(rxe::Options),
    /// Play the requests of captures to Feroce and to rxe, and compare the responses
    ReplayLive(replay_live::Options),
    /// Play the catalogue of event scripts between two Feroces, and between Feroce and rxe
    Inject(inject::Options),
    /// Measure how well an endpoint obeys PFC pauses
    PfcEndpoint(pfc_endpoint::Options),
    /// Run the incasts of the scenario live-incast in virtual time and with real packets, and
    /// compare the results. Takes 4 minutes and two idle CPUs
    LiveIncast(live_incast::Options),
    /// Run packages of Rust and Python on Feroce: the tests and examples of Rust crates, and
    /// Python packages that transfer data. cargo and pip download them into target/packages
    Packages(packages::Options),
    /// Run rdma-core's own Python suite on Feroce
    Pyverbs(pyverbs::Options),
    /// Say which symbols a release of rdma-core exports that the lists of this project lack. Prints
    /// the missing lines; exit code 1 if there are any
    Symbols(symbols::Options),
    /// Run Ceph on Feroce: a monitor, a manager and an OSD on one host, `rados bench` from another.
    /// Installs Debian's packages of Ceph; takes 2 minutes
    Ceph(ceph::Options),
    /// Run eight pairs of unmodified programs at once through one daemon per host, as an ordinary
    /// user; then kill and stop some of them while the others run on
    Together(together::Options),
    /// Let tshark and scapy judge frames that Feroce sent
    Frames {
        /// How many frames
        #[arg(default_value_t = 10000)]
        count: usize,
    },
    /// Write docs/compliance.html: the rules of specifications that the code cites, with the tests
    /// that pin them. tests/compliance.toml says what each demands
    Compliance,
    /// Measure performance: one line per figure with name, value, bound, and ok or missed. Exit
    /// code 2 if the filter matches none
    Bench(bench::Options),
    /// Check that the tests detect defects of the engine: each patch in tests/mutants breaks one
    /// rule, and the test that it names must fail
    ///
    /// FEROCE_MUTANT_SCENARIOS sets how many scenarios the swarm may need.
    Mutants(mutants::Options),
    /// Change the crates that decide about bytes and memory in the ways that cargo-mutants knows,
    /// one change at a time, and write docs/mutation.md. tests/survivors.toml has the changes that
    /// no test detects, with reasons
    ///
    /// Exit code 1 if a change survives that the list lacks.
    Mutation(mutation::Options),
    /// Replay one scenario of a swarm: print what happens, write the frames to captures in
    /// target/swarm, and search the smallest scenario that still fails
    ///
    /// Exit code: 0 if the scenario passes, 1 if it fails, 2 for wrong usage.
    Swarm(swarm::Options),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = prepare().and_then(|()| run(arguments.command));
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Makes the root of the repository the current folder, and watches for signals.
fn prepare() -> Result {
    std::env::set_current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))?;
    Ok(exit::watch_signals()?)
}

fn run(command: Command) -> Result<u8> {
    match command {
        Command::Programs(options) => programs::main(options),
        Command::Bench(options) => bench::main(options),
        Command::Compliance => compliance::main(),
        Command::InteropKit(options) => interop_kit::main(options),
        Command::Rxe(options) => rxe::main(options),
        Command::ReplayLive(options) => replay_live::main(options),
        Command::Inject(options) => inject::main(options),
        Command::PfcEndpoint(options) => pfc_endpoint::main(options),
        Command::LiveIncast(options) => live_incast::main(options),
        Command::Packages(options) => packages::main(options),
        Command::Pyverbs(options) => pyverbs::main(options),
        Command::Symbols(options) => symbols::main(options),
        Command::Ceph(options) => ceph::main(options),
        Command::Together(options) => together::main(options),
        Command::Mutants(options) => mutants::main(options),
        Command::Mutation(options) => mutation::main(options),
        Command::Swarm(options) => swarm::main(&options),
        Command::Frames { count } => frames::run(count),
    }
}
