//! `feroce top`: the programs of this network namespace with their rates, live.
//!
//! Input: the figures that `feroce stat` and `feroce stat --daemon` show, once per interval.
//! Output: a screen, or text with `--batch`. `model.rs` computes what is shown, `columns.rs` lists
//! the columns, `screen.rs` draws.

mod columns;
mod model;
mod screen;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::time::Duration;

use clap::Args;
use feroce_engine::sys;
use feroce_engine::time::{Clock, Instant};
use feroce_pfc_tools::terminal::{Input, Screen};
use nix::unistd::{Uid, User};
use ratatui::crossterm::event::KeyCode;

use crate::failure::Failure;
use crate::figures::Figures;
use crate::stat::parse_seconds;
use crate::{output, signal};
use columns::Sort;
use model::{Sample, View};
use screen::Choice;

/// Time to the first rates on a screen, if the interval is longer.
const FIRST: Duration = Duration::from_millis(500);

/// Options of `feroce top`.
#[derive(Debug, Args)]
#[command(after_help = "\
A row is a program; root sees the programs of all users. DROP/s: frames lost on this host, and \
frames that the daemon refused. QUOTA: the largest share of a limit of the daemon that the program \
or its user has used. `-`: not known (yet). Keys: q quits, < and > choose the column to sort by, r \
reverses, arrows scroll, space refreshes.")]
pub struct Options {
    /// Show only the programs on this interface [default: all in this network namespace]
    #[arg(short, long, value_name = "IFACE")]
    interface: Option<String>,
    /// Seconds between two updates
    #[arg(short = 'd', long, value_name = "SECONDS", default_value = "2")]
    #[arg(value_parser = parse_seconds)]
    interval: Duration,
    /// Print text instead of a screen, until Ctrl-C; needs no terminal
    #[arg(short, long)]
    batch: bool,
    /// With --batch: end after this number of updates
    #[arg(short = 'n', long, value_name = "N", requires = "batch")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    iterations: Option<u64>,
    /// Column to sort by
    #[arg(short, long, value_name = "COLUMN", default_value = "traffic")]
    sort: Sort,
}

/// Shows programs until the user quits.
pub fn run(options: &Options) -> Result<(), Failure> {
    if !options.batch && !Screen::is_possible() {
        let message = "standard input or output is not a terminal: use `feroce top --batch`";
        return Err(Failure::Plan(message.to_owned()));
    }
    signal::watch();
    let mut source = Source::new(options);
    match options.batch {
        true => batch(options, &mut source),
        false => interactive(options, &mut source),
    }
}

/// Takes samples, and keeps the last one.
struct Source<'a> {
    options: &'a Options,
    clock: Clock,
    before: Option<Sample>,
    now: Sample,
    /// Names of users. Looking one up may ask a server.
    users: BTreeMap<u32, String>,
}

impl<'a> Source<'a> {
    fn new(options: &'a Options) -> Self {
        let clock = Clock::start();
        let (before, users) = (None, BTreeMap::new());
        let mut source = Self { options, clock, before, now: Sample::default(), users };
        source.now = source.sample();
        source
    }

    fn sample(&self) -> Sample {
        let figures = Figures::gather(self.options.interface.as_deref());
        Sample { nanos: self.clock.now().as_nanos(), figures }
    }

    fn advance(&mut self) {
        let sample = self.sample();
        self.before = Some(std::mem::replace(&mut self.now, sample));
    }

    /// The view of the last two samples, with sorted rows.
    fn view(&mut self, choice: &Choice) -> View {
        let mut view = View::between(self.before.as_ref(), &self.now);
        for row in &mut view.rows {
            let name = self.users.entry(row.user).or_insert_with(|| name_of(row.user));
            row.user_name.clone_from(name);
        }
        choice.sort.sort(&mut view.rows, choice.is_reversed);
        view
    }
}

fn name_of(user: u32) -> String {
    let known = User::from_uid(Uid::from_raw(user)).ok().flatten();
    known.map_or_else(|| user.to_string(), |user| user.name)
}

impl Options {
    const fn choice(&self) -> Choice {
        Choice { sort: self.sort, is_reversed: false, scrolled: 0 }
    }
}

/// Prints a view per interval. The first one comes after an interval: before, there are no rates.
fn batch(options: &Options, source: &mut Source<'_>) -> Result<(), Failure> {
    let mut left = options.iterations;
    loop {
        // Unlike a plain sleep, Ctrl-C ends this wait.
        sys::poll_readable(&[], &mut Vec::new(), Some(options.interval));
        if signal::interrupted() {
            return Ok(());
        }
        source.advance();
        let view = source.view(&options.choice());
        view.errors.iter().for_each(|error| eprintln!("feroce: {error}"));
        output::line(&screen::text(&view))?;
        left = left.map(|left| left - 1);
        if left == Some(0) {
            return Ok(());
        }
    }
}

fn interactive(options: &Options, source: &mut Source<'_>) -> Result<(), Failure> {
    let mut screen = Screen::open().map_err(Failure::Output)?;
    let mut choice = options.choice();
    let mut due = source.clock.now() + options.interval.min(FIRST);
    loop {
        let view = source.view(&choice);
        choice.scrolled = choice.scrolled.min(view.rows.len().saturating_sub(1));
        screen.draw(|frame| screen::draw(frame, &view, &choice)).map_err(Failure::Output)?;
        match wait(&mut screen, &mut choice, &source.clock, due)? {
            Next::Quit => return Ok(()),
            Next::Redraw => {}
            Next::Sample => {
                source.advance();
                due = source.clock.now() + options.interval;
            }
        }
    }
}

/// What happens next on the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    Redraw,
    Sample,
    Quit,
}

fn wait(
    screen: &mut Screen,
    choice: &mut Choice,
    clock: &Clock,
    due: Instant,
) -> Result<Next, Failure> {
    let mut scratch = Vec::new();
    loop {
        let left = due.saturating_since(clock.now());
        if left.is_zero() {
            return Ok(Next::Sample);
        }
        sys::poll_readable(&[screen.as_raw_fd()], &mut scratch, Some(left));
        if signal::interrupted() {
            return Ok(Next::Quit);
        }
        let inputs = screen.inputs().map_err(Failure::Output)?;
        if let Some(next) = inputs.into_iter().filter_map(|input| apply(choice, input)).max() {
            return Ok(next);
        }
    }
}

/// Applies an input. Returns `None` for a key without a meaning.
fn apply(choice: &mut Choice, input: Input) -> Option<Next> {
    match input {
        Input::Quit => return Some(Next::Quit),
        Input::Resized => {}
        Input::Key(key) => match key {
            KeyCode::Char('<') | KeyCode::Left => choice.sort = choice.sort.moved(-1),
            KeyCode::Char('>') | KeyCode::Right => choice.sort = choice.sort.moved(1),
            KeyCode::Char('r' | 'R') => choice.is_reversed = !choice.is_reversed,
            KeyCode::Up => choice.scrolled = choice.scrolled.saturating_sub(1),
            KeyCode::Down => choice.scrolled += 1,
            KeyCode::Home => choice.scrolled = 0,
            KeyCode::Char(' ') => return Some(Next::Sample),
            _ => return None,
        },
    }
    Some(Next::Redraw)
}
