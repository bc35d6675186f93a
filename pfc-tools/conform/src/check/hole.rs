//! Holes of the capture: requests that the responder got and the capture does not have.

use feroce_wire::Psn;

use super::findings::{Findings, Place, hex};
use crate::rules::RuleId;

/// Returns true if `psn` is one of the PSNs of `hole`.
pub(super) fn contains(hole: Option<(Psn, Psn)>, psn: Psn) -> bool {
    hole.is_some_and(|(start, end)| !psn.is_before(start) && psn.is_before(end))
}

/// Reports a hole of `span` PSNs; `place` is the first packet behind it.
pub(super) fn report(place: Place, psn: Psn, span: u32, out: &mut Findings) {
    out.add(RuleId::Hole, place, || {
        format!(
            "the capture misses {span} PSNs from {} on, and responses to them: ahead of this \
             packet both directions are silent, and the next response is beyond them",
            hex(psn)
        )
    });
}
