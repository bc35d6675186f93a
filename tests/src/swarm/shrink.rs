//! Makes a scenario that fails smaller, for as long as it fails.

use crate::wire::WireFaults;

/// A scenario that can leave out parts.
pub trait Shrink: Sized {
    /// Returns scenarios with fewer parts, those that leave out most first. Each is a scenario that
    /// passes where the engine is right.
    fn smaller(&self) -> Vec<Self>;
}

/// Runs at most this many smaller scenarios.
const TRIES_MAX: usize = 3000;

/// The smallest scenario that was found.
#[derive(Debug)]
pub(super) struct Shrunk<S> {
    /// The scenario.
    pub scenario: S,
    /// Why it fails, which need not be why the first one failed.
    pub why: String,
    /// Number of scenarios that were run.
    pub tries: usize,
}

/// Leaves out parts of `scenario`, which fails because of `why`. `run` returns why a scenario
/// fails; `None`: it passes.
pub(super) fn shrink<S: Shrink>(
    scenario: S,
    why: String,
    mut run: impl FnMut(&S) -> Option<String>,
) -> Shrunk<S> {
    let mut found = Shrunk { scenario, why, tries: 0 };
    'smaller: loop {
        for scenario in found.scenario.smaller() {
            if found.tries == TRIES_MAX {
                return found;
            }
            found.tries += 1;
            if let Some(why) = run(&scenario) {
                (found.scenario, found.why) = (scenario, why);
                continue 'smaller;
            }
        }
        return found;
    }
}

/// Returns the ranges of a list of `len` parts to leave out, one at a time: all, each half, each
/// quarter, and so on down to single parts.
pub(super) fn cuts(len: usize) -> Vec<std::ops::Range<usize>> {
    let sizes = std::iter::successors(Some(len), |&size| (size > 1).then(|| size.div_ceil(2)));
    let of_size =
        |size: usize| (0..len).step_by(size.max(1)).map(move |at| at..(at + size).min(len));
    sizes.flat_map(of_size).collect()
}

/// Returns copies of `list` without each of the [`cuts`].
pub(super) fn without_parts<T: Clone>(list: &[T]) -> Vec<Vec<T>> {
    let without = |cut: std::ops::Range<usize>| [&list[..cut.start], &list[cut.end..]].concat();
    cuts(list.len()).into_iter().map(without).collect()
}

/// Returns `faults` without each of those that it has.
pub(super) fn without_each_fault(faults: &WireFaults) -> Vec<WireFaults> {
    let without: [fn(&mut WireFaults); 5] = [
        |faults| faults.loss = 0,
        |faults| faults.duplicate = 0,
        |faults| faults.reorder = 0,
        |faults| faults.corrupt = 0,
        |faults| faults.mark = 0,
    ];
    let changed = without.into_iter().map(|change| {
        let mut smaller = *faults;
        change(&mut smaller);
        smaller
    });
    changed.filter(|smaller| smaller != faults).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Clone, PartialEq)]
    struct Numbers(Vec<u32>);

    impl Shrink for Numbers {
        fn smaller(&self) -> Vec<Self> {
            without_parts(&self.0).into_iter().map(Self).collect()
        }
    }

    #[test]
    fn cuts_are_everything_then_ever_smaller_parts() {
        assert_eq!(cuts(0), []);
        assert_eq!(cuts(2), [0..2, 0..1, 1..2]);
        assert_eq!(cuts(3), [0..3, 0..2, 2..3, 0..1, 1..2, 2..3]);
    }

    #[test]
    fn only_the_parts_that_the_failure_needs_are_left() {
        let fails = |numbers: &Numbers| {
            let is_failing = numbers.0.contains(&17) && numbers.0.contains(&63);
            is_failing.then(|| format!("{} numbers", numbers.0.len()))
        };
        let shrunk = shrink(Numbers((0..100).collect()), "100 numbers".to_owned(), fails);
        assert_eq!(shrunk.scenario, Numbers(vec![17, 63]));
        assert_eq!(shrunk.why, "2 numbers");
        assert!(shrunk.tries < 200, "{}", shrunk.tries);
    }

    #[test]
    fn a_failure_that_needs_every_part_stays_as_it_is() {
        let first = Numbers((0..10).collect());
        let fails = |numbers: &Numbers| (*numbers == first).then(String::new);
        let shrunk = shrink(first.clone(), "all".to_owned(), fails);
        assert_eq!((shrunk.scenario, shrunk.why), (first.clone(), "all".to_owned()));
    }
}
