//! Minimum feedback arc set: the fewest removals that leave a graph without cycles. Exact where the
//! graph is small enough.
//!
//! Branch and bound: some removal must break a shortest cycle, so each candidate on it is a branch.
//! The number of disjoint cycles is the lower bound.

use std::collections::VecDeque;

/// Arcs visited before the search gives up.
const SEARCH_BUDGET: u64 = 20_000_000;

/// An arc, and the removal that deletes it, if any. Several arcs may share one removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arc {
    /// Start vertex.
    pub from: usize,
    /// End vertex.
    pub to: usize,
    /// Number of the removal.
    pub removal: Option<usize>,
}

/// A graph with removable arcs.
#[derive(Debug)]
pub struct Graph {
    arcs: Vec<Arc>,
    /// For each vertex, indexes of the outgoing arcs.
    out: Vec<Vec<usize>>,
    removals: usize,
}

/// Removals that leave no cycle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedbackSet {
    /// Numbers of the removals.
    pub removals: Vec<usize>,
    /// Lower bound on their number.
    pub at_least: usize,
}

impl FeedbackSet {
    /// Returns true if the set is known to be minimal.
    pub fn is_minimum(&self) -> bool {
        self.removals.len() == self.at_least
    }
}

/// State of a search: what is removed, what must be kept, and the remaining effort.
struct Search {
    removed: Vec<bool>,
    kept: Vec<bool>,
    budget: u64,
}

impl Graph {
    /// A graph of `arcs` between vertices below `vertices`, with removals below `removals`.
    pub fn new(vertices: usize, removals: usize, arcs: Vec<Arc>) -> Self {
        let mut out = vec![Vec::new(); vertices];
        for (number, arc) in arcs.iter().enumerate() {
            out[arc.from].push(number);
        }
        Self { arcs, out, removals }
    }

    /// The arcs of a shortest cycle.
    pub fn cycle(&self) -> Option<Vec<usize>> {
        self.shortest(&mut Search::new(self.removals))
    }

    /// A minimum feedback set, or a small one if the search gives up; empty without a cycle.
    pub fn feedback_set(&self) -> FeedbackSet {
        let mut search = Search::new(self.removals);
        let removals = self.greedy(&mut search);
        let mut at_least = self.disjoint(&mut search);
        while at_least < removals.len() {
            let mut search = Search::new(self.removals);
            let is_enough = self.is_enough(&mut search, at_least);
            if search.budget == 0 {
                break;
            }
            if is_enough {
                return FeedbackSet { removals: search.removed(), at_least };
            }
            at_least += 1;
        }
        FeedbackSet { removals, at_least }
    }

    /// Returns true if at most `count` further removals suffice; they are then marked as removed.
    fn is_enough(&self, search: &mut Search, count: usize) -> bool {
        let Some(cycle) = self.shortest(search) else { return search.budget > 0 };
        if count == 0 || self.disjoint(search) > count {
            return false;
        }
        let removals: Vec<usize> = cycle.iter().filter_map(|&arc| self.arcs[arc].removal).collect();
        let removals: Vec<usize> =
            removals.into_iter().filter(|&removal| !search.kept[removal]).collect();
        let mut is_enough = false;
        for &removal in &removals {
            search.removed[removal] = true;
            is_enough = self.is_enough(search, count - 1);
            if is_enough || search.budget == 0 {
                break;
            }
            search.removed[removal] = false;
            // All sets with this removal have been tried.
            search.kept[removal] = true;
        }
        removals.iter().for_each(|&removal| search.kept[removal] = false);
        is_enough
    }

    /// A feedback set by a greedy heuristic: from each cycle the arc with most neighbours; then
    /// superfluous removals are dropped.
    fn greedy(&self, search: &mut Search) -> Vec<usize> {
        let mut into = vec![0; self.out.len()];
        self.arcs.iter().for_each(|arc| into[arc.to] += 1);
        let weight = |arc: &Arc| into[arc.from] * self.out[arc.to].len();
        while let Some(cycle) = self.shortest(search) {
            let arcs = cycle.iter().map(|&arc| &self.arcs[arc]).filter(|arc| arc.removal.is_some());
            let Some(removal) = arcs.max_by_key(|arc| weight(arc)).and_then(|arc| arc.removal)
            else {
                break;
            };
            search.removed[removal] = true;
        }
        for removal in search.removed() {
            search.removed[removal] = false;
            search.removed[removal] = self.shortest(search).is_some();
        }
        let removals = search.removed();
        search.removed.fill(false);
        removals
    }

    /// Number of disjoint cycles, found one after the other.
    fn disjoint(&self, search: &mut Search) -> usize {
        let before = search.removed.clone();
        let mut count = 0;
        while let Some(cycle) = self.shortest(search) {
            count += 1;
            let removals = cycle.iter().filter_map(|&arc| self.arcs[arc].removal);
            removals.for_each(|removal| search.removed[removal] = true);
        }
        search.removed = before;
        count
    }

    /// A shortest cycle of the remaining graph.
    fn shortest(&self, search: &mut Search) -> Option<Vec<usize>> {
        let mut best: Option<Vec<usize>> = None;
        let vertices = self.on_cycles(search);
        for start in (0..self.out.len()).filter(|&vertex| vertices[vertex]) {
            let shorter = best.as_ref().map_or(usize::MAX, Vec::len);
            best = self.cycle_through(start, shorter, &vertices, search).or(best);
        }
        best
    }

    /// Vertices that may lie on a cycle: repeatedly drops vertices without incoming or outgoing
    /// arcs.
    fn on_cycles(&self, search: &mut Search) -> Vec<bool> {
        let mut stay = vec![true; self.out.len()];
        loop {
            let (mut has_in, mut has_out) = (vec![false; stay.len()], vec![false; stay.len()]);
            for arc in self.arcs.iter().filter(|arc| !search.is_removed(arc)) {
                if stay[arc.from] && stay[arc.to] {
                    (has_out[arc.from], has_in[arc.to]) = (true, true);
                }
            }
            let left: Vec<bool> =
                (0..stay.len()).map(|v| stay[v] && has_in[v] && has_out[v]).collect();
            if left == stay {
                return stay;
            }
            stay = left;
        }
    }

    /// A cycle through `start` that is shorter than `shorter`.
    fn cycle_through(
        &self,
        start: usize,
        shorter: usize,
        vertices: &[bool],
        search: &mut Search,
    ) -> Option<Vec<usize>> {
        let mut arrived_by: Vec<Option<usize>> = vec![None; self.out.len()];
        let mut queue = VecDeque::from([(start, 1)]);
        while let Some((vertex, length)) = queue.pop_front() {
            if length >= shorter {
                return None;
            }
            for &number in &self.out[vertex] {
                search.budget = search.budget.saturating_sub(1);
                let arc = &self.arcs[number];
                if search.is_removed(arc) || !vertices[arc.to] {
                    continue;
                }
                if arc.to == start {
                    let mut cycle = vec![number];
                    let mut at = vertex;
                    while at != start {
                        let before = arrived_by[at].expect("it was reached");
                        cycle.push(before);
                        at = self.arcs[before].from;
                    }
                    cycle.reverse();
                    return Some(cycle);
                }
                if arrived_by[arc.to].is_none() {
                    arrived_by[arc.to] = Some(number);
                    queue.push_back((arc.to, length + 1));
                }
            }
        }
        None
    }
}

impl Search {
    fn new(removals: usize) -> Self {
        Self { removed: vec![false; removals], kept: vec![false; removals], budget: SEARCH_BUDGET }
    }

    fn is_removed(&self, arc: &Arc) -> bool {
        arc.removal.is_some_and(|removal| self.removed[removal])
    }

    fn removed(&self) -> Vec<usize> {
        (0..self.removed.len()).filter(|&removal| self.removed[removal]).collect()
    }
}

#[cfg(test)]
mod tests {
    use rand_xoshiro::Xoshiro128PlusPlus;
    use rand_xoshiro::rand_core::{Rng, SeedableRng};

    use super::*;

    /// A graph in which every arc has a removal of its own.
    fn graph(vertices: usize, arcs: &[(usize, usize)]) -> Graph {
        let arcs = arcs.iter().enumerate();
        let arcs =
            arcs.map(|(n, &(from, to))| Arc { from, to, removal: Some(n) }).collect::<Vec<_>>();
        Graph::new(vertices, arcs.len(), arcs)
    }

    #[test]
    fn one_common_arc_breaks_two_cycles() {
        // 0 -> 1 is part of both cycles.
        let both = graph(4, &[(0, 1), (1, 2), (2, 0), (1, 3), (3, 0)]);
        assert_eq!(both.feedback_set(), FeedbackSet { removals: vec![0], at_least: 1 });
        assert_eq!(both.cycle().map(|cycle| cycle.len()), Some(3));
        let none = graph(3, &[(0, 1), (1, 2), (0, 2)]);
        assert_eq!((none.cycle(), none.feedback_set().removals), (None, Vec::new()));
    }

    #[test]
    fn arcs_without_a_removal_stay() {
        // Vertices 0 and 1 are the ends of a link, the only removal.
        let arcs =
            vec![Arc { from: 0, to: 1, removal: Some(0) }, Arc { from: 1, to: 0, removal: None }];
        assert_eq!(Graph::new(2, 1, arcs).feedback_set().removals, [0]);
    }

    /// Compares with every subset of the arcs.
    #[test]
    fn the_feedback_set_is_minimal() {
        let mut random = Xoshiro128PlusPlus::seed_from_u64(1);
        let mut below = |limit: u32| (random.next_u32() % limit) as usize;
        for round in 0..300 {
            let arcs: Vec<_> = (0..10).map(|_| (below(5), below(5))).collect();
            let graph = graph(5, &arcs);
            let breaks = |set: u32| {
                let mut search = Search::new(10);
                (0..10).for_each(|removal| search.removed[removal] = set >> removal & 1 == 1);
                graph.shortest(&mut search).is_none()
            };
            let fewest = (0_u32..1 << 10).filter(|&set| breaks(set)).map(u32::count_ones).min();
            let found = graph.feedback_set();
            assert!(found.is_minimum(), "round {round}");
            assert_eq!(
                Some(found.removals.len()),
                fewest.map(|n| n as usize),
                "round {round}: {arcs:?}"
            );
            assert!(breaks(found.removals.iter().fold(0, |set, removal| set | 1 << removal)));
        }
    }
}
