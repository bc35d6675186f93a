//! What a measuring loop checks while it spins: the peer, the time, Ctrl-C, and progress output.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use super::error::PerfError;
use super::exchange::Control;
use super::message::Message;
use super::plan::Goal;
use super::results::Done;
use crate::signal;

/// Loop iterations between two reads of the clock.
const TURNS: u32 = 32;
/// Time between two checks of everything else.
const PERIOD: Duration = Duration::from_millis(1);
/// Time before the first progress output and between two.
const PROGRESS: Duration = Duration::from_millis(500);

/// State that a loop checks.
#[derive(Debug)]
pub struct Watch<'a> {
    control: &'a mut Control,
    is_client: bool,
    goal: Goal,
    started: Instant,
    turns: u32,
    next_check: Instant,
    /// Draws only at the client, and only if standard error is a terminal.
    progress: ProgressBar,
    next_progress: Option<Instant>,
    stop: bool,
    peer_done: Option<Done>,
}

impl<'a> Watch<'a> {
    /// Starts to watch. The time of the goal starts now.
    pub fn new(control: &'a mut Control, is_client: bool, goal: Goal) -> Self {
        let now = Instant::now();
        let progress = if is_client { progress_bar(goal) } else { ProgressBar::hidden() };
        Self {
            control,
            is_client,
            goal,
            started: now,
            turns: 0,
            next_check: now + PERIOD,
            next_progress: (!progress.is_hidden()).then(|| now + PROGRESS),
            progress,
            stop: false,
            peer_done: None,
        }
    }

    /// Call once per iteration of the loop with the number of messages so far. Cheap: most calls
    /// only count.
    ///
    /// # Errors
    /// If the peer is gone or gave up; on Ctrl-C at the server.
    pub fn turn(&mut self, messages: u64) -> Result<(), PerfError> {
        self.turns += 1;
        if self.turns < TURNS {
            return Ok(());
        }
        self.turns = 0;
        let now = Instant::now();
        if now < self.next_check { Ok(()) } else { self.check(now, messages) }
    }

    fn check(&mut self, now: Instant, messages: u64) -> Result<(), PerfError> {
        self.next_check = now + PERIOD;
        if self.peer_done.is_some() {
            // The peer is ahead: its next message is for what follows the round on this side.
            self.control.keep_alive()?;
        } else if let Some(message) = self.control.poll()? {
            self.take(message)?;
        }
        if let Goal::Time(time) = self.goal {
            self.stop |= now.duration_since(self.started) >= time;
        }
        if signal::interrupted() {
            // The client ends its round early and reports. The server has nothing to report.
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

    /// Returns true if no new message should be started.
    pub fn stop(&self) -> bool {
        self.stop
    }

    /// What the peer sent, once it has reported `done`.
    pub fn peer_done(&self) -> Option<&Done> {
        self.peer_done.as_ref()
    }

    /// Waits until the peer has reported `done`.
    pub fn wait_for_peer(&mut self) -> Result<Done, PerfError> {
        loop {
            if let Some(done) = &self.peer_done {
                return Ok(done.clone());
            }
            let message = self.control.receive()?;
            self.take(message)?;
        }
    }

    /// Reports what this side sent to the peer.
    pub fn send_done(&mut self, done: &Done) -> Result<(), PerfError> {
        self.clear();
        Ok(self.control.send(&Message::Done(done.clone()))?)
    }

    fn show(&self, now: Instant, messages: u64) {
        let elapsed = now.duration_since(self.started);
        if let Goal::Time(_) = self.goal {
            self.progress.set_position(milliseconds(elapsed));
        }
        self.progress.set_message(format!("{messages} messages"));
        self.progress.tick();
    }

    fn clear(&mut self) {
        self.progress.finish_and_clear();
        self.next_progress = None;
    }
}

/// The progress bar of the client: of the time, if the goal is a time.
fn progress_bar(goal: Goal) -> ProgressBar {
    let (bar, template) = match goal {
        Goal::Messages(_) => (ProgressBar::no_length(), "{msg}, {elapsed}"),
        Goal::Time(time) => {
            (ProgressBar::new(milliseconds(time)), "{msg} {wide_bar} {percent} %, {elapsed}")
        }
    };
    bar.with_style(ProgressStyle::with_template(template).expect("a valid template"))
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_after_the_end_of_the_peers_round_waits() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let peer = std::thread::spawn(move || {
            let mut control = Control::connect("127.0.0.1", port).unwrap();
            control.send(&Message::Done(Done { messages: vec![5], nanos: 0 })).unwrap();
            control.send(&Message::Verdict { checked: 7 }).unwrap();
            control
        });
        let (stream, from) = listener.accept().unwrap();
        let mut control = Control::handshake(stream, from).unwrap();
        let _peer = peer.join().unwrap();
        let mut watch = Watch::new(&mut control, false, Goal::Messages(5));
        // This side still compares what it has received.
        for _ in 0..5 {
            watch.check(Instant::now(), 0).unwrap();
        }
        assert_eq!(watch.wait_for_peer().unwrap().messages, [5]);
        drop(watch);
        assert!(matches!(control.receive(), Ok(Message::Verdict { checked: 7 })));
    }
}
