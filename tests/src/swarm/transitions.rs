//! Which state transitions of queue pairs the scenarios have driven. A long run fails if a legal
//! transition was never seen and [`UNSEEN`] has no reason for it, or if one of that table was seen.

use std::fmt;

use QpState::{Err as Error, Init, Reset, Rtr, Rts, Sqd, Sqe};
use feroce_engine::qp::{QpAttrMask, QpState, Service, TransitionError, check_transition};

/// Who moves a queue pair to another state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mover {
    /// The program, with `modify`.
    Program,
    /// The engine, after an error.
    Engine,
}

const MOVERS: [Mover; 2] = [Mover::Program, Mover::Engine];

const SERVICES: [Service; 5] =
    [Service::Rc, Service::Uc, Service::Ud, Service::XrcIni, Service::XrcTgt];

/// Transitions that scenarios do not drive.
struct Unseen {
    services: &'static [Service],
    mover: Mover,
    from: &'static [QpState],
    to: &'static [QpState],
    why: &'static str,
}

/// The services that never enter SQE.
const RELIABLE: &[Service] = &[Service::Rc, Service::XrcIni, Service::XrcTgt];

const UNSEEN: &[Unseen] = &[
    Unseen {
        services: RELIABLE,
        mover: Mover::Program,
        from: &[Sqe],
        to: &[Reset, Error],
        why: "a failed request moves a reliable service to ERR: it never is in SQE",
    },
    Unseen {
        services: RELIABLE,
        mover: Mover::Engine,
        from: &[Rts, Sqd],
        to: &[Sqe],
        why: "a failed request moves a reliable service to ERR",
    },
    Unseen {
        services: RELIABLE,
        mover: Mover::Engine,
        from: &[Sqe],
        to: &[Error],
        why: "it never is in SQE",
    },
    Unseen {
        services: &SERVICES,
        mover: Mover::Engine,
        from: &[Reset, Init],
        to: &[Sqe, Error],
        why: "nothing is sent or received in RESET and INIT, so that nothing can fail",
    },
    Unseen {
        services: &SERVICES,
        mover: Mover::Engine,
        from: &[Rtr, Error],
        to: &[Sqe],
        why: "nothing is sent in RTR and ERR",
    },
    Unseen {
        services: &SERVICES,
        mover: Mover::Engine,
        from: &[Rtr],
        to: &[Error],
        why: "no scenario leaves a queue pair in RTR while its peer sends",
    },
    Unseen {
        services: &[Service::Uc],
        mover: Mover::Engine,
        from: &[Sqd],
        to: &[Sqe],
        why: "only started requests fail in SQD; those of the scenarios fail at their start",
    },
    Unseen {
        services: &[Service::Ud],
        mover: Mover::Engine,
        from: &[Sqd],
        to: &[Sqe],
        why: "a request is one packet: none is left to send in SQD",
    },
];

/// A transition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Row {
    service: Service,
    mover: Mover,
    from: QpState,
    to: QpState,
}

impl Row {
    /// Every combination.
    fn all() -> impl Iterator<Item = Self> {
        let of_service = |service| {
            MOVERS.into_iter().flat_map(move |mover| {
                QpState::ALL.into_iter().flat_map(move |from| {
                    QpState::ALL.into_iter().map(move |to| Self { service, mover, from, to })
                })
            })
        };
        SERVICES.into_iter().flat_map(of_service)
    }

    /// Programs follow the tables of the engine. The engine itself only moves queue pairs to SQE
    /// and ERR.
    fn is_legal(self) -> bool {
        let Self { service, mover, from, to } = self;
        match mover {
            Mover::Program => !matches!(
                check_transition(service, from, to, QpAttrMask::NONE),
                Err(TransitionError::Illegal { .. })
            ),
            Mover::Engine => from != to && matches!(to, Sqe | Error),
        }
    }

    /// Why it is not seen, if the table says so.
    fn reason(self) -> Option<&'static str> {
        let is_it = |unseen: &&Unseen| {
            unseen.mover == self.mover
                && unseen.services.contains(&self.service)
                && unseen.from.contains(&self.from)
                && unseen.to.contains(&self.to)
        };
        UNSEEN.iter().find(is_it).map(|unseen| unseen.why)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { service, mover, from, to } = self;
        write!(f, "{service:?}: {from:?} to {to:?} by the {mover:?}")
    }
}

/// Counts by service, old state, new state and mover.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Transitions([[[[u64; MOVERS.len()]; 7]; 7]; SERVICES.len()]);

impl Transitions {
    fn count(&mut self, row: Row) -> &mut u64 {
        let service = SERVICES.iter().position(|&service| service == row.service);
        let of_service = &mut self.0[service.expect("every service is in the list")];
        &mut of_service[row.from as usize][row.to as usize][row.mover as usize]
    }

    /// Notes that `mover` has moved a queue pair.
    ///
    /// # Errors
    /// If this is not a legal transition.
    pub fn note(
        &mut self,
        service: Service,
        mover: Mover,
        (from, to): (QpState, QpState),
    ) -> Result<(), String> {
        let row = Row { service, mover, from, to };
        *self.count(row) += 1;
        if row.is_legal() { Ok(()) } else { Err(format!("an illegal transition: {row}")) }
    }

    /// Notes that a program has connected a queue pair that was in RESET. The tables have one way
    /// to RTS.
    pub fn note_connected(&mut self, service: Service) {
        for (from, to) in [(Reset, Init), (Init, Rtr), (Rtr, Rts)] {
            *self.count(Row { service, mover: Mover::Program, from, to }) += 1;
        }
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        let counts = self.0.as_flattened_mut().as_flattened_mut().as_flattened_mut();
        let others = other.0.as_flattened().as_flattened().as_flattened();
        counts.iter_mut().zip(others).for_each(|(count, other)| *count += other);
    }

    /// Returns where the counts contradict the tables: legal transitions that were never seen and
    /// have no reason, and those that were seen although they have one.
    pub fn contradictions(&self) -> Vec<String> {
        let mut counts = self.clone();
        let contradiction = |row: Row| match (*counts.count(row) > 0, row.reason()) {
            (false, None) if row.is_legal() => Some(format!("{row} was never seen")),
            (true, Some(why)) => Some(format!("{row} was seen, although: {why}")),
            _ => None,
        };
        Row::all().filter_map(contradiction).collect()
    }
}

impl fmt::Display for Transitions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut counts = self.clone();
        for row in Row::all() {
            let count = *counts.count(row);
            if count > 0 {
                writeln!(f, "  {count:>9} {row}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_legal_transition_is_seen_or_has_a_reason_but_not_both() {
        let mut counts = Transitions::default();
        for row in Row::all().filter(|row| row.is_legal() && row.reason().is_none()) {
            *counts.count(row) = 1;
        }
        assert_eq!(counts.contradictions(), [""; 0]);
        let row = |mover, from, to| Row { service: Service::Ud, mover, from, to };
        *counts.count(row(Mover::Program, Sqe, Rts)) = 0;
        *counts.count(row(Mover::Engine, Reset, Error)) = 1;
        let contradictions = [
            "Ud: Sqe to Rts by the Program was never seen",
            "Ud: Reset to Err by the Engine was seen, although: nothing is sent or received in \
             RESET and INIT, so that nothing can fail",
        ];
        assert_eq!(counts.contradictions(), contradictions);
    }

    #[test]
    fn an_illegal_transition_is_an_error() {
        let mut counts = Transitions::default();
        let mut note = |service, mover, change| counts.note(service, mover, change).is_ok();
        assert!(note(Service::Uc, Mover::Program, (Sqe, Rts)));
        assert!(!note(Service::Rc, Mover::Program, (Sqe, Rts)));
        assert!(note(Service::Rc, Mover::Engine, (Sqd, Error)));
        assert!(!note(Service::Rc, Mover::Engine, (Rts, Sqd)));
    }

    #[test]
    fn every_row_of_the_reasons_is_a_legal_transition() {
        for unseen in UNSEEN {
            for (&service, &from) in unseen
                .services
                .iter()
                .flat_map(|service| unseen.from.iter().map(move |from| (service, from)))
            {
                for &to in unseen.to {
                    let row = Row { service, mover: unseen.mover, from, to };
                    assert!(row.is_legal() || from == to, "{row}: {}", unseen.why);
                }
            }
        }
    }
}
