//! The ICRC of a short IPv4 packet by carry-less multiplication, for which x86-64 has an
//! instruction. The headers are masked in registers on their way into the sum: no copy of them is
//! written and read back.
//!
//! The method is that of "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
//! Instruction" (Gopal et al., Intel, 2009), for bit-reflected data; the names of the constants are
//! those of the paper. Longer packets are left to `crc32fast`, which folds several blocks at once.

use core::arch::x86_64::{
    __m128i, _mm_and_si128, _mm_clmulepi64_si128, _mm_cvtsi128_si32, _mm_or_si128, _mm_set_epi64x,
    _mm_shuffle_epi8, _mm_srli_si128, _mm_xor_si128,
};

use std::sync::LazyLock;

use super::{ONES_V4, PREFIX, V4_HEAD};

/// Bytes of a block, the unit of folding.
const BLOCK: usize = 16;
/// Blocks of prefix, IPv4, UDP and BTH.
const HEAD_BLOCKS: usize = V4_HEAD / BLOCK;
const _: () = assert!(V4_HEAD.is_multiple_of(BLOCK) && PREFIX == 8);

/// x^(128+32) and x^(128-32) modulo the polynomial: they move a block over the next one.
const K3: i64 = 0x1_7519_97d0;
const K4: i64 = 0x0_ccaa_009e;
/// x^64 modulo the polynomial.
const K5: i64 = 0x1_63cd_6124;
/// The polynomial, and its inverse for Barrett's reduction.
const P_X: i64 = 0x1_db71_0641;
const U_PRIME: i64 = 0x1_f701_1641;

/// The ICRC of the IPv4 packet whose bytes from the IP header to the last pad byte are `covered`,
/// at least the headers. `None`: the CPU lacks the instruction.
#[inline(always)] // Two tests and a call.
pub(super) fn icrc_v4(covered: &[u8]) -> Option<u32> {
    // One look where two would be needed.
    static IS_ABLE: LazyLock<bool> = LazyLock::new(|| {
        std::is_x86_feature_detected!("pclmulqdq") && std::is_x86_feature_detected!("ssse3")
    });
    // SAFETY: the CPU has the instructions. The function has no other condition.
    #[allow(unsafe_code)]
    IS_ABLE.then(|| unsafe { sum(covered) })
}

#[target_feature(enable = "pclmulqdq,ssse3")]
fn sum(covered: &[u8]) -> u32 {
    let (head, rest) = covered.split_first_chunk::<{ V4_HEAD - PREFIX }>().expect("the headers");
    let keys = _mm_set_epi64x(K4, K3);
    let (ones, _) = ONES_V4.as_chunks::<BLOCK>();
    let (front, head) = head.split_first_chunk::<PREFIX>().expect("40 bytes");
    // A CRC-32 begins with ones, which are added to the first four bytes of the prefix of ones.
    let prefix = i64::from_be_bytes([0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    let first = _mm_set_epi64x(i64::from_le_bytes(*front), prefix);
    let [_, at_ip, ..] = *ONES_V4.as_chunks::<PREFIX>().0 else { unreachable!() };
    let mut sum = _mm_or_si128(first, _mm_set_epi64x(i64::from_le_bytes(at_ip), 0));
    for at in 1..HEAD_BLOCKS {
        let block = head[(at - 1) * BLOCK..].first_chunk().expect("inside the headers");
        sum = fold(sum, _mm_or_si128(load(block), load(&ones[at])), keys);
    }
    let (blocks, tail) = rest.as_chunks::<BLOCK>();
    for block in blocks {
        sum = fold(sum, load(block), keys);
    }
    if !tail.is_empty() {
        let last = covered.last_chunk().expect("40 bytes or more");
        sum = with_tail(sum, load(last), tail.len(), keys);
    }
    !reduced(sum, keys)
}

/// Moves `sum` over one block, and adds that block.
#[target_feature(enable = "pclmulqdq")]
fn fold(sum: __m128i, block: __m128i, keys: __m128i) -> __m128i {
    let low = _mm_clmulepi64_si128::<0x00>(sum, keys);
    let high = _mm_clmulepi64_si128::<0x11>(sum, keys);
    _mm_xor_si128(_mm_xor_si128(low, high), block)
}

/// Adds the last `len` bytes, less than a block. `last`: the last block of the packet, which ends
/// with them. The sum and these bytes are cut again, into a block of `len` bytes behind zeros and a
/// whole one.
#[target_feature(enable = "pclmulqdq,ssse3")]
fn with_tail(sum: __m128i, last: __m128i, len: usize, keys: __m128i) -> __m128i {
    const NONE: [u8; BLOCK] = [0x80; BLOCK]; // `shuffle` gives zeros there.
    static WINDOW: [[u8; BLOCK]; 3] = {
        let mut window = [NONE; 3];
        let mut at = 0;
        while at < BLOCK {
            window[1][at] = at.to_le_bytes()[0];
            at += 1;
        }
        window
    };
    static TAIL: [[u8; BLOCK]; 2] = [[0; BLOCK], [0xff; BLOCK]];
    let window = |at: usize| load(WINDOW.as_flattened()[at..].first_chunk().expect("two blocks"));
    let front = _mm_shuffle_epi8(sum, window(len));
    let back = _mm_shuffle_epi8(sum, window(BLOCK + len));
    let mask = load(TAIL.as_flattened()[len..].first_chunk().expect("less than a block"));
    fold(front, _mm_or_si128(back, _mm_and_si128(last, mask)), keys)
}

/// The remainder of 128 bits: to 96, to 64, and Barrett's reduction to 32.
#[target_feature(enable = "pclmulqdq")]
fn reduced(sum: __m128i, keys: __m128i) -> u32 {
    let low = _mm_set_epi64x(0, 0xffff_ffff);
    let sum = _mm_xor_si128(_mm_clmulepi64_si128::<0x10>(sum, keys), _mm_srli_si128::<8>(sum));
    let folded = _mm_clmulepi64_si128::<0x00>(_mm_and_si128(sum, low), _mm_set_epi64x(0, K5));
    let sum = _mm_xor_si128(folded, _mm_srli_si128::<4>(sum));
    let reduction = _mm_set_epi64x(U_PRIME, P_X);
    let quotient = _mm_clmulepi64_si128::<0x10>(_mm_and_si128(sum, low), reduction);
    let product = _mm_clmulepi64_si128::<0x00>(_mm_and_si128(quotient, low), reduction);
    let rest = _mm_srli_si128::<4>(_mm_xor_si128(sum, product));
    _mm_cvtsi128_si32(rest).cast_unsigned()
}

/// The block as a vector.
#[inline(always)] // One instruction.
fn load(block: &[u8; BLOCK]) -> __m128i {
    zerocopy::transmute!(*block)
}
