//! Copies to and from memory that other threads and processes access at the same time.
//!
//! A plain copy beside such an access would be a data race, which Rust gives no meaning, and the C
//! library's `memcpy` splits words: its vector stores begin where the copy begins, and its string
//! instructions promise no order. Therefore the shared side is accessed front to back in relaxed
//! atomic words, and in relaxed atomic bytes where it has no whole aligned word. Long copies on
//! x86-64 use vectors of four words. No Rust type describes an atomic vector, so these are
//! assembly. The shared side of a vector is aligned to 32 bytes, and processors with AVX access the
//! aligned words of such a vector whole; the array copies of Java's VM rely on this, too.
//!
//! The other side belongs to the caller alone, and may have any alignment.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Bytes of a word.
const WORD: usize = 8;

/// Loads of up to this many bytes, if they are aligned words, have a path of their own.
const SHORT: usize = 64;

/// Bytes of a vector.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const VECTOR: usize = 32;

/// Copies with vectors from this many words on: below, preparing them costs more than it saves.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const LONG: usize = 16;

/// Stores `from` at `to`, which is shared; aligned words are stored whole.
///
/// # Safety
/// The bytes `to .. to + from.len()` are writable. Other accesses to them at the same time are
/// atomic, or are made by another process or by a program that accepts unspecified values.
#[inline]
pub(super) unsafe fn store(to: *mut u8, from: &[u8]) {
    let unaligned = to.addr().wrapping_neg() % WORD;
    let (start, rest) = from.split_at(unaligned.min(from.len()));
    let (words, end) = rest.as_chunks();
    // SAFETY: the three parts follow each other in the caller's range, and the words begin at a
    // multiple of 8.
    unsafe {
        store_bytes(to, start);
        let to = to.add(start.len());
        store_words(to.cast(), words);
        store_bytes(to.add(words.len() * WORD), end);
    }
}

/// Loads `to` from `from`, which is shared; aligned words are loaded whole.
///
/// # Safety
/// The bytes `from .. from + to.len()` are readable. Other accesses as for [`store`].
#[inline(always)] // Once per short packet.
pub(super) unsafe fn load(from: *const u8, to: &mut [u8]) {
    if to.len() <= SHORT
        && from.addr().is_multiple_of(WORD)
        && let (words, []) = to.as_chunks_mut()
    {
        // SAFETY: the caller's range, which is aligned.
        unsafe { load_each(from.cast(), words) };
        return;
    }
    // SAFETY: the caller's contract is that of `load_any`.
    unsafe { load_any(from, to) };
}

/// # Safety
/// As for [`load`].
#[inline(never)]
unsafe fn load_any(from: *const u8, to: &mut [u8]) {
    let unaligned = from.addr().wrapping_neg() % WORD;
    let (start, rest) = to.split_at_mut(unaligned.min(to.len()));
    let (words, end) = rest.as_chunks_mut();
    // SAFETY: as in `store`.
    unsafe {
        load_bytes(from, start);
        let from = from.add(start.len());
        load_words(from.cast(), words);
        load_bytes(from.add(words.len() * WORD), end);
    }
}

/// Stores `from` at `to`, front to back.
///
/// # Safety
/// As for [`store`]; `to` is a multiple of 8.
#[inline]
unsafe fn store_words(to: *mut u64, from: &[[u8; WORD]]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if from.len() >= LONG && std::arch::is_x86_feature_detected!("avx") {
        let (first, vectors, rest) = in_vectors(to.addr(), from.len());
        // SAFETY: the three parts follow each other in both ranges. The CPU has AVX.
        unsafe {
            store_each(to, &from[..first], Ordering::Relaxed);
            copy_vectors(to.add(first).cast(), from[first..].as_ptr().cast(), vectors);
            store_each(to.add(rest), &from[rest..], Ordering::Relaxed);
        }
        return;
    }
    // SAFETY: the caller's range.
    unsafe { store_each(to, from, Ordering::Relaxed) };
}

/// Four words at a time: the compiler does not unroll atomic accesses.
///
/// # Safety
/// As for [`store_words`].
#[inline(always)] // Once per short packet.
pub(super) unsafe fn store_each(to: *mut u64, from: &[[u8; WORD]], order: Ordering) {
    let (fours, rest) = from.as_chunks::<4>();
    let mut to = to;
    for [a, b, c, d] in fours {
        // SAFETY: four aligned words of the caller's range, and the place after them.
        unsafe {
            store_word(to, a, order);
            store_word(to.add(1), b, order);
            store_word(to.add(2), c, order);
            store_word(to.add(3), d, order);
            to = to.add(4);
        }
    }
    for (index, word) in rest.iter().enumerate() {
        // SAFETY: `rest` is the end of the caller's range.
        unsafe { store_word(to.add(index), word, order) };
    }
}

/// # Safety
/// As for [`store_words`].
#[inline(always)] // One instruction.
unsafe fn store_word(to: *mut u64, word: &[u8; WORD], order: Ordering) {
    // SAFETY: `to` is aligned and writable.
    unsafe { AtomicU64::from_ptr(to) }.store(u64::from_ne_bytes(*word), order);
}

/// Loads `to` from `from`, front to back.
///
/// # Safety
/// As for [`load`]; `from` is a multiple of 8.
#[inline]
unsafe fn load_words(from: *const u64, to: &mut [[u8; WORD]]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if to.len() >= LONG && std::arch::is_x86_feature_detected!("avx") {
        let (first, vectors, rest) = in_vectors(from.addr(), to.len());
        // SAFETY: as in `store_words`.
        unsafe {
            load_each(from, &mut to[..first]);
            copy_vectors(to[first..].as_mut_ptr().cast(), from.add(first).cast(), vectors);
            load_each(from.add(rest), &mut to[rest..]);
        }
        return;
    }
    // SAFETY: the caller's range.
    unsafe { load_each(from, to) };
}

/// Four words at a time, as [`store_each`].
///
/// # Safety
/// As for [`load_words`].
#[inline(always)] // Once per short packet.
unsafe fn load_each(from: *const u64, to: &mut [[u8; WORD]]) {
    let (fours, rest) = to.as_chunks_mut::<4>();
    let mut from = from;
    for [a, b, c, d] in fours {
        // SAFETY: four aligned words of the caller's range, and the place after them.
        unsafe {
            *a = load_word(from);
            *b = load_word(from.add(1));
            *c = load_word(from.add(2));
            *d = load_word(from.add(3));
            from = from.add(4);
        }
    }
    for (index, word) in rest.iter_mut().enumerate() {
        // SAFETY: `rest` is the end of the caller's range.
        *word = unsafe { load_word(from.add(index)) };
    }
}

/// # Safety
/// As for [`load_words`].
#[inline(always)] // One instruction.
unsafe fn load_word(from: *const u64) -> [u8; WORD] {
    // SAFETY: `from` is aligned and readable. The word is only read.
    unsafe { AtomicU64::from_ptr(from.cast_mut()) }.load(Ordering::Relaxed).to_ne_bytes()
}

/// Stores `from` front to back, byte by byte.
///
/// # Safety
/// As for [`store`].
#[inline]
unsafe fn store_bytes(to: *mut u8, from: &[u8]) {
    for (index, byte) in from.iter().enumerate() {
        // SAFETY: `index < from.len()`.
        unsafe { AtomicU8::from_ptr(to.add(index)).store(*byte, Ordering::Relaxed) };
    }
}

/// Loads `to` front to back, byte by byte.
///
/// # Safety
/// As for [`load`].
#[inline]
unsafe fn load_bytes(from: *const u8, to: &mut [u8]) {
    for (index, byte) in to.iter_mut().enumerate() {
        // SAFETY: `index < to.len()`. The byte is only read.
        *byte = unsafe { AtomicU8::from_ptr(from.add(index).cast_mut()).load(Ordering::Relaxed) };
    }
}

/// Divides `words` words, whose shared side begins at `address`, into words before the first
/// aligned vector, vectors, and words after them. Returns the first two numbers, and the number of
/// words before the last part.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn in_vectors(address: usize, words: usize) -> (usize, usize, usize) {
    let first = address.wrapping_neg() % VECTOR / WORD;
    let vectors = words.saturating_sub(first) / (VECTOR / WORD);
    (first, vectors, first + vectors * (VECTOR / WORD))
}

/// Copies `vectors` vectors front to back.
///
/// # Safety
/// The bytes are readable at `from` and writable at `to`. The CPU has AVX. The shared side is
/// aligned to 8.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn copy_vectors(to: *mut u8, from: *const u8, vectors: usize) {
    // SAFETY: the loop accesses `vectors` vectors at both addresses, from the first one on; `left`
    // counts them down, first in fours. On the shared side it has the effect of relaxed atomic
    // accesses to words, see the head of this file. All vector registers are declared as changed,
    // because `vzeroupper` changes their upper halves.
    unsafe {
        std::arch::asm!(
            "sub {left}, 4",
            "jb 3f",
            "2:",
            "vmovdqu ymm0, [{from}]",
            "vmovdqu ymm1, [{from} + 32]",
            "vmovdqu ymm2, [{from} + 64]",
            "vmovdqu ymm3, [{from} + 96]",
            "vmovdqu [{to}], ymm0",
            "vmovdqu [{to} + 32], ymm1",
            "vmovdqu [{to} + 64], ymm2",
            "vmovdqu [{to} + 96], ymm3",
            "add {from}, 128",
            "add {to}, 128",
            "sub {left}, 4",
            "jae 2b",
            "3:",
            "add {left}, 4",
            "jz 5f",
            "4:",
            "vmovdqu ymm0, [{from}]",
            "vmovdqu [{to}], ymm0",
            "add {from}, 32",
            "add {to}, 32",
            "dec {left}",
            "jnz 4b",
            "5:",
            "vzeroupper",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            left = inout(reg) vectors => _,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn every_alignment_and_length_is_copied_whole() {
        let (most, step) = if cfg!(miri) { (20, 5) } else { (300, 1) }; // Miri is slow.
        for len in (0..most).step_by(step).chain([most + 1, 13 * most + 7, 14 * most]) {
            let from: Vec<u8> = (1..=251).cycle().take(len + 1).collect();
            for start in (0..40).step_by(step) {
                let mut shared = vec![0u64; len / 8 + 10];
                let place = shared.as_mut_ptr().cast::<u8>();
                let mut back = vec![0; len];
                let source = &from[usize::from(start % 2 == 1)..][..len];
                // SAFETY: `start + len` bytes fit the vector, which nothing else accesses.
                unsafe {
                    store(place.add(start), source);
                    load(place.add(start), &mut back);
                }
                assert_eq!(back, source, "{start}+{len}");
                let bytes: Vec<u8> = shared.iter().flat_map(|word| word.to_ne_bytes()).collect();
                assert_eq!(bytes[start..start + len], *source);
                assert!(bytes[..start].iter().chain(&bytes[start + len..]).all(|&b| b == 0));
            }
        }
    }

    /// A thread accesses aligned words while another one copies at an odd address: all bytes of a
    /// word are of the same copy. `memcpy` fails here in most runs.
    #[test]
    #[cfg_attr(miri, ignore)] // Miri does not know accesses of several sizes.
    fn words_inside_a_copy_at_an_odd_address_are_never_split() {
        const WORDS: usize = 520;
        let memory: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        let place = memory.as_ptr().expose_provenance();
        let at = |offset: usize| std::ptr::with_exposed_provenance_mut::<u8>(place + offset);
        let repeated = |byte: u64| byte * 0x0101_0101_0101_0101;
        let is_whole = |word: u64| word == repeated(word & 0xff);
        for len in [100, 4097] {
            let rounds = 300_000_000 / len;
            let inside = &memory[5..(33 + len) / 8]; // The whole words of the copies below.
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let copies: Vec<_> = (0..4u8).map(|byte| vec![byte; len]).collect();
                    for round in 0..rounds {
                        // SAFETY: the range is inside `memory`, whose words are atomic.
                        unsafe { store(at(33), &copies[round % 4]) };
                    }
                    done.store(true, Ordering::Release);
                });
                while !done.load(Ordering::Acquire) {
                    assert!(inside.iter().all(|word| is_whole(word.load(Ordering::Relaxed))));
                }
            });
            memory.iter().for_each(|word| word.store(0, Ordering::Relaxed));
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for round in 0..rounds as u64 / 100 {
                        memory.iter().for_each(|w| w.store(repeated(round % 4), Ordering::Relaxed));
                    }
                    done.store(true, Ordering::Release);
                });
                let mut back = vec![0; len];
                while !done.load(Ordering::Acquire) {
                    // SAFETY: as above.
                    unsafe { load(at(33), &mut back) };
                    let (words, _) = back[7..].as_chunks();
                    assert!(words.iter().all(|word| is_whole(u64::from_ne_bytes(*word))));
                }
            });
        }
    }
}
