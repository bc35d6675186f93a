//! Looking around while a loop spins: the other side, the time, Ctrl-C, and a line of progress.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use super::error::PerfError;
use super::exchange::Control;
use super::message::Message;
use super::plan::Goal;
use super::results::Done;
use crate::signal;

/// Turns of the loop between two looks at the clock.
const TURNS: u32 = 32;
/// Time between two looks at everything else.
const PERIOD: Duration = Duration::from_millis(1);
/// Time between two lines of progress, and before the first one.
const PROGRESS: Duration = Duration::from_millis(500);

/// What a loop keeps an eye on.
#[derive(Debug)]
pub struct Watch<'a> {
    control: &'a mut Control,
    is_client: bool,
    goal: Goal,
    started: Instant,
    turns: u32,
    next_look: Instant,
    next_progress: Option<Instant>,
    shown: bool,
    stop: bool,
    peer_done: Option<Done>,
}

impl<'a> Watch<'a> {
    /// Begins to watch; the time of the goal starts to run.
    pub fn new(control: &'a mut Control, is_client: bool, goal: Goal) -> Self {
        let now = Instant::now();
        let people = is_client && std::io::stderr().is_terminal();
        Self {
            control,
            is_client,
            goal,
            started: now,
            turns: 0,
            next_look: now + PERIOD,
            next_progress: people.then(|| now + PROGRESS),
            shown: false,
            stop: false,
            peer_done: None,
        }
    }

    /// Once per turn of the loop, which has done `messages` so far. Cheap: it looks around only now and then.
    ///
    /// # Errors
    /// The other side is gone or gave up; Ctrl-C at the server.
    pub fn turn(&mut self, messages: u64) -> Result<(), PerfError> {
        self.turns += 1;
        if self.turns < TURNS {
            return Ok(());
        }
        self.turns = 0;
        let now = Instant::now();
        if now < self.next_look { Ok(()) } else { self.look(now, messages) }
    }

    fn look(&mut self, now: Instant, messages: u64) -> Result<(), PerfError> {
        self.next_look = now + PERIOD;
        if let Some(message) = self.control.poll()? {
            self.take(message)?;
        }
        if let Goal::Time(time) = self.goal {
            self.stop |= now.duration_since(self.started) >= time;
        }
        if signal::interrupted() {
            // The client ends its round early and reports; the server has nothing to report.
            if !self.is_client {
                return Err(PerfError::Interrupted);
            }
            self.stop = true;
        }
        if self.next_progress.is_some_and(|next| now >= next) {
            self.next_progress = Some(now + PROGRESS);
            self.show(now, messages);
        }
        Ok(())
    }

    fn take(&mut self, message: Message) -> Result<(), PerfError> {
        match message {
            Message::Done(done) if self.peer_done.is_none() => {
                self.peer_done = Some(done);
                Ok(())
            }
            other => Err(self.control.unexpected(&other).into()),
        }
    }

    /// Whether to begin nothing new.
    pub fn stop(&self) -> bool {
        self.stop
    }

    /// What the other side did, once it has told that it is done.
    pub fn peer_done(&self) -> Option<&Done> {
        self.peer_done.as_ref()
    }

    /// Waits until the other side has told that it is done.
    pub fn wait_for_peer(&mut self) -> Result<Done, PerfError> {
        loop {
            if let Some(done) = &self.peer_done {
                return Ok(done.clone());
            }
            let message = self.control.receive()?;
            self.take(message)?;
        }
    }

    /// Tells the other side what this one did.
    pub fn tell_done(&mut self, done: &Done) -> Result<(), PerfError> {
        self.clear();
        Ok(self.control.send(&Message::Done(done.clone()))?)
    }

    fn show(&mut self, now: Instant, messages: u64) {
        let seconds = now.duration_since(self.started).as_secs_f64();
        let of = match self.goal {
            Goal::Messages(goal) => format!("of {goal} per QP, {seconds:.0} s"),
            Goal::Time(time) => format!("in {seconds:.0} of {:.0} s", time.as_secs_f64()),
        };
        eprint!("\r{messages} messages {of}\x1b[K");
        let _ = std::io::stderr().flush(); // Progress is no result.
        self.shown = true;
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            eprint!("\r\x1b[K");
        }
        self.next_progress = None;
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}
