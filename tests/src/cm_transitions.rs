//! Which changes of state of the identifiers of a [`Pair`](crate::cm::Pair) have occurred, and
//! what caused them. A scenario fails if something else than a row of [`TABLE`] occurred; a long
//! run fails if a row never did and `UNSEEN` has no reason for it.

use std::collections::BTreeMap;

use State::{
    DreqReceived, DreqSent, Established, Idle, MraRepReceived, MraReqReceived, RepReceived,
    RepSent, ReqReceived, ReqSent, SidrReqReceived, SidrReqSent, Timewait,
};
use feroce_engine::cm::{CmId, State};

/// A call of the program.
pub const CALL: &str = "call";
/// A time that has passed.
pub const TIMER: &str = "timer";

/// A change of state: its cause (a message by its name, [`CALL`] or [`TIMER`]), the state before
/// and after.
pub type Transition = (&'static str, State, State);

/// The changes that the code allows (IBTA Vol. 1, 12.9.7, and the timers of `cm.c` of
/// Linux). A change of an identifier that the program has destroyed is not visible.
pub const TABLE: &[Transition] = &[
    (CALL, Idle, ReqSent),
    (CALL, Idle, SidrReqSent),
    (CALL, ReqReceived, RepSent),
    (CALL, ReqReceived, Idle),
    (CALL, RepReceived, Established),
    (CALL, RepReceived, Idle),
    (CALL, RepSent, Established),
    (CALL, MraRepReceived, Established),
    (CALL, Established, DreqSent),
    (CALL, DreqReceived, Timewait),
    (CALL, SidrReqReceived, Idle),
    (TIMER, ReqSent, Idle),
    (TIMER, MraReqReceived, Idle),
    (TIMER, RepSent, Idle),
    (TIMER, MraRepReceived, Idle),
    (TIMER, SidrReqSent, Idle),
    (TIMER, DreqSent, Timewait),
    (TIMER, Timewait, Idle),
    ("Req", Idle, ReqReceived),
    ("Req", Established, DreqSent),
    ("Mra", ReqSent, MraReqReceived),
    ("Mra", RepSent, MraRepReceived),
    ("Rep", ReqSent, RepReceived),
    ("Rep", MraReqReceived, RepReceived),
    ("Rep", Established, DreqSent),
    ("Rep", ReqSent, Timewait),
    ("Rep", MraReqReceived, Timewait),
    ("Rtu", RepSent, Established),
    ("Rtu", MraRepReceived, Established),
    ("Rej", ReqSent, Idle),
    ("Rej", MraReqReceived, Idle),
    ("Rej", ReqReceived, Idle),
    ("Rej", RepSent, Idle),
    ("Rej", MraRepReceived, Idle),
    ("Rej", ReqSent, Timewait),
    ("Rej", MraReqReceived, Timewait),
    ("Rej", RepSent, Timewait),
    ("Rej", MraRepReceived, Timewait),
    ("Rej", RepReceived, Timewait),
    ("Rej", Established, Timewait),
    ("Rej", DreqSent, Timewait),
    ("Dreq", RepSent, DreqReceived),
    ("Dreq", MraRepReceived, DreqReceived),
    ("Dreq", Established, DreqReceived),
    ("Dreq", DreqSent, Timewait),
    ("Drep", DreqSent, Timewait),
    ("Drep", DreqReceived, Timewait),
    ("SidrReq", Idle, SidrReqReceived),
    ("SidrRep", SidrReqSent, Idle),
];

/// The rows that scenarios do not drive.
const UNSEEN: &[(Transition, &str)] = &[
    (
        ("Drep", DreqReceived, Timewait),
        "a peer sends a DREP for a DREQ, which this end sends in the state DreqSent",
    ),
    (
        ("Rej", MraRepReceived, Timewait),
        "a peer that has sent an MRA has taken the REP, and does not find it stale any more",
    ),
];

/// Counts of the changes, and the states by which they are noticed.
#[derive(Debug, Default)]
pub struct Transitions {
    known: BTreeMap<CmId, State>,
    counts: BTreeMap<Transition, u64>,
}

impl Transitions {
    /// The program knows the identifier `id` from now on.
    pub fn know(&mut self, id: CmId) {
        self.known.entry(id).or_insert(Idle);
    }

    /// Notes what `cause` has changed. `state` tells the state of an identifier, `None` if the
    /// program has destroyed it.
    pub fn note(&mut self, cause: &'static str, state: impl Fn(CmId) -> Option<State>) {
        self.known.retain(|&id, before| {
            let now = state(id);
            if let Some(now) = now.filter(|now| now != before) {
                *self.counts.entry((cause, *before, now)).or_default() += 1;
                *before = now;
            }
            now.is_some()
        });
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        for (transition, count) in &other.counts {
            *self.counts.entry(*transition).or_default() += count;
        }
    }

    /// The changes that have no row in the table.
    pub fn unexpected(&self) -> Vec<String> {
        let unexpected = self.counts.keys().filter(|row| !TABLE.contains(row));
        unexpected.map(|row| format!("{row:?}")).collect()
    }

    /// What a long run should have seen and has not, and the reverse.
    pub fn contradictions(&self) -> Vec<String> {
        let seen = |row: &Transition| self.counts.contains_key(row);
        let has_reason = |row: &Transition| UNSEEN.iter().any(|(unseen, _)| unseen == row);
        let missing = TABLE.iter().filter(|row| !seen(row) && !has_reason(row));
        let missing = missing.map(|row| format!("{row:?} never occurred"));
        let wrong = UNSEEN.iter().filter(|(row, _)| seen(row));
        missing.chain(wrong.map(|(row, why)| format!("{row:?} occurred, but: {why}"))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The identifier 1 goes to `states`, one after another.
    fn walk(states: &[State]) -> Transitions {
        let (id, mut transitions) = (CmId::from_number(1), Transitions::default());
        transitions.know(id);
        states.iter().for_each(|state| transitions.note(CALL, |_| Some(*state)));
        transitions
    }

    #[test]
    fn a_change_without_a_row_is_unexpected() {
        assert_eq!(walk(&[ReqSent, ReqSent]).unexpected(), Vec::<String>::new());
        assert_eq!(walk(&[ReqSent, RepSent]).unexpected(), [r#"("call", ReqSent, RepSent)"#]);
    }

    #[test]
    fn rows_are_missing_until_they_occur() {
        let missing = |walked: Transitions| walked.contradictions().len();
        let before = missing(walk(&[]));
        assert_eq!(before, TABLE.len() - UNSEEN.len());
        assert_eq!(missing(walk(&[ReqSent])), before - 1);
        let mut unseen = walk(&[DreqReceived]);
        unseen.note("Drep", |_| Some(Timewait));
        assert_eq!(missing(unseen), before + 1, "it has a reason, which is wrong");
    }

    #[test]
    fn a_destroyed_identifier_is_forgotten() {
        let mut transitions = walk(&[ReqSent]);
        transitions.note(CALL, |_| None);
        transitions.note(CALL, |_| Some(Established));
        assert_eq!(transitions.unexpected(), Vec::<String>::new());
    }
}
