//! All figures that may be read, for one screen of `top` or one scrape of `metrics`.

use feroce_engine::device::stat::{self, Request, Snapshot, StatError};
use feroce_engine::time::{Clock, Duration, Instant};

use super::{AT_ONCE, DaemonFigures, daemons, in_parallel};
use crate::failure::chain;

/// Time for a program to answer, where many are queried for one screen or scrape.
const ANSWER_TIME: Duration = Duration::from_secs(2);
/// Maximum number of programs that are queried for one screen or scrape.
const PROGRAMS_MAX: usize = 1024;
/// Time after which no further program is queried for one screen or scrape. Any user can bind a
/// name under which programs serve figures, and never answer.
const GATHER_TIME: Duration = Duration::from_secs(4);

/// The figures of all programs and daemons that may be read.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    pub programs: Vec<Snapshot>,
    pub daemons: Vec<DaemonFigures>,
    /// Why figures are missing, one message per program or daemon.
    pub errors: Vec<String>,
}

impl Figures {
    /// Reads the figures of `interface`, or of all interfaces. Takes milliseconds, and up
    /// to 6 s if some do not answer.
    pub fn gather(interface: Option<&str>) -> Self {
        let clock = Clock::start();
        let mut figures = Self::default();
        match daemons(interface) {
            Ok(daemons) => {
                for result in daemons {
                    match result {
                        Ok(daemon) => figures.daemons.push(daemon),
                        Err((name, error)) => {
                            figures.errors.push(format!("the daemon of {name}: {error}"));
                        }
                    }
                }
            }
            Err(error) => figures.errors.push(format!("cannot look for daemons: {error}")),
        }
        let mut names = stat::endpoints();
        names.retain(|name| interface.is_none_or(|interface| stat::is_on(name, interface)));
        if names.len() > PROGRAMS_MAX {
            let left_out = names.len() - PROGRAMS_MAX;
            figures.errors.push(format!("{left_out} programs are not asked: too many"));
            names.truncate(PROGRAMS_MAX);
        }
        for some in names.chunks(AT_ONCE) {
            if clock.now() >= Instant::ZERO + GATHER_TIME {
                figures.errors.push(format!("{} and others: no time left to ask", some[0]));
                break;
            }
            let query = |name: &String| stat::query_within(name, &Request::default(), ANSWER_TIME);
            for result in in_parallel(some, query) {
                match result {
                    Ok(snapshot) => figures.programs.push(snapshot),
                    // The program has ended meanwhile.
                    Err(StatError::NoEndpoint { .. }) => {}
                    Err(error) => figures.errors.push(chain(&error)),
                }
            }
        }
        figures
    }
}
