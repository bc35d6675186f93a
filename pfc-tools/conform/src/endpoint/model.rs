//! The expected contents of both ends' memories after the requests of a plan.

use std::ops::Range;

use super::Failure;
use super::plan::{Effect, Op, Place, Plan, REQUESTER, RESPONDER, Request};

/// Returns the initial contents of a region of `len` bytes (SplitMix64). The agent computes the
/// same.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend_from_slice(&(z ^ (z >> 31)).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Returns the seed of the first region of an end; the other regions use the next numbers.
pub fn seed(end: usize) -> u64 {
    [0x1000, 0x2000][end]
}

/// The expected contents of a region, and the ranges with unknown contents.
#[derive(Debug, Clone)]
struct Memory {
    bytes: Vec<u8>,
    unknown: Vec<Range<usize>>,
}

/// The expected contents of both ends' memories.
#[derive(Debug, Clone)]
pub struct Model {
    memories: [Vec<Memory>; 2],
}

fn range(place: Place, len: u32) -> Range<usize> {
    let start = place.offset as usize;
    start..start + len as usize
}

impl Model {
    /// Creates the memories before the first request.
    pub fn new(plan: &Plan) -> Self {
        let memories = [REQUESTER, RESPONDER].map(|end| {
            let regions = plan.regions[end].iter().zip(seed(end)..);
            let memory = |len, seed| Memory { bytes: pattern(seed, len), unknown: Vec::new() };
            regions.map(|(region, seed)| memory(region.len as usize, seed)).collect()
        });
        Self { memories }
    }

    /// Returns operand and swap value of the next request, which has number `index`: immediate
    /// data, or what an atomic adds, compares and stores.
    pub fn operands(&self, index: usize, request: &Request) -> (u64, u64) {
        let distinct = 0x0102_0304_0506_0708u64.wrapping_mul(index as u64 + 1);
        match request.op {
            _ if request.effect == Effect::Nothing => (distinct & 0xffff_ffff, distinct),
            Op::CmpSwap => (self.word(RESPONDER, request.remote), distinct),
            Op::CmpSwapMiss => (!self.word(RESPONDER, request.remote), distinct),
            Op::FetchAdd => (distinct, 0),
            _ => (distinct & 0xffff_ffff, 0),
        }
    }

    /// Applies the request to the memories.
    pub fn apply(&mut self, request: &Request, operands: (u64, u64)) {
        match request.effect {
            Effect::Nothing => {}
            Effect::Whole if request.op.is_atomic() => self.apply_atomic(request, operands),
            effect => {
                let (local, remote) = ((REQUESTER, request.local), (RESPONDER, request.remote));
                let (from, to) =
                    if request.op == Op::Read { (remote, local) } else { (local, remote) };
                let source = self.bytes(from, request.len).to_vec();
                let target = &mut self.memories[to.0][to.1.region];
                match effect {
                    Effect::Unknown => target.unknown.push(range(to.1, request.len)),
                    _ => target.bytes[range(to.1, request.len)].copy_from_slice(&source),
                }
            }
        }
    }

    fn apply_atomic(&mut self, request: &Request, (operand, swap): (u64, u64)) {
        let before = self.word(RESPONDER, request.remote);
        let after = match request.op {
            Op::FetchAdd => before.wrapping_add(operand),
            _ if before == operand => swap,
            _ => before,
        };
        self.set_word(REQUESTER, request.local, before);
        self.set_word(RESPONDER, request.remote, after);
    }

    fn bytes(&self, (end, place): (usize, Place), len: u32) -> &[u8] {
        &self.memories[end][place.region].bytes[range(place, len)]
    }

    fn word(&self, end: usize, place: Place) -> u64 {
        let bytes = self.bytes((end, place), 8);
        u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    }

    fn set_word(&mut self, end: usize, place: Place, value: u64) {
        let bytes = &mut self.memories[end][place.region].bytes[range(place, 8)];
        bytes.copy_from_slice(&value.to_le_bytes());
    }

    /// Compares the contents of region `region` of `end` byte by byte.
    ///
    /// # Errors
    /// The position of the first difference, and the number of differing bytes.
    pub fn check(&self, end: usize, region: usize, found: &[u8]) -> Result<(), Failure> {
        let memory = &self.memories[end][region];
        let who = ["requester", "responder"][end];
        if found.len() != memory.bytes.len() {
            return Err(Failure(format!("region {region} of the {who} has another length")));
        }
        let known = |at: &usize| !memory.unknown.iter().any(|range| range.contains(at));
        let differs = |at: &usize| found[*at] != memory.bytes[*at] && known(at);
        let mut different = (0..found.len()).filter(differs);
        let Some(first) = different.next() else { return Ok(()) };
        Err(Failure(format!(
            "{} bytes of region {region} of the {who} are wrong, from {first} on: {:02x}, not \
             {:02x}",
            1 + different.count(),
            found[first],
            memory.bytes[first]
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_atomic_changes_both_ends_and_a_failed_comparison_only_one() {
        let mut plan = Plan::new();
        plan.request(Op::FetchAdd, 8);
        plan.request(Op::CmpSwapMiss, 8);
        let before = Model::new(&plan);
        let mut after = before.clone();
        for (index, request) in plan.requests.iter().enumerate() {
            after.apply(request, after.operands(index, request));
        }
        let (add, miss) = (&plan.requests[0], &plan.requests[1]);
        let old = before.word(RESPONDER, add.remote);
        assert_eq!(after.word(REQUESTER, add.local), old);
        assert_eq!(after.word(RESPONDER, add.remote), old.wrapping_add(0x0102_0304_0506_0708));
        assert_eq!(after.word(RESPONDER, miss.remote), before.word(RESPONDER, miss.remote));
        assert_eq!(after.word(REQUESTER, miss.local), before.word(RESPONDER, miss.remote));
    }

    #[test]
    fn a_wrong_byte_is_found_unless_its_value_is_unknown() {
        let mut plan = Plan::new();
        plan.request(Op::Send, 10);
        plan.request(Op::Send, 10).effect = Effect::Unknown;
        let mut model = Model::new(&plan);
        for request in &plan.requests {
            model.apply(request, (0, 0));
        }
        let mut bytes = model.memories[RESPONDER][0].bytes.clone();
        model.check(RESPONDER, 0, &bytes).expect("as it must be");
        bytes[plan.requests[1].remote.offset as usize] ^= 1;
        model.check(RESPONDER, 0, &bytes).expect("may be anything");
        bytes[plan.requests[0].remote.offset as usize + 9] ^= 1;
        let error = model.check(RESPONDER, 0, &bytes).expect_err("a wrong byte").to_string();
        assert!(error.starts_with("1 bytes of region 0 of the responder"), "{error}");
    }
}
