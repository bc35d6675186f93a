//! Transmits a [`Schedule`], each frame at its time, and resumes paused priorities at the end.

use std::io::{self, ErrorKind};

use nix::errno::Errno;

use super::schedule::{FinalXon, Schedule};
use crate::fabric::time::Time;

/// Delay before a frame is retried that the port had no room for.
const RETRY: Time = Time::from_micros(50);
/// Total time for which the final XON is retried if the port has no room.
const XON_TRIES: Time = Time::from_millis(100);

/// A port to transmit on, with a clock.
pub trait Transmitter {
    /// Time since the start.
    fn now(&self) -> Time;
    /// Waits until `due`; returns at once if `due` is over. Returns true if a signal arrived, which
    /// ends the wait.
    fn wait(&mut self, due: Time) -> bool;
    /// Transmits a frame.
    fn send(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// How the transmission ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// All frames were sent, or the time was over.
    Done,
    /// A signal arrived.
    Signal,
}

/// The result of playing a schedule.
#[derive(Debug)]
pub struct Playback {
    /// Frames sent, without the final XON.
    pub sent: u64,
    /// How the transmission ended.
    pub ended: io::Result<End>,
    /// Result of the final XON, if one was due.
    pub xon: Option<io::Result<()>>,
}

/// Plays the schedule. If the schedule has a final XON, the XON is sent even after an error.
pub fn transmit(port: &mut impl Transmitter, schedule: &Schedule) -> Playback {
    let mut sent = 0;
    let ended = steps(port, schedule, &mut sent);
    let final_xon = schedule.final_xon == FinalXon::Always || !matches!(ended, Ok(End::Done));
    let xon = schedule.xon.as_ref().filter(|_| final_xon).map(|xon| send_xon(port, xon));
    Playback { sent, ended, xon }
}

/// Sends the steps. A late frame is sent at once, so that the average rate is kept. No frame is
/// sent after the end of the schedule.
fn steps(port: &mut impl Transmitter, schedule: &Schedule, sent: &mut u64) -> io::Result<End> {
    let end = schedule.end();
    let mut start = Time::ZERO;
    for step in &schedule.steps {
        let mut due = start;
        for n in 0..step.count {
            let bytes = step.bytes(n);
            // Check for a signal every 64 frames, even without time to wait.
            let mut check_signal = n.is_multiple_of(64);
            loop {
                if (check_signal || port.now() < due) && port.wait(due.min(end)) {
                    return Ok(End::Signal);
                }
                if port.now() >= end {
                    return Ok(End::Done);
                }
                match port.send(&bytes) {
                    Ok(()) => break,
                    Err(error) if is_full(&error) => {
                        due = due.max(port.now() + RETRY);
                        check_signal = true;
                    }
                    Err(error) => return Err(error),
                }
            }
            *sent += 1;
            due = start + Time(step.gap.0.saturating_mul(n + 1));
        }
        start = start + step.span;
    }
    // Wait for the requested pause time, including that of the last frame.
    let is_stopped = schedule.final_xon == FinalXon::Always && port.wait(start);
    Ok(if is_stopped { End::Signal } else { End::Done })
}

fn send_xon(port: &mut impl Transmitter, xon: &[u8]) -> io::Result<()> {
    let until = port.now() + XON_TRIES;
    loop {
        match port.send(xon) {
            Err(error) if is_full(&error) && port.now() < until => {
                // A signal does not interrupt the XON: the XON ends the pause.
                let _signal = port.wait(port.now() + RETRY);
            }
            done => return done,
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    error.kind() == ErrorKind::WouldBlock || error.raw_os_error() == Some(Errno::ENOBUFS as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    use feroce_wire::MacAddr;

    use super::super::schedule::{Step, pfc};

    /// A port in virtual time.
    #[derive(Default)]
    struct Model {
        now: Time,
        frames: Vec<(Time, Vec<u8>)>,
        /// Time to transmit a frame.
        slow: Time,
        /// Interval without room.
        full: (Time, Time),
        signal: Option<Time>,
    }

    impl Transmitter for Model {
        fn now(&self) -> Time {
            self.now
        }

        fn wait(&mut self, due: Time) -> bool {
            let until = self.now.max(due);
            let signal = self.signal.filter(|&at| at <= until);
            self.now = signal.map_or(until, |at| self.now.max(at));
            self.signal = self.signal.filter(|_| signal.is_none());
            signal.is_some()
        }

        fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
            if (self.full.0..self.full.1).contains(&self.now) {
                return Err(io::Error::from_raw_os_error(Errno::ENOBUFS as i32));
            }
            self.frames.push((self.now, bytes.to_vec()));
            self.now = self.now + self.slow;
            Ok(())
        }
    }

    const MS: fn(u64) -> Time = Time::from_millis;

    fn storm(span: Time, gap: Time) -> Schedule {
        Schedule::storm(MacAddr([2, 0, 0, 0, 0, 1]), pfc(8, 0xffff), span, gap)
    }

    #[test]
    fn xon_is_sent_at_the_end() {
        let (schedule, mut port) = (storm(MS(25), MS(10)), Model::default());
        let playback = transmit(&mut port, &schedule);
        assert!(matches!(playback, Playback { sent: 2, ended: Ok(End::Done), xon: Some(Ok(())) }));
        let times: Vec<_> = port.frames.iter().map(|(at, _)| *at).collect();
        assert_eq!(times, [MS(0), MS(10), MS(25)]);
        assert_eq!(port.frames.last().map(|(_, bytes)| bytes), schedule.xon.as_ref());
    }

    #[test]
    fn a_storm_ends_in_time_on_a_slow_or_full_port() {
        let mut slow = Model { slow: MS(7), ..Model::default() };
        let playback = transmit(&mut slow, &storm(MS(100), MS(1)));
        assert!(playback.sent < 20 && matches!(playback.ended, Ok(End::Done)), "{playback:?}");
        assert!(slow.frames.last().unwrap().0 < MS(108), "{:?}", slow.now);
        let mut full = Model { full: (MS(50), MS(150)), ..Model::default() };
        let playback = transmit(&mut full, &storm(MS(100), MS(1)));
        assert_eq!(playback.sent, 50);
        assert!(
            matches!(playback.xon, Some(Ok(()))),
            "XON is tried until there is room: {playback:?}"
        );
        let mut dead = Model { full: (MS(50), Time::FAR), ..Model::default() };
        let playback = transmit(&mut dead, &storm(MS(100), MS(1)));
        assert!(matches!(playback.xon, Some(Err(_))) && dead.now < MS(201), "{playback:?}");
    }

    #[test]
    fn a_signal_interrupts_waiting_and_retrying() {
        for full in [(Time::ZERO, Time::ZERO), (MS(15), MS(45))] {
            for at in [MS(20), MS(95)] {
                let mut port = Model { full, signal: Some(at), ..Model::default() };
                let playback = transmit(&mut port, &storm(MS(100), MS(10)));
                assert!(matches!(playback.ended, Ok(End::Signal)), "{playback:?}");
                assert!(matches!(playback.xon, Some(Ok(()))), "{playback:?}");
                assert!(port.now >= at && port.now <= at.max(full.1) + MS(1), "{:?}", port.now);
            }
        }
    }

    #[test]
    fn xon_only_after_an_interruption() {
        let step = Step::same(vec![0; 60], 10, MS(10));
        let schedule = Schedule {
            steps: vec![step],
            xon: Some(vec![1; 60]),
            final_xon: FinalXon::WhenStopped,
        };
        let mut port = Model::default();
        let playback = transmit(&mut port, &schedule);
        assert!(
            playback.sent == 10 && playback.xon.is_none() && port.now == MS(90),
            "{playback:?}"
        );
        let mut port = Model { signal: Some(MS(35)), ..Model::default() };
        let playback = transmit(&mut port, &schedule);
        assert!(playback.sent == 4 && matches!(playback.xon, Some(Ok(()))), "{playback:?}");
        // A slow port gets all frames, late.
        let mut port = Model { slow: MS(20), ..Model::default() };
        assert_eq!(transmit(&mut port, &schedule).sent, 10);
    }
}
