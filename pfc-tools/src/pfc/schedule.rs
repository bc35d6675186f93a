//! Schedules of frames as values, so that the same frames go to an interface or into a file.

use std::borrow::Cow;

use feroce_wire::{FlowControl, FlowControlFrame, MacAddr};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::malformed::Malformed;
use crate::fabric::time::Time;

/// Longest duration of a schedule.
pub const LONGEST: Time = Time::from_millis(3_600_000);

/// Content of a step's frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// The same bytes in every frame, without FCS.
    Same(Vec<u8>),
    /// Random fields, every third frame malformed; reproducible from the seed.
    Random {
        /// Seed.
        seed: u64,
        /// Source address of all frames; `None` for random addresses.
        src: Option<MacAddr>,
    },
}

/// A number of frames at regular intervals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    content: Content,
    /// Number of frames.
    pub count: u64,
    /// Time between frames.
    pub gap: Time,
    /// Time from the first frame to the next step.
    pub span: Time,
}

impl Step {
    /// `count` frames of `bytes`, one every `gap`.
    pub const fn same(bytes: Vec<u8>, count: u64, gap: Time) -> Self {
        let span = Time(gap.0.saturating_mul(count));
        Self { content: Content::Same(bytes), count, gap, span }
    }

    /// The step's frame number `n`.
    pub fn bytes(&self, n: u64) -> Cow<'_, [u8]> {
        match &self.content {
            Content::Same(bytes) => Cow::Borrowed(bytes),
            Content::Random { seed, src } => Cow::Owned(random_frame(*seed, *src, n)),
        }
    }
}

/// When the final XON is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FinalXon {
    /// At the end of the schedule, and when it is interrupted. The schedule has a fixed end.
    #[default]
    Always,
    /// Only when the schedule is interrupted; otherwise the pauses remain.
    WhenStopped,
}

/// Steps, one after the other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Steps in order.
    pub steps: Vec<Step>,
    /// XON frame that ends all pauses of the steps.
    pub xon: Option<Vec<u8>>,
    /// When `xon` is sent.
    pub final_xon: FinalXon,
}

/// PFC for the priorities of `mask`, all with the same quanta.
pub fn pfc(mask: u8, quanta: u16) -> FlowControl {
    let quanta = [0, 1, 2, 3, 4, 5, 6, 7].map(|p| if mask >> p & 1 == 1 { quanta } else { 0 });
    FlowControl::Pfc { enabled: mask, quanta }
}

/// The same control frame with 0 quanta.
pub fn xon(control: FlowControl) -> FlowControl {
    match control {
        FlowControl::Pfc { enabled, .. } => pfc(enabled, 0),
        FlowControl::Pause { .. } => FlowControl::Pause { quanta: 0 },
    }
}

/// How often `gap` fits into `span`, at least once.
fn times_within(span: Time, gap: Time) -> u64 {
    (span.0 / gap.0.max(1)).max(1)
}

impl Schedule {
    /// `control` every `gap` for `span`, then XON.
    pub fn storm(src: MacAddr, control: FlowControl, span: Time, gap: Time) -> Self {
        let frame = |control| FlowControlFrame { src, control }.to_bytes().to_vec();
        let step = Step::same(frame(control), times_within(span, gap), gap);
        let xon = Some(frame(xon(control)));
        Self { steps: vec![Step { span, ..step }], xon, final_xon: FinalXon::Always }
    }

    /// Every combination for `span` each, with XON between them, and XON for all priorities at the
    /// end.
    pub fn sweep(src: MacAddr, masks: &[u8], quanta: &[u16], gaps: &[Time], span: Time) -> Self {
        let mut steps = Vec::new();
        for &mask in masks {
            for &quanta in quanta {
                for &gap in gaps {
                    let Self { steps: storm, xon, .. } =
                        Self::storm(src, pfc(mask, quanta), span, gap);
                    steps.extend(storm);
                    steps.extend(xon.map(|bytes| Step::same(bytes, 1, Time::ZERO)));
                }
            }
        }
        // The final XON follows the last step.
        steps.pop();
        let all = masks.iter().fold(0, |all, mask| all | mask);
        let xon = FlowControlFrame { src, control: pfc(all, 0) }.to_bytes().to_vec();
        Self { steps, xon: Some(xon), final_xon: FinalXon::Always }
    }

    /// `count` frames with random fields, every third malformed; reproducible from the seed.
    pub fn random(count: u64, seed: u64, src: Option<MacAddr>, gap: Time) -> Self {
        let span = Time(gap.0.saturating_mul(count));
        let step = Step { content: Content::Random { seed, src }, count, gap, span };
        Self { steps: vec![step], xon: None, final_xon: FinalXon::WhenStopped }
    }

    /// Number of frames, without the final XON.
    pub fn frames(&self) -> u64 {
        self.steps.iter().map(|step| step.count).sum()
    }

    /// Duration of all steps.
    pub fn span(&self) -> Time {
        self.steps.iter().fold(Time::ZERO, |sum, step| sum + step.span)
    }

    /// Time after which nothing is sent, even if frames are late.
    pub fn end(&self) -> Time {
        match (self.final_xon, &self.xon) {
            (FinalXon::Always, Some(_)) => self.span(),
            _ => LONGEST,
        }
    }
}

fn random_frame(seed: u64, src: Option<MacAddr>, n: u64) -> Vec<u8> {
    // Frames of the same seed differ from each other, and so do frames of different seeds.
    let seed = Xoshiro256PlusPlus::seed_from_u64(seed).next_u64().wrapping_add(n);
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    let [a, b, c, d, e, enabled, is_pause, salt] = random.next_u64().to_le_bytes();
    let src = src.unwrap_or(MacAddr([2, a, b, c, d, e]));
    let enabled = enabled.max(1);
    let control = if is_pause < 64 {
        FlowControl::Pause { quanta: u16::from_le_bytes([salt, enabled]) }
    } else {
        let words = [random.next_u64().to_le_bytes(), random.next_u64().to_le_bytes()].concat();
        let quanta = [0, 1, 2, 3, 4, 5, 6, 7].map(|p: usize| {
            let value = u16::from_le_bytes([words[2 * p], words[2 * p + 1]]);
            // One in four is an XON.
            if enabled >> p & 1 == 1 && value % 4 != 0 { value } else { 0 }
        });
        FlowControl::Pfc { enabled, quanta }
    };
    let frame = FlowControlFrame { src, control };
    let kinds: Vec<_> = Malformed::ALL
        .into_iter()
        .filter(|kind| kind.fits_pause() || matches!(control, FlowControl::Pfc { .. }))
        .collect();
    match n % 3 {
        2 => kinds[usize::from(a) % kinds.len()].bytes(&frame, salt),
        _ => frame.to_bytes().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use feroce_wire::pause::inspect;

    const SRC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);

    #[test]
    fn a_storm_ends_with_xon() {
        let storm =
            Schedule::storm(SRC, pfc(8, 0xffff), Time::from_millis(500), Time::from_micros(500));
        assert_eq!(storm.frames(), 1000);
        let seen = inspect(storm.xon.as_deref().unwrap(), 60).unwrap();
        assert_eq!(seen.obeyed(), Some(pfc(8, 0)));
    }

    #[test]
    fn a_sweep_has_every_combination_separated_by_xon() {
        let gaps = [Time::from_millis(1), Time::from_millis(10)];
        let sweep = Schedule::sweep(SRC, &[1, 6], &[5, 50, 500], &gaps, Time::from_millis(100));
        assert_eq!(sweep.steps.len(), 2 * 2 * 3 * 2 - 1);
        assert_eq!(sweep.frames(), 6 * (100 + 10) + 11);
        assert_eq!((sweep.span(), sweep.end()), (Time::from_millis(1200), Time::from_millis(1200)));
        assert_eq!(inspect(sweep.xon.as_deref().unwrap(), 60).unwrap().obeyed(), Some(pfc(7, 0)));
    }

    #[test]
    fn random_frames_are_reproducible_and_a_third_is_malformed() {
        let frames = |seed, src| {
            let step = Schedule::random(3000, seed, src, Time::ZERO).steps.remove(0);
            (0..3000).map(|n| step.bytes(n).into_owned()).collect::<Vec<_>>()
        };
        let random = frames(7, None);
        assert_eq!(random, frames(7, None));
        assert!(!frames(8, None).iter().any(|frame| random.contains(frame)));
        let seen = |frames: &[Vec<u8>]| -> Vec<_> {
            frames.iter().map(|bytes| inspect(bytes, bytes.len()).unwrap()).collect()
        };
        let wrong = seen(&random).into_iter().filter(|seen| !seen.findings.is_empty());
        assert_eq!(wrong.count(), 1000);
        let own = seen(&frames(7, Some(SRC))).into_iter().filter(|seen| seen.src == SRC);
        assert!(own.count() >= 2900, "all but those whose source is made wrong");
    }
}
